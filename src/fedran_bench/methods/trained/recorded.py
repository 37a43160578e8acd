"""Training steps recorded as CUDA graphs, so that the host does not launch every kernel again.

A ResNet-18 needs about 400 kernels per step, and with batches of 128 small images the GPU computes
them faster than the host can launch them. A graph launches all of them at once. It reads and
writes fixed addresses, so a batch is copied into fixed tensors before each replay.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from fedran_bench.methods.trained.lazy_torch import Tensor, torch
from fedran_bench.methods.trained.local_training import ClientRound, Loss, Memory, Schedule, Step

if TYPE_CHECKING:
    from fedran_bench.methods.trained.networks import Network

S = TypeVar("S")
WARMUP_STEPS = 3
"""Steps before recording, in which libraries choose their algorithms and allocate memory."""
MOST_STEPS = 4
"""Recorded steps that are kept: they hold memory on the GPU."""
_kept: dict[Any, Any] = {}


class Replays:
    """A step that is recorded once per batch size, then replayed. Same kernels, same numbers.

    ``changed`` returns the tensors that a step changes. After a recording they, and the random
    numbers, are what they were before.
    """

    def __init__(
        self,
        step: Callable[[Mapping[str, Tensor]], None],
        changed: Callable[[], list[Tensor]],
        device: str,
    ) -> None:
        self.step, self.changed = step, changed
        self.devices = [device] if device.startswith("cuda") else []
        self.pool = torch.cuda.graph_pool_handle() if self.devices else None
        self.recorded: dict[Any, tuple[Callable[[], None], dict[str, Tensor]]] = {}

    def __call__(self, batch: Mapping[str, Tensor]) -> None:
        """One step on the named tensors of a batch."""
        sizes = tuple((name, tuple(t.shape)) for name, t in batch.items())
        if sizes not in self.recorded:
            fixed = {name: t.clone() for name, t in batch.items()}
            with self.unchanged():
                self.recorded[sizes] = record_graph(lambda: self.step(fixed), self.pool), fixed
        replay, fixed = self.recorded[sizes]
        for name, tensor in batch.items():
            fixed[name].copy_(tensor)
        replay()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What steps change in the block is afterwards what it was before."""
        tensors = self.changed()
        before = [t.detach().clone() for t in tensors]
        with torch.random.fork_rng(self.devices):
            yield
        with torch.no_grad():
            torch._foreach_copy_(tensors, before)


def record_graph(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    """Warm up, record ``step`` as a CUDA graph and return its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph.replay


def require_gpu(execution: str, device: str) -> None:
    """ValueError if steps are to be recorded and the device is no GPU."""
    if execution != "eager" and not device.startswith("cuda"):
        raise ValueError(
            f"execution = {execution!r} needs a CUDA device, got {device}: leave execution out, or "
            "give --device cuda"
        )


def kept_step(key: Any, most: int, make: Callable[[], S]) -> S:
    """The step that is kept under this key, or a new one in the place of the oldest of ``most``.

    The memory of the oldest returns to the GPU. A step refers to itself through its recording, so
    only the garbage collector ends it.
    """
    if key not in _kept:
        while len(_kept) >= most:
            del _kept[next(iter(_kept))]
        gc.collect()
        torch.cuda.empty_cache()
        _kept[key] = make()
    return _kept[key]


class RecordedStep:
    """``Step`` on a GPU, recorded and replayed.

    The weights stay in the tensors of ``network``, and what the loss reads of a client's memory in
    those of ``memory``. ``restart`` begins a client's training.
    """

    def __init__(
        self,
        network: Network,
        loss: Loss,
        schedule: Schedule,
        device: str,
        memory: Memory | None = None,
    ) -> None:
        self.step = Step(network, loss, schedule, device)
        self.memory = memory or {}
        self.momentum = [torch.zeros_like(p) for p in network.parameters()]
        if schedule.momentum:
            for p, buffer in zip(network.parameters(), self.momentum, strict=True):
                self.step.optimiser.state[p]["momentum_buffer"] = buffer
        self.replays = Replays(
            lambda batch: self.step(*batch.values()),
            lambda: [*network.state_dict().values(), *self.momentum],
            device,
        )

    def restart(self, memory: Memory) -> None:
        """Forget the momentum, as a fresh optimiser does, and copy a client's memory."""
        torch._foreach_zero_(self.momentum)
        for name, tensor in memory.items():
            self.memory[name].copy_(tensor)

    def __call__(self, *batch: Tensor) -> None:
        """One step on this batch."""
        self.replays({str(i): t for i, t in enumerate(batch)})


def recorded_step(
    method: Any, client: ClientRound, loss: Callable[..., Tensor], read: Memory
) -> RecordedStep:
    """The step of a method for a client; recorded steps serve all clients and rounds of a task.

    ``loss(client, *batch)`` may read the networks of the client and the tensors ``read`` of its
    memory, which are copied to fixed places.
    """
    networks = [client.student, *([client.teacher] if client.teacher is not None else [])]
    addresses = tuple(t.data_ptr() for network in networks for t in network.state_dict().values())
    shapes = tuple((name, tuple(t.shape)) for name, t in read.items())

    def make() -> RecordedStep:
        fixed = replace(client, memory={n: t.clone() for n, t in read.items()})
        return RecordedStep(
            client.student,
            lambda *batch: loss(fixed, *batch),
            method,
            method.torch_device,
            fixed.memory,
        )

    key = (method, client.known, len(client.classes), shapes, addresses)
    step = kept_step(key, MOST_STEPS, make)
    step.restart(read)
    return step
