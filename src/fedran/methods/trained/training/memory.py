"""What a training run takes in memory, counted before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.methods.trained.training.lazy_torch import load_torch, torch
from fedran.methods.trained.training.recipe import Recipe

COPIES = 8
"""Weights of the global model, student, gradient, momentum, teacher, message and the sum of the
average in float64."""
KEPT = 3
"""Weights that a client keeps at most: a teacher, or an anchor and its Fisher information."""


@dataclass(frozen=True)
class Footprint:
    """Bytes where torch computes, and of encoded messages in main memory."""

    tensors: int
    messages: int


def footprint(recipe: Recipe, X: NDArray[Any], stream: Any) -> Footprint:
    """Weights, activations of a batch, rows and replay of the clients; messages of a round."""
    classes = sum(len(t.classes) for t in stream.tasks)
    weights, activations = count(recipe, X, classes)
    row = int(np.prod(X.shape[1:])) * (1 if recipe.input == "images" else 4)
    widest = max(len(r) for t in stream.tasks for r in t.rows)
    synthetic = getattr(recipe, "planned_rounds", 0) * getattr(recipe, "synthetic_batch", 0)
    replay = min(len(X), getattr(recipe, "memory_size", 0) * stream.n_clients)
    if getattr(recipe, "flavour", "") == "as_published" and replay:
        replay = len(X)
    kept = (stream.n_clients + 2) * synthetic + replay
    batch = max(recipe.batch, getattr(recipe, "synthetic_batch", 0))
    tensors = (
        4 * weights * (COPIES + (KEPT + 1) * stream.n_clients)
        + 2 * 4 * activations * batch * (2 if synthetic else 1)
        + row * (3 * widest + kept)
    )
    return Footprint(tensors, 4 * weights * (stream.n_clients + 2) + row * synthetic)


def count(recipe: Recipe, X: NDArray[Any], classes: int) -> tuple[int, int]:
    """Numbers in the weights, and in what a network makes of one row on the way."""
    load_torch()
    from fedran.methods.trained.training.networks import build

    seen: list[int] = []
    with torch.device("meta"):
        network = build(recipe.network, X.shape[-1]).eval()
        network.head.resize(classes)
        for module in network.modules():
            if not list(module.children()):
                module.register_forward_hook(lambda *given: seen.append(given[-1].numel()))
        shape = (1, 3, *X.shape[1:3]) if recipe.input == "images" else (1, X.shape[-1])
        network(torch.zeros(shape))
        weights = sum(t.numel() for t in network.state_dict().values())
    return weights, sum(seen)
