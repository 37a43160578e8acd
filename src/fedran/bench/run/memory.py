"""Memory that a run needs, and how many runs fit side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.bench.run.machine import available_memory, free_accelerator_memory
from fedran.bench.run.runner import PreparedJob
from fedran.methods.analytic.fedpft import FedPFT
from fedran.methods.analytic.gh_ofl import GHOFLFisherMix
from fedran.methods.analytic.gram_based import GramMethod
from fedran.methods.analytic.moments import MomentMethod
from fedran.methods.fine_tuned import FineTuned
from fedran.methods.prompted.base import PromptedMethod
from fedran.methods.prompted.frozen_vit import ROWS_PER_PASS, find_weights
from fedran.methods.prompted.steps import MOST_STEPS
from fedran.methods.trained.training.lazy_torch import load_torch, torch
from fedran.methods.trained.training.method import TrainedMethod

BASE_MEMORY = 400 * 2**20
"""Interpreter, libraries, and memory that the allocator does not return."""
TORCH_MEMORY = 600 * 2**20
"""PyTorch on top of that. On an accelerator: its context there."""
COPIES = 8
"""Copies of the weights at the same time: global model, student, gradient, momentum, teacher,
message, and the sum of the average in float64, which counts twice."""
CLIENT_COPIES = 3
"""Copies that one client keeps at most: a teacher, or an anchor and its Fisher information."""
ACTIVATIONS = 20
"""Values per token, width and block that a backward pass keeps: norms, queries, keys, values,
attention, both sides of the MLP's activation (four widths each), and shortcuts."""
TRAINED_SHARE = 0.5
"""Trained tensors are smaller than this share of the network, and there are few copies of them."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a run may take at its peak, in main memory and on an accelerator."""

    host: int
    device: int = 0


@dataclass(frozen=True)
class Footprint:
    """Bytes where torch computes, and bytes of encoded messages in main memory."""

    tensors: int
    messages: int


def estimate_needs(run: PreparedJob) -> Needs:
    """The data, plus three (M, M) matrices and the largest client's rows, or plus a network.

    Methods whose server draws rows hold these three times while they are put together.
    """
    data = run.dataset
    arrays = 2 * (data.X_train.nbytes + data.X_test.nbytes)
    training = _training_footprint(run)
    if training is None:
        return Needs(BASE_MEMORY + arrays + _analytic_needs(run, run.method))
    if isinstance(run.method, FineTuned):
        arrays += _analytic_needs(run, run.method.inner)
    if getattr(run.method, "device", None) is None:
        total = training.tensors + training.messages
        return Needs(BASE_MEMORY + TORCH_MEMORY + arrays + total)
    host = BASE_MEMORY + 4 * TORCH_MEMORY + arrays + training.messages
    return Needs(host, TORCH_MEMORY + training.tensors)


def _analytic_needs(run: PreparedJob, method: Any) -> int:
    M = method.params().get("out_features") or int(run.dataset.X_train.shape[-1])
    sizes = [[len(r) for r in t.rows] for t in run.stream.tasks]
    pooled = method.family == "reference"
    rows = max(sum(s) if pooled else max(s) for s in sizes)
    clients = run.stream.n_clients
    uploads = 4 * M * M * clients if isinstance(method, (GramMethod, MomentMethod)) else 0
    drawn = 0
    if isinstance(method, FedPFT):
        drawn = 12 * int(run.dataset.X_train.size)
    elif isinstance(method, GHOFLFisherMix):
        n_classes = sum(len(t.classes) for t in run.stream.tasks)
        drawn = 12 * n_classes * method.rows_per_class * (method.directions + 1)
    return 4 * (3 * M * M + 4 * rows * M) + uploads + drawn


def _training_footprint(run: PreparedJob) -> Footprint | None:
    """Of a method that trains, or of the fine-tuning in front of an analytic one."""
    method: Any = run.method.stage if isinstance(run.method, FineTuned) else run.method
    if isinstance(method, PromptedMethod):
        return prompted_footprint(method, run.stream)
    if isinstance(method, TrainedMethod):
        return footprint(method, run.dataset.X_train, run.stream)
    return None


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


def require_fit(needs: Needs, device: str | None) -> None:
    """Refuse a run that would not fit into the memory that is available."""
    for what, needed, free in _demands(needs, device):
        if free is not None and needed > free:
            raise ValueError(
                f"the run would not fit: about {_gib(needed)} of {what} needed, {_gib(free)} "
                "available; use fewer clients, a smaller batch or network, or another machine"
            )


def workers_that_fit(
    wanted: int, needs: Needs, device: str | None, note: Callable[[str], None]
) -> int:
    """The number of processes that fit into the available memory, at most ``wanted``."""
    fit = wanted
    for what, needed, free in _demands(needs, device):
        room = wanted if free is None else max(1, int(0.9 * free) // needed)
        if room < fit:
            fit = room
            note(
                f"{fit} of {wanted} processes: a run may take {_gib(needed)} of {what}, "
                f"{_gib(free or 0)} available"
            )
    return fit


def _demands(needs: Needs, device: str | None) -> list[tuple[str, int, int | None]]:
    """For each memory that is needed: its name, the bytes needed and the bytes available."""
    found = [("memory", needs.host, available_memory())]
    if needs.device:
        found.append((f"memory on {device}", needs.device, free_accelerator_memory(device)))
    return found


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
