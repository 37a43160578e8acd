"""What a method of the benchmark claims, knows beforehand, and gets from a client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from fedran.core.labels import Label


@dataclass(frozen=True)
class Claims:
    """The properties that a method claims. The generic checks test every claim."""

    order_free: bool = False
    """The order in which clients' messages arrive does not matter (to rounding)."""
    partition_free: bool = False
    """It does not matter which client holds which row (to rounding)."""
    exact: bool = False
    """Equal to a joint solve on all rows (to rounding)."""
    one_round: bool = True


@dataclass(frozen=True)
class Spec:
    """What is known before the stream starts."""

    in_features: int
    task_classes: tuple[tuple[Label, ...], ...]
    clients: tuple[str, ...]
    extract: Callable[[Sequence[bytes]], NDArray[Any]] | None = None
    """The frozen backbone: encoded images -> features; None where there are no images."""
    image_size: int | None = None
    """Height and width, where ``X`` holds square images (n, size, size, 3) in uint8."""


Uploads: TypeAlias = dict[str, bytes]
"""The uploads of one round, by client."""


@dataclass(frozen=True)
class ClientData:
    """One client's rows of one task; labels are None where they are missing."""

    client: str
    task: str
    X: NDArray[Any]
    y: Any
    images: Sequence[bytes] | None = None
    """The encoded images behind X, where there are any."""
