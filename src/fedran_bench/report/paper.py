"""Figures that the paper prints, from ``paper.toml``, beside the settings that they belong to."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from fedran_bench.results.grouping import Setting

BETAS = (0.1, 0.5, 1.0)
TASKS = {"CIFAR-100": (5, 10), "ImageNet-R": (10,), "VTAB": (5,)}
"""tab:datasets: 5 tasks of CIFAR-100 with ResNet-18, 10 with ViT-B/16."""
# The STSA that the paper runs is the estimated one, STSA-E (the byte counts show it).
METHODS = {
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
"""The paper's names of methods, by their key in the registry."""


@dataclass(frozen=True)
class Printed:
    """What the paper prints for one of its settings."""

    dataset: str
    backbone: str
    beta: float | None
    figures: dict[str, Any]

    def accuracy(self, key: str) -> tuple[float, float] | None:
        """A_avg and A_T of a method in percent."""
        row = self.figures["accuracy"].get(METHODS.get(key), {}).get(self.dataset)
        return tuple(row[BETAS.index(self.beta)]) if row and self.beta in BETAS else None

    def cost(self, what: Literal["mib", "seconds"], key: str) -> float | None:
        """Communication or seconds of a client in a task."""
        found: float | None = self.figures.get(what, {}).get(METHODS.get(key), {}).get(self.dataset)
        return found


def printed_for(setting: Setting) -> Printed | None:
    """The paper's own setting that runs at a setting can be read beside, if there is one.

    The backbone is the paper's, not the run's: the figures are context, not competition.

    >>> setting = Setting("cifar100-vit_ti16", 10, 5, "dirichlet", 1.0, 0.1)
    >>> printed_for(setting).accuracy("fedran-paper")
    (93.71, 89.61)
    """
    name, tasks = paper_dataset(setting.dataset), setting.tasks
    if name is None or setting.clients != 5 or tasks not in TASKS[name]:
        return None
    if (setting.label_rate, setting.partitioner, setting.arrival) != (1, "dirichlet", "classes"):
        return None
    vit = "vit" in setting.dataset.lower()
    if (name == "CIFAR-100" and tasks == 10) or (name == "ImageNet-R" and vit):
        return Printed(name, "ViT-B/16", setting.beta, paper_figures()["vit"])
    return Printed(name, "ResNet-18", setting.beta, paper_figures()["resnet18"])


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


@cache
def paper_figures() -> dict[str, Any]:
    """All printed figures: backbone, then accuracy, MiB or seconds, then method and dataset."""
    text = resources.files("fedran_bench.report").joinpath("paper.toml").read_text("utf-8")
    return tomllib.loads(text)
