"""The memory of a training run, estimated before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.methods.trained.training.lazy_torch import load_torch, torch
from fedran.methods.trained.training.method import TrainedMethod

COPIES = 8
"""Copies of the weights at the same time: global model, student, gradient, momentum, teacher,
message, and the sum of the average in float64, which counts twice."""
CLIENT_COPIES = 3
"""Copies that one client keeps at most: a teacher, or an anchor and its Fisher information."""


@dataclass(frozen=True)
class Footprint:
    """Bytes where torch computes, and bytes of encoded messages in main memory."""

    tensors: int
    messages: int


def footprint(method: TrainedMethod, X: NDArray[Any], stream: Any) -> Footprint:
    """Weights, activations of one batch, rows and replay of the clients; messages of one round."""
    classes = sum(len(t.classes) for t in stream.tasks)
    weights, activations = _count_weights_and_activations(method, X, classes)
    row = int(np.prod(X.shape[1:])) * (1 if method.input == "images" else 4)
    rows = 3 * max(len(r) for t in stream.tasks for r in t.rows)
    if method.device is not None:  # an accelerator keeps the rows of all clients for a task
        rows += max(sum(len(r) for r in t.rows) for t in stream.tasks)
    synthetic = method.synthetic_rows()
    kept = (stream.n_clients + 2) * synthetic + method.replay_rows(len(X), stream.n_clients)
    batch = max(method.batch, getattr(method, "synthetic_batch", 0))
    tensors = (
        4 * weights * (COPIES + (CLIENT_COPIES + 1) * stream.n_clients)
        + 2 * 4 * activations * batch * (2 if synthetic else 1)
        + row * (rows + kept)
    )
    return Footprint(tensors, 4 * weights * (stream.n_clients + 2) + row * synthetic)


def _count_weights_and_activations(
    method: TrainedMethod, X: NDArray[Any], classes: int
) -> tuple[int, int]:
    """The number of weights, and the number of activations for one row."""
    load_torch()
    from fedran.methods.trained.training.networks import build

    seen: list[int] = []
    with torch.device("meta"):
        network = build(method.network, X.shape[-1]).eval()
        network.head.resize(classes)
        for module in network.modules():
            if not list(module.children()):
                module.register_forward_hook(lambda *given: seen.append(given[-1].numel()))
        shape = (1, 3, *X.shape[1:3]) if method.input == "images" else (1, X.shape[-1])
        network(torch.zeros(shape))
        weights = sum(t.numel() for t in network.state_dict().values())
    return weights, sum(seen)
