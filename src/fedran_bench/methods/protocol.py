"""What a method claims, knows beforehand and gets, and the base class with its defaults."""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedran.core.labels import Label
from fedran.data.images import Images
from fedran.settings import Settings


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


class EncodedImages(Sequence[bytes]):
    """The encoded images of some rows, read when they are needed."""

    def __init__(self, images: Images, rows: NDArray[np.int64]) -> None:
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self.images.encoded(int(r)) for r in self.rows[i]]
        return self.images.encoded(int(self.rows[i]))


def cached_backbone(
    images: Images, features: NDArray[Any]
) -> Callable[[Sequence[bytes]], NDArray[Any]]:
    """A backbone that finds an image among ``images`` and returns its stored features."""
    index: dict[bytes, int] = {}

    def digest(image: bytes) -> bytes:
        return hashlib.sha256(image).digest()

    def extract(batch: Sequence[bytes]) -> NDArray[Any]:
        if not index:
            index.update((digest(images.encoded(i)), i) for i in range(len(images)))
        return features[[index[digest(image)] for image in batch]]

    return extract


HOW_TO = "docs/how-to/add-a-method.md"


class BaseMethod(Settings, ABC):
    """One method of the benchmark: by default one round per task on frozen features.

    A subclass is a dataclass whose fields are its settings. It must have ``name`` and define
    ``init``, ``client``, ``aggregate`` and ``predict``. Everything else has a default here. The
    server's state may be anything.

    Calls return the next state; the given one is not used again. The runner measures bytes and
    seconds around these calls; a method measures nothing.
    """

    device: str | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The name shown in tables."""

    @property
    def family(self) -> Literal["analytic", "trained", "reference"]:
        """Statistics of frozen features, gradient descent at the clients, or not federated."""
        return "analytic"

    @property
    def input(self) -> Literal["features", "images"]:
        """What ``data.X`` must hold."""
        return "features"

    @property
    def claims(self) -> Claims:
        """The properties that it claims: nothing but one round per task."""
        return Claims()

    @property
    def sends(self) -> str:
        """One phrase, as shown in tables: what a client uploads."""
        return "not stated"

    @property
    def verified(self) -> str:
        """yes, partly or no, and what it was compared with. ``fedran bench methods`` shows it."""
        return "no"

    def formula(self, in_features: int, n_classes: int) -> int | None:
        """The bytes that the method's paper counts for one upload with ``n_classes`` seen."""

    def params(self) -> dict[str, Any]:
        """The settings of this instance, as plain values: the fields without the device."""
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if name != "device"}

    def rounds(self, task: int) -> int:
        """Communication rounds in this task: one."""
        return 1

    @abstractmethod
    def init(self, spec: Spec, seed: int) -> Any:
        """The server's state before the first task."""

    def broadcast(self, state: Any, task: int, round_: int) -> bytes:
        """The message that every client downloads before this round: nothing."""
        return b""

    @abstractmethod
    def client(self, cstate: Any, message: bytes, data: ClientData, seed: int) -> tuple[Any, bytes]:
        """The work of one client: its next state and its upload."""

    @abstractmethod
    def aggregate(self, state: Any, task: int, round_: int, uploads: Uploads) -> Any:
        """The server's next state from all uploads of a round."""

    @abstractmethod
    def predict(self, state: Any, X: NDArray[Any]) -> NDArray[Any]:
        """Labels for rows of any class seen so far."""

    def embed(self, state: Any, X: NDArray[Any]) -> NDArray[Any] | None:
        """The method's representation of X; None where it is frozen, so that there is no drift."""


def arrays_to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Named arrays of numbers or text as bytes, for messages.

    >>> blob = arrays_to_bytes({"sums": np.ones((2, 3)), "labels": np.array(["a", "b"])})
    >>> arrays_from_bytes(blob)["labels"].tolist()
    ['a', 'b']
    """
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **{k: np.asarray(v) for k, v in arrays.items()})
    return out.getvalue()


def arrays_from_bytes(blob: bytes) -> dict[str, NDArray[Any]]:
    """Inverse of ``arrays_to_bytes``. Nothing in the bytes is executed."""
    with np.load(io.BytesIO(blob), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
