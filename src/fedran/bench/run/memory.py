"""Memory that a run needs, and how many runs fit side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedran.bench.run.machine import available_memory, free_accelerator_memory
from fedran.bench.run.runner import PreparedJob
from fedran.methods.analytic.fedpft import FedPFT
from fedran.methods.analytic.gh_ofl import GHOFLFisherMix
from fedran.methods.analytic.gram_based import GramMethod
from fedran.methods.analytic.moments import MomentMethod
from fedran.methods.fine_tuned import FineTuned
from fedran.methods.prompted.base import PromptedMethod
from fedran.methods.prompted.footprint import prompted_footprint
from fedran.methods.trained.training.footprint import Footprint, footprint
from fedran.methods.trained.training.method import TrainedMethod

BASE_MEMORY = 400 * 2**20
"""Interpreter, libraries, and memory that the allocator does not return."""
TORCH_MEMORY = 600 * 2**20
"""PyTorch on top of that. On an accelerator: its context there."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a run may take at its peak, in main memory and on an accelerator."""

    host: int
    device: int = 0


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
