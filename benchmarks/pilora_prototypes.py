"""PILoRA's prototypes on features that do not change, beside the nearest class mean.

    FEDRAN_DATA=... python benchmarks/pilora_prototypes.py

The pairs of PILoRA hardly move the features of a frozen ViT at their published rate. What remains
is how its classifier learns: prototypes by cross-entropy, without rows of earlier tasks. Rows are
held-out training rows of CIFAR-100 (see choose_vit_rates.py): 3 tasks of 10 classes, then all 100
classes in one task. Test rows are never read. One line of a Markdown table per setting. About four
minutes on one core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from choose_vit_rates import held_out_rows
from fedran.data.catalogue import load_dataset
from fedran.data.dataset import Dataset
from fedran_bench.methods.prompted.frozen_vit import Embedded
from fedran_bench.methods.prompted.pilora import PILoRA
from fedran_bench.methods.protocol import BaseMethod
from fedran_bench.methods.registry import make_method
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights
from fedran_bench.run.runner import PreparedJob, run
from fedran_bench.streams import make_stream

TASKS, CLASSES_PER_TASK, BETA, SEED = 3, 10, 0.5, 101
FEDERATED = {"n_rounds": 5, "epochs": 5}
ALONE = {"n_rounds": 1, "epochs": 10}
SETTINGS: list[tuple[int, dict[str, Any]]] = [
    *((5, {**FEDERATED, "head_lr": rate}) for rate in (0.002, 0.02, 0.1, 0.3)),
    *((5, {**FEDERATED, "head_lr": 0.1, "attraction": a}) for a in (0.1, 1.0, 10.0)),
    (1, {**ALONE, "head_lr": 0.1}),
    (1, {**ALONE, "head_lr": 0.1, "attraction": 1.0}),
    (5, {**FEDERATED, "head_lr": 0.1, "scale": 4.0}),
    (5, {**FEDERATED, "head_lr": 0.1, "scale": 16.0}),
]
ONE_TASK: list[tuple[int, dict[str, Any]]] = [
    (1, {**ALONE, "head_lr": 0.02, "scale": scale}) for scale in (1.0, 4.0, 16.0)
]


@dataclass(frozen=True)
class Prototypes(PILoRA):
    """PILoRA without its pairs, on given features."""

    input = "features"  # type: ignore[assignment]

    def embedded(self, X: NDArray[Any]) -> Embedded:
        """The features take the place of tokens."""
        rows = torch.tensor(np.asarray(X, dtype=np.float32))
        return Embedded(rows, rows[:, :0])

    def features(self, weights: Weights, X: Embedded, task: Any = None) -> Tensor:  # noqa: ARG002
        """As given. The pairs have a gradient of 0."""
        return X.tokens + 0 * (weights["up"].sum() + weights["down"].sum())


def held_out(n_classes: int) -> Dataset:
    """Features of some classes; the test rows are a fifth of their training rows."""
    data = load_dataset("cifar100-vit_ti16")
    a, b = held_out_rows(data.y_train, n_classes)
    X, y = data.X_train, data.y_train
    return Dataset("held out", "features", X[a], y[a], X[b], y[b], nonnegative=False)


def line(name: str, method: BaseMethod, data: Dataset, tasks: int, clients: int) -> str:
    """Accuracy on the classes of each task after the last one, and A_T."""
    split = {"n_tasks": tasks, "n_clients": clients, "beta": BETA, "seed": SEED}
    result = run(PreparedJob("pilora", method, data, make_stream(data.y_train, **split)))
    cells = [name, str(clients), *(f"{100 * a:.1f}" for a in result.acc[-1]), f"{result.A_T:.1f}"]
    return "| " + " | ".join(cells) + " |"


def table(n_classes: int, tasks: int, chosen: list[tuple[int, dict[str, Any]]]) -> None:
    """Print the lines of some settings below one of the nearest class mean."""
    rows = held_out(n_classes)
    head = ["method", "clients", *(f"task {t + 1}" for t in range(tasks)), "A_T"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    print(line("FedNCM", make_method("fedncm"), rows, tasks, 5), flush=True)
    for n_clients, settings in chosen:
        name = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items())
        prototypes = Prototypes(sparsity=0.0, orthogonality=0.0, **settings)
        print(line(f"PILoRA, {name}", prototypes, rows, tasks, n_clients), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    table(TASKS * CLASSES_PER_TASK, TASKS, SETTINGS)
    table(100, 1, ONE_TASK)
