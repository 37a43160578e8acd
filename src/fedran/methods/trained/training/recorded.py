"""Training steps recorded as CUDA graphs, so that the host does not launch every kernel again.

A ResNet-18 needs about 400 kernels per step, and with batches of 128 small images the GPU computes
them faster than the host can launch them. A graph launches all of them at once. It reads and
writes fixed addresses, so a batch is copied into fixed tensors before each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fedran.methods.trained.training.lazy_torch import Tensor, torch
from fedran.methods.trained.training.local_training import (
    ClientRound,
    Loss,
    Memory,
    Schedule,
    Step,
)

if TYPE_CHECKING:
    from fedran.methods.trained.training.networks import Network

WARMUP_STEPS = 3
"""Steps before recording, in which libraries choose their algorithms and allocate memory."""
MOST_STEPS = 4
"""Recorded steps that are kept: they hold memory on the GPU."""


class RecordedStep:
    """``Step`` on a GPU: recorded once per batch size, then replayed. Same kernels, same numbers.

    The weights stay in the tensors of ``network``. ``restart`` begins a client's training.
    Batches of full size go through ``torch.compile`` where ``compiled`` lists networks.
    """

    def __init__(
        self,
        network: Network,
        loss: Loss,
        schedule: Schedule,
        device: str,
        compiled: Sequence[Network] = (),
    ) -> None:
        self.step = Step(network, loss, schedule, device)
        self.network, self.compiled = network, compiled
        self.momentum = [torch.zeros_like(p) for p in network.parameters()]
        if schedule.momentum:
            for p, buffer in zip(network.parameters(), self.momentum, strict=True):
                self.step.optimiser.state[p]["momentum_buffer"] = buffer
        self.pool = torch.cuda.graph_pool_handle() if device.startswith("cuda") else None
        self.replays: dict[Any, tuple[Callable[[], None], tuple[Tensor, ...]]] = {}

    def restart(self) -> None:
        """Forget the momentum, as a fresh optimiser does."""
        torch._foreach_zero_(self.momentum)

    def __call__(self, *batch: Tensor) -> None:
        """One step on this batch."""
        sizes = tuple(tuple(t.shape) for t in batch)
        if sizes not in self.replays:
            fixed = tuple(t.clone() for t in batch)
            full = len(batch[0]) == self.step.schedule.batch
            bodies = compiled_bodies(self.compiled) if full else nullcontext()
            with self._unchanged(), bodies:
                self.replays[sizes] = record_graph(lambda: self.step(*fixed), self.pool), fixed
        replay, fixed = self.replays[sizes]
        for place, tensor in zip(fixed, batch, strict=True):
            place.copy_(tensor)
        replay()

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Weights, statistics and momentum are afterwards what they were before."""
        tensors = [*self.network.state_dict().values(), *self.momentum]
        before = [t.clone() for t in tensors]
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


@dataclass
class _Kept:
    """A recorded step with the client whose tensors its loss reads."""

    step: RecordedStep
    client: ClientRound


_kept: dict[Any, _Kept] = {}


def recorded_step(
    method: Any,
    client: ClientRound,
    loss: Callable[..., Tensor],
    read: Memory,
) -> RecordedStep:
    """The step of a method for a client; recorded steps serve all clients and rounds of a task.

    ``loss(client, *batch)`` may read the networks of the client and the tensors ``read`` of its
    memory, which are copied to fixed places.
    """
    networks = [client.student, *([client.teacher] if client.teacher is not None else [])]
    addresses = tuple(t.data_ptr() for network in networks for t in network.state_dict().values())
    shapes = tuple((name, tuple(t.shape)) for name, t in read.items())
    key = (method, client.known, len(client.classes), shapes, addresses)
    if key not in _kept:
        while len(_kept) >= MOST_STEPS:
            del _kept[next(iter(_kept))]
        fixed = replace(client, memory={n: t.clone() for n, t in read.items()})
        step = RecordedStep(
            client.student,
            lambda *batch: loss(fixed, *batch),
            method,
            method.torch_device,
            networks if method.execution == "compiled" else (),
        )
        _kept[key] = _Kept(step, fixed)
    found = _kept[key]
    for name, tensor in read.items():
        found.client.memory[name].copy_(tensor)
    found.step.restart()
    return found.step


@lru_cache(maxsize=4)
def _compiled(body: Any) -> Any:
    return torch.compile(body.forward, dynamic=False)


@contextmanager
def compiled_bodies(networks: Sequence[Network]) -> Iterator[None]:
    """In the block, ``torch.compile`` computes the bodies of these networks."""
    for network in networks:
        network.body.forward = _compiled(network.body)
    try:
        yield
    finally:
        for network in networks:
            del network.body.forward
