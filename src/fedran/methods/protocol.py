"""The interface of a method in the benchmark, analytic or trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from numpy.typing import NDArray

from fedran.core.labels import Label

S = TypeVar("S")


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


@dataclass(frozen=True)
class ClientData:
    """One client's rows of one task; labels are None where they are missing."""

    client: str
    task: str
    X: NDArray[Any]
    y: Any
    images: Sequence[bytes] | None = None
    """The encoded images behind X, where there are any."""


class Method(Protocol[S]):
    """One method of the benchmark. Calls return the next state; the given one is not used again.

    The runner measures bytes and seconds around these calls; a method measures nothing.
    """

    @property
    def name(self) -> str:
        """The name shown in tables."""
        ...

    @property
    def family(self) -> Literal["analytic", "trained", "reference"]:
        """Statistics of frozen features, gradient descent at the clients, or not federated."""
        ...

    @property
    def input(self) -> Literal["features", "images"]:
        """What ``data.X`` must hold."""
        ...

    @property
    def claims(self) -> Claims:
        """The properties that it claims."""
        ...

    @property
    def sends(self) -> str:
        """One phrase: what a client uploads."""
        ...

    @property
    def verified(self) -> str:
        """yes, partly or no, and what the implementation was compared with."""
        ...

    def formula(self, in_features: int, n_classes: int) -> int | None:
        """The bytes that the method's paper counts for one upload with ``n_classes`` seen."""
        ...

    def params(self) -> dict[str, Any]:
        """The settings of this instance, as plain values."""
        ...

    def rounds(self, task: int) -> int:
        """Communication rounds in this task."""
        ...

    def participants(
        self, task: int, round_: int, clients: tuple[str, ...], seed: int
    ) -> tuple[str, ...]:
        """The clients that take part in this round; the others neither download nor upload."""
        ...

    def init(self, spec: Spec, seed: int) -> S:
        """The server's state before the first task."""
        ...

    def broadcast(self, state: S, task: int, round_: int) -> bytes:
        """The message that every client downloads before this round."""
        ...

    def client(self, cstate: Any, message: bytes, data: ClientData, seed: int) -> tuple[Any, bytes]:
        """The work of one client: its next state and its upload."""
        ...

    def aggregate(self, state: S, task: int, round_: int, uploads: dict[str, bytes]) -> S:
        """The server's next state from all uploads of a round."""
        ...

    def predict(self, state: S, X: NDArray[Any]) -> NDArray[Any]:
        """Labels for rows of any class seen so far."""
        ...

    def gram(self, state: S) -> tuple[Callable[[Any], Any], Any] | None:
        """The feature map and the (M, M) Gram that the server holds, where it holds one."""
        ...

    def embed(self, state: S, X: NDArray[Any]) -> NDArray[Any] | None:
        """The method's representation of X, or None when it is frozen (no drift)."""
        ...

    def dump(self, state: S) -> bytes:
        """The server's state as bytes, so that a run can resume after any round."""
        ...

    def load(self, blob: bytes, spec: Spec, seed: int) -> S:
        """The state that ``dump`` wrote."""
        ...

    def dump_client(self, cstate: Any) -> bytes:
        """A client's state as bytes; empty where it follows from the seed."""
        ...

    def load_client(self, blob: bytes) -> Any:
        """The client state that ``dump_client`` wrote."""
        ...
