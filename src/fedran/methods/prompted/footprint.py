"""The memory of a run with a frozen ViT, estimated before it starts."""

from __future__ import annotations

from typing import Any

from fedran.methods.prompted.base import PromptedMethod
from fedran.methods.prompted.frozen_vit import ROWS_PER_PASS, find_weights
from fedran.methods.prompted.steps import MOST_STEPS
from fedran.methods.trained.training.footprint import Footprint
from fedran.methods.trained.training.lazy_torch import load_torch

ACTIVATIONS = 20
"""Values per token, width and block that a backward pass keeps: norms, queries, keys, values,
attention, both sides of the MLP's activation (four widths each), and shortcuts."""
TRAINED_SHARE = 0.5
"""Trained tensors are smaller than this share of the network, and there are few copies of them."""


def prompted_footprint(method: PromptedMethod, stream: Any) -> Footprint:
    """The network, the tokens of all clients of a task, one batch's activations; messages."""
    load_torch()
    from fedran.backbones.vit import load_vit

    network, _ = load_vit(find_weights(method.weights))
    sizes, n_weights = network.sizes, sum(p.numel() for p in network.parameters())
    size = 2 if method.precision == "bfloat16" else 4
    rows = max(sum(len(r) for r in t.rows) for t in stream.tasks)
    largest = max(len(r) for t in stream.tasks for r in t.rows)
    token = (1 + sizes.grid**2) * sizes.width * size
    kept = MOST_STEPS if method.execution == "recorded" else 1
    tensors = (
        4 * n_weights * 2
        + token * (rows + largest)
        + token * method.batch * ACTIVATIONS * sizes.depth * kept
        + token * ROWS_PER_PASS * ACTIVATIONS
        + 4 * 3 * sizes.side**2 * ROWS_PER_PASS * 3
    )
    trained = int(4 * n_weights * TRAINED_SHARE)
    return Footprint(tensors + 4 * trained, trained * (stream.n_clients + 2))
