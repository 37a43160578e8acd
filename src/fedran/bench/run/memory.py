"""Whether runs fit into memory, before they start."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.bench.run.machine import available_memory, free_accelerator_memory
from fedran.bench.run.progress import Reporter
from fedran.bench.run.runner import Run
from fedran.methods.analytic.gram_based import GramMethod
from fedran.methods.trained.training.footprint import footprint
from fedran.methods.trained.training.method import TrainedMethod

BASE_MEMORY = 400 * 2**20
"""Interpreter, libraries, and what the allocator keeps."""
TORCH_MEMORY = 600 * 2**20
"""PyTorch on top of that; on an accelerator, its context there."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a run may take at its peak, in main memory and on an accelerator."""

    host: int
    device: int = 0


def estimated_needs(prepared: Run) -> Needs:
    """Data, then three (M, M) matrices and the widest client's rows, or a network in training."""
    data = prepared.dataset
    arrays = 2 * (data.X_train.nbytes + data.X_test.nbytes)
    if isinstance(prepared.method, TrainedMethod):
        parts = footprint(prepared.method, data.X_train, prepared.stream)
        if prepared.method.device is None:
            total = parts.tensors + parts.messages
            return Needs(BASE_MEMORY + TORCH_MEMORY + arrays + total)
        host = BASE_MEMORY + 4 * TORCH_MEMORY + arrays + parts.messages
        return Needs(host, TORCH_MEMORY + parts.tensors)
    M = prepared.method.params().get("out_features") or int(data.X_train.shape[-1])
    sizes = [[len(r) for r in t.rows] for t in prepared.stream.tasks]
    pooled = prepared.method.family == "reference"
    rows = max(sum(s) if pooled else max(s) for s in sizes)
    clients = prepared.stream.n_clients
    uploads = 4 * M * M * clients if isinstance(prepared.method, GramMethod) else 0
    return Needs(BASE_MEMORY + arrays + 4 * (3 * M * M + 4 * rows * M) + uploads)


def require_fit(needs: Needs, device: str | None) -> None:
    """Refuse a run that would not fit into the memory that is available."""
    places = [("memory", needs.host, available_memory())]
    if needs.device:
        places.append((f"memory on {device}", needs.device, free_accelerator_memory(device)))
    for what, needed, free in places:
        if free is not None and needed > free:
            raise ValueError(
                f"it would not fit: about {_gib(needed)} of {what} needed, {_gib(free)} "
                "available; take fewer clients, a smaller batch or network, or another machine"
            )


def affordable(wanted: int, needs: Needs, device: str | None, reporter: Reporter) -> int:
    """As many processes as wanted, or as fit into the memory that is available."""
    fit = wanted
    limits = [(needs.host, available_memory())]
    if needs.device:
        limits.append((needs.device, free_accelerator_memory(device)))
    for needed, free in limits:
        room = wanted if free is None else max(1, int(0.9 * free) // needed)
        if room < fit:
            fit = room
            reporter.note(
                f"{fit} of {wanted} processes: a run may take {_gib(needed)} of "
                f"{_gib(free or 0)} available"
            )
    return fit


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
