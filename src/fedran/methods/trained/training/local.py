"""A client's own training: batches of its rows, one loss, plain SGD started afresh."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedran.methods.trained.training.lazy_torch import Tensor, torch
from fedran.methods.trained.training.tensors import Rows, augmented
from fedran.methods.trained.training.workbench import fast

if TYPE_CHECKING:
    from fedran.methods.trained.training.networks import Network

Loss = Callable[[Tensor, Tensor], Tensor]
"""(X of a batch, class numbers) -> a number to lower."""


@dataclass(frozen=True)
class Schedule:
    """How a client trains in one round."""

    epochs: int
    batch: int
    lr: float
    momentum: float
    weight_decay: float
    augment: bool


def stable_seed(*parts: object) -> int:
    """A seed of 63 bits from words and numbers, the same everywhere.

    >>> stable_seed("client-0", 3) == stable_seed("client-0", 3) != stable_seed("client-1", 3)
    True
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(*parts: object) -> Any:
    """A source of random numbers that depends on these words alone."""
    return torch.Generator().manual_seed(stable_seed(*parts))


def fit(
    network: Network,
    rows: Rows,
    loss: Loss,
    schedule: Schedule,
    random: Any,
    device: str,
    most: int | None = None,
) -> None:
    """Train in place; ``most`` caps the batches of an epoch. Weights that are not finite: error."""
    parameters = list(network.parameters())
    optimiser = torch.optim.SGD(
        parameters,
        lr=schedule.lr,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
        fused=device.startswith("cuda") or None,
    )
    prepare_norm(network, len(rows))
    for _ in range(schedule.epochs):
        for number, batch in enumerate(batches(len(rows), schedule.batch, random)):
            if number == most:
                break
            part = rows[batch.to(device)]
            X = augmented(part.X, random) if schedule.augment else part.X
            optimiser.zero_grad(set_to_none=True)
            with fast(network, device):
                value = loss(X, part.codes)
            value.backward()
            optimiser.step()
    if not bool(torch.stack([p.isfinite().all() for p in parameters]).all()):
        raise ValueError(
            f"training diverged: weights are no longer finite at lr = {schedule.lr:g}; lower lr"
        )


def batches(n: int, size: int, random: Any) -> Iterator[Tensor]:
    """All of 0 .. n-1 in random order; one row left over joins the batch before it.

    BatchNorm has no spread of a single row.
    """
    parts = list(torch.randperm(n, generator=random).split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        last = parts.pop()
        parts[-1] = torch.cat([parts[-1], last])
    yield from parts


def prepare_norm(network: Network, n: int) -> None:
    """Training mode; with a single row BatchNorm stays as recorded."""
    network.train()
    if n == 1:
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eval()
