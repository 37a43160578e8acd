"""One client's training: batches, losses and plain SGD.

Random numbers always come from a generator on the CPU, so that every device sees the same batches.
They are drawn for many batches ahead and copied to the device together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from fedran.core.labels import Label
from fedran.settings import Settings, at_least, below_one, positive
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch
from fedran_bench.methods.trained.rows import (
    Replay,
    Rows,
    draw_moves,
    shift_and_flip,
    to_device_async,
)

if TYPE_CHECKING:
    from fedran_bench.methods.trained.networks import Network

Precision = Literal["float32", "bfloat16"]
Memory: TypeAlias = dict[str, Tensor]
"""Named tensors that a client keeps between rounds; ``teacher/...`` is the last task's model."""
Loss = Callable[..., Tensor]
"""(X of a batch, class numbers, and replayed images if there are any) -> the value to minimise."""

BATCHES_AHEAD = 32
"""Batches that are drawn, gathered and augmented together."""


@dataclass
class ClientRound:
    """Everything one client works with in one round."""

    task: int
    round: int
    known: int
    """Number of classes of earlier tasks."""
    classes: tuple[Label, ...]
    weights: Weights
    """The global model, as received."""
    extra: Memory
    """Other tensors that the server sent."""
    rows: Rows
    memory: Memory
    """Kept from earlier rounds; changes are kept for the next one."""
    random: Any
    network: Network | None = None
    teacher: Network | None = None
    replayed: Tensor | None = None
    """Old or synthetic images that accompany the current batch."""

    @property
    def student(self) -> Network:
        """The network in training."""
        assert self.network is not None
        return self.network


def stable_seed(*parts: object) -> int:
    """A seed of 63 bits that depends on these words and numbers only.

    >>> stable_seed("client-0", 3) == stable_seed("client-0", 3) != stable_seed("client-1", 3)
    True
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def seeded_random(*parts: object) -> Any:
    """A random number generator on the CPU, seeded with ``stable_seed``."""
    return torch.Generator().manual_seed(stable_seed(*parts))


def cross_entropy(logits: Tensor, codes: Tensor, known: int = 0) -> Tensor:
    """Mean cross-entropy over the logits of the classes from ``known`` on; codes >= known."""
    return torch.nn.functional.cross_entropy(logits[:, known:], codes - known)


def distillation(logits: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """-mean_i sum_c softmax(teacher_i / T)_c log softmax(logits_i / T)_c, without a factor T^2.

    Only the student's first columns are compared, as many as the teacher has.
    """
    student = torch.log_softmax(logits[:, : teacher.shape[1]].float() / temperature, 1)
    return -(torch.softmax(teacher.float() / temperature, 1) * student).sum(1).mean()


@dataclass(frozen=True)
class Schedule(Settings):
    """How a client trains in one round."""

    epochs: Annotated[int, at_least(1)] = 2
    """Passes over a client's rows in one round."""
    batch: Annotated[int, at_least(2)] = 128
    """Rows per batch."""
    lr: Annotated[float, positive] = 0.01
    """Learning rate of SGD."""
    momentum: Annotated[float, below_one] = 0.9
    """Momentum of SGD."""
    weight_decay: Annotated[float, at_least(0)] = 5e-4
    """Weight decay of SGD."""
    augment: bool = True
    """Random shifts and flips of images."""
    precision: Precision = "float32"
    """``bfloat16`` trains a network in mixed precision, which is faster on a GPU."""


class Step:
    """Forward, backward and update of SGD on one batch, with a fresh optimiser."""

    def __init__(self, network: Network, loss: Loss, schedule: Schedule, device: str) -> None:
        self.loss, self.schedule, self.device = loss, schedule, device
        self.optimiser = torch.optim.SGD(
            network.parameters(),
            lr=schedule.lr,
            momentum=schedule.momentum,
            weight_decay=schedule.weight_decay,
            fused=device.startswith("cuda") or None,
        )

    def __call__(self, *batch: Tensor) -> None:
        """One step on this batch."""
        self.optimiser.zero_grad(set_to_none=True)
        # The last batch of an epoch has another size at every client: not worth a measurement.
        usual = len(batch[0]) == self.schedule.batch
        with fast_convolutions(usual and self.schedule.precision == "bfloat16"):
            with autocast(self.device, self.schedule.precision):
                value = self.loss(*batch)
            value.backward()
        self.optimiser.step()


def fit(
    network: Network,
    rows: Rows,
    loss: Loss,
    schedule: Schedule,
    random: Any,
    device: str,
    replay: Replay | None = None,
    step: Callable[..., None] | None = None,
) -> None:
    """Train in place.

    The loss receives a batch of rows, and of ``replay`` where there is one. ``step`` replaces the
    plain ``Step``. Raises ValueError if the weights are not finite afterwards.
    """
    step = step or Step(network, loss, schedule, device)
    set_training_mode(network, len(rows))
    for _ in range(schedule.epochs):
        for batch in epoch(rows, schedule, random, device, replay):
            step(*batch)
    if not bool(torch.stack([p.isfinite().all() for p in network.parameters()]).all()):
        raise ValueError(
            f"training diverged: weights are no longer finite at lr = {schedule.lr:g}; lower lr"
        )


def epoch(
    rows: Rows, schedule: Schedule, random: Any, device: str, replay: Replay | None = None
) -> Iterator[tuple[Tensor, ...]]:
    """The batches of one epoch: X, class numbers, and replayed images where there are any.

    Random numbers are drawn batch by batch, first for the rows, then for the replay. The host
    waits for nothing: one copy of these numbers serves ``BATCHES_AHEAD`` batches.
    """
    parts = batches(len(rows), schedule.batch, random)
    moves = schedule.augment and rows.X.ndim == 4
    for start in range(0, len(parts), BATCHES_AHEAD):
        ahead = parts[start : start + BATCHES_AHEAD]
        moved, drawn, drawn_moved = [], [], []
        for part in ahead:
            if moves:
                moved.append(draw_moves(len(part), rows.X, random))
            if replay is not None:
                drawn.append(torch.randint(len(replay.images), (replay.batch,), generator=random))
            if replay is not None and schedule.augment:
                drawn_moved.append(draw_moves(replay.batch, replay.images, random))
        chosen = rows[to_device_async(torch.cat(ahead), device)]
        X = _moved(chosen.X, moved)
        sizes = [len(part) for part in ahead]
        columns = [X.split(sizes), chosen.codes.split(sizes)]
        if replay is not None:
            images = replay.images[to_device_async(torch.cat(drawn), device)]
            columns.append(_moved(images, drawn_moved).split(replay.batch))
        yield from zip(*columns, strict=True)


def _moved(X: Tensor, moves: list[Tensor]) -> Tensor:
    """X after the moves of all batches, or X itself if there are none."""
    return shift_and_flip(X, to_device_async(torch.cat(moves, 1), X.device)) if moves else X


def batches(n: int, size: int, random: Any) -> list[Tensor]:
    """The numbers 0 .. n-1 in random order. A last batch of one row joins the batch before it.

    BatchNorm cannot compute the variance of a single row.
    """
    parts = list(torch.randperm(n, generator=random).split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        last = parts.pop()
        parts[-1] = torch.cat([parts[-1], last])
    return parts


def set_training_mode(network: Network, n_rows: int) -> None:
    """Training mode. With a single row, BatchNorm uses its recorded statistics instead."""
    network.train()
    if n_rows == 1:
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eval()


def autocast(device: str, precision: Precision) -> AbstractContextManager[Any]:
    """Mixed precision: layers compute in bfloat16, weights and losses stay in float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


@contextmanager
def fast_convolutions(measured: bool) -> Iterator[None]:
    """cuDNN measures its algorithms once for every new size and takes the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or measured
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
