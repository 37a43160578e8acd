"""Figures that the paper prints, each with the table or passage that it comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedran.bench.results.grouping import Group, Setting
from fedran.bench.results.metrics import is_head

BETAS = (0.1, 0.5, 1.0)
TASKS = {"CIFAR-100": (5, 10), "ImageNet-R": (10,), "VTAB": (5,)}
"""tab:datasets: 5 tasks of CIFAR-100 with ResNet-18, 10 with ViT-B/16."""
Pair = tuple[float, float]
"""A_avg and A_T in percent."""

# tab:main_accuracy_aavg_at: ResNet-18; for each method and dataset, beta = 0.1, 0.5, 1.0.
RESNET: dict[str, dict[str, tuple[Pair, Pair, Pair]]] = {
    "Finetune": {
        "CIFAR-100": ((34.43, 15.65), (36.09, 16.57), (37.02, 17.12)),
        "ImageNet-R": ((8.22, 4.67), (9.20, 4.63), (9.55, 4.68)),
        "VTAB": ((27.57, 4.86), (35.56, 19.65), (36.57, 18.92)),
    },
    "FedLwF": {
        "CIFAR-100": ((52.97, 39.11), (55.71, 38.24), (59.79, 44.35)),
        "ImageNet-R": ((10.13, 6.64), (11.74, 7.92), (12.91, 6.99)),
        "VTAB": ((28.70, 9.12), (38.31, 24.12), (41.38, 14.43)),
    },
    "TARGET": {
        "CIFAR-100": ((48.61, 30.76), (51.84, 34.27), (53.58, 35.02)),
        "ImageNet-R": ((4.49, 2.43), (5.86, 2.12), (7.04, 2.98)),
        "VTAB": ((18.57, 4.61), (20.59, 4.63), (25.45, 5.93)),
    },
    "FedEWC": {
        "CIFAR-100": ((37.39, 17.75), (41.46, 21.42), (42.81, 21.70)),
        "ImageNet-R": ((7.74, 3.97), (9.58, 4.62), (9.69, 4.38)),
        "VTAB": ((27.95, 9.83), (36.06, 20.93), (38.10, 18.45)),
    },
    "FediCaRL": {
        "CIFAR-100": ((60.76, 56.42), (66.05, 61.10), (68.76, 62.51)),
        "ImageNet-R": ((21.65, 22.29), (23.84, 25.49), (24.07, 24.29)),
        "VTAB": ((59.68, 52.19), (68.14, 63.97), (72.95, 64.07)),
    },
    "STSA": {
        "CIFAR-100": ((71.74, 64.21), (73.53, 66.06), (74.37, 66.99)),
        "ImageNet-R": ((50.89, 46.50), (51.37, 47.92), (51.77, 47.85)),
        "VTAB": ((89.81, 86.55), (90.59, 87.27), (90.38, 87.05)),
    },
    "FedRAN": {
        "CIFAR-100": ((76.54, 67.33), (76.50, 67.32), (76.66, 67.60)),
        "ImageNet-R": ((55.13, 48.00), (55.16, 48.13), (55.30, 48.35)),
        "VTAB": ((92.49, 88.22), (92.49, 88.22), (92.49, 88.22)),
    },
}

# tab:vit_accuracy_aavg_at: ViT-B/16, 10 tasks.
VIT: dict[str, dict[str, tuple[Pair, Pair, Pair]]] = {
    "Fed-DualP": {
        "CIFAR-100": ((69.11, 56.31), (78.12, 65.77), (83.02, 75.07)),
        "ImageNet-R": ((35.58, 27.92), (53.37, 45.25), (56.61, 48.58)),
    },
    "Fed-CODAP": {
        "CIFAR-100": ((67.75, 55.54), (74.80, 64.02), (82.20, 74.12)),
        "ImageNet-R": ((23.22, 15.15), (48.49, 43.00), (55.10, 51.13)),
    },
    "Fed-CPrompt": {
        "CIFAR-100": ((69.67, 61.68), (75.07, 65.87), (81.43, 73.86)),
        "ImageNet-R": ((23.67, 16.87), (45.42, 39.12), (51.09, 47.28)),
    },
    "PiLoRA": {
        "CIFAR-100": ((82.85, 74.09), (83.46, 76.81), (83.59, 77.17)),
        "ImageNet-R": ((51.85, 47.85), (53.43, 50.18), (55.47, 51.92)),
    },
    "STSA": {
        "CIFAR-100": ((92.68, 88.73), (93.30, 89.74), (93.34, 89.68)),
        "ImageNet-R": ((65.05, 58.34), (65.38, 58.65), (68.60, 61.29)),
    },
    "FedRAN": {
        "CIFAR-100": ((93.71, 89.61), (93.91, 89.90), (93.96, 89.82)),
        "ImageNet-R": ((67.45, 59.22), (67.76, 59.57), (69.80, 63.54)),
    },
}

# tab:comm_cost, "MB" there; the arithmetic shows MiB. FedRAN and STSA count 8 bytes per number.
COMMUNICATION: dict[str, dict[str, float]] = {
    "TARGET": {"CIFAR-100": 4283.82, "ImageNet-R": 4306.32, "VTAB": 4276.96},
    "STSA": {"CIFAR-100": 194.59, "ImageNet-R": 389.18, "VTAB": 97.29},
    "FedRAN": {"CIFAR-100": 134.27, "ImageNet-R": 140.52, "VTAB": 35.13},
}
# The passage on ViT-B/16 beside tab:vit_accuracy_aavg_at.
COMMUNICATION_VIT: dict[str, dict[str, float]] = {
    "STSA": {"CIFAR-100": 10.50, "ImageNet-R": 21.00},
    "FedRAN": {"CIFAR-100": 9.57, "ImageNet-R": 11.13},
}
ROUNDS, EPOCHS = 100, 2
"""Rounds of a task and epochs of a round of its trained methods."""

# tab:runtime, seconds per client and task on an NVIDIA RTX A5000.
RUNTIME: dict[str, dict[str, float]] = {
    "Finetune": {"CIFAR-100": 322.28, "ImageNet-R": 589.72, "VTAB": 229.37},
    "FedLwF": {"CIFAR-100": 316.48, "ImageNet-R": 559.71, "VTAB": 194.83},
    "TARGET": {"CIFAR-100": 320.18, "ImageNet-R": 567.28, "VTAB": 196.62},
    "FedEWC": {"CIFAR-100": 409.49, "ImageNet-R": 698.43, "VTAB": 266.81},
    "FediCaRL": {"CIFAR-100": 346.44, "ImageNet-R": 646.68, "VTAB": 225.45},
    "STSA": {"CIFAR-100": 1.75, "ImageNet-R": 2.13, "VTAB": 1.01},
    "FedRAN": {"CIFAR-100": 3.54, "ImageNet-R": 2.48, "VTAB": 0.98},
}

SPEEDUP_MEAN = {"CIFAR-100": 96.9, "ImageNet-R": 246.9, "VTAB": 227.2}
"""FedRAN's printed speed-up: the mean Time of the trained methods over FedRAN's."""

LABEL_GAIN = {"CIFAR-100": 3.26, "ImageNet-R": 6.61, "VTAB": 5.76}
"""Points of A_avg that proxy labels add at 20 % labels, beta = 0.1 (text of fig:label_rate)."""
RANK_A_AVG = {(2048, 1024): 74.0, (8192, 1024): 75.2}
"""(M, r) -> A_avg on CIFAR-100, beta = 0.5 (text of fig:rank_ablation)."""
RANK_MIB = {(2048, 1024): 17.6, (2048, 2048): 33.6, (8192, 1024): 70.3}
COMPONENTS = {"raw": 87.71, "linear": 90.21, "relu": 93.95, "low rank": 93.96}
"""A_avg on CIFAR-100, ViT-B/16, M = 1250, beta = 1.0 (text of fig:model_components_ablation)."""


@dataclass(frozen=True)
class Printed:
    """What the paper prints for one of its settings."""

    dataset: str
    backbone: str
    accuracy: dict[str, dict[str, tuple[Pair, Pair, Pair]]]
    communication: dict[str, dict[str, float]]
    runtime: dict[str, dict[str, float]]

    def pair(self, method: str | None, beta: float | None) -> Pair | None:
        """A_avg and A_T of a method as the paper calls it."""
        row = self.accuracy.get(method or "", {}).get(self.dataset)
        return row[BETAS.index(beta)] if row and beta in BETAS else None

    def mib(self, method: str | None) -> float | None:
        """Communication of a client in a task."""
        return self.communication.get(method or "", {}).get(self.dataset)

    def seconds(self, method: str | None) -> float | None:
        """Runtime of a client and task."""
        return self.runtime.get(method or "", {}).get(self.dataset)


def printed_for(setting: Setting) -> Printed | None:
    """The paper's own setting that runs at a setting can be read beside, if there is one.

    The backbone is the paper's, not the run's: the figures are context, not competition.

    >>> printed_for(Setting("cifar100-vit_ti16", 10, 5, "dirichlet", 1.0)).pair("FedRAN", 0.1)
    (93.71, 89.61)
    """
    name, tasks = paper_dataset(setting.dataset), setting.tasks
    if name is None or setting.clients != 5 or tasks not in TASKS[name]:
        return None
    if setting.label_rate < 1 or setting.partitioner not in {"dirichlet", "capped"}:
        return None
    vit = "vit" in setting.dataset.lower()
    if (name == "CIFAR-100" and tasks == 10) or (name == "ImageNet-R" and vit):
        return Printed(name, "ViT-B/16", VIT, COMMUNICATION_VIT, {})
    return Printed(name, "ResNet-18", RESNET, COMMUNICATION, RUNTIME)


def paper_row(g: Group) -> str | None:
    """The paper's name of a method; None for a head, since the paper trains whole networks."""
    return None if is_head(g.first) else paper_method(g.key)


def paper_dataset(dataset: str) -> str | None:
    """The paper's name of a dataset, from ours.

    >>> paper_dataset("vtab50-vit_s14"), paper_dataset("digits")
    ('VTAB', None)
    """
    plain = re.sub(r"[^a-z0-9]", "", dataset.lower())
    for start, name in (("cifar100", "CIFAR-100"), ("imagenetr", "ImageNet-R"), ("vtab", "VTAB")):
        if plain.startswith(start):
            return name
    return None


def vit_backbone(dataset: str) -> str:
    """The Vision Transformer whose features a dataset holds; empty for another backbone.

    >>> vit_backbone("cifar100-vit_ti16"), vit_backbone("cifar100-efficientnet_lite0")
    ('ViT-Ti/16', '')
    """
    found = re.search(r"vit_(ti|s|b|l)(\d+)", dataset)
    return f"ViT-{found[1].capitalize()}/{found[2]}" if found else ""


def paper_method(key: str) -> str | None:
    """The paper's name of a method, from its key in the registry.

    >>> paper_method("fedran-paper"), paper_method("fed-codaprompt"), paper_method("fedncm")
    ('FedRAN', 'Fed-CODAP', None)
    """
    return _METHODS.get(key)


# The STSA that the paper runs is the estimated one, STSA-E (the byte counts show it).
_METHODS = {
    "fedran": "FedRAN",
    "fedran-paper": "FedRAN",
    "stsa-e": "STSA",
    "finetune": "Finetune",
    "fedlwf": "FedLwF",
    "target": "TARGET",
    "fedewc": "FedEWC",
    "fedicarl": "FediCaRL",
    "fed-dualprompt": "Fed-DualP",
    "fed-codaprompt": "Fed-CODAP",
    "fed-cprompt": "Fed-CPrompt",
    "pilora": "PiLoRA",
}
