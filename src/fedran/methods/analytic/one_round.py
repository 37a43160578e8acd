"""What analytic methods share: one round a task, frozen features, a head to hand out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_device
from fedran.core.head import Head
from fedran.methods.analytic.maps import FeatureMap
from fedran.methods.settings import check_settings
from fedran.wire.codec import encode


class OneRound:
    """One round a task; clients keep nothing that does not follow from the seed."""

    family: Literal["analytic", "reference"] = "analytic"
    input: Literal["features"] = "features"
    device: str | None = None

    def __post_init__(self) -> None:
        check_settings(self.params())

    def params(self) -> dict[str, Any]:
        """The dataclass fields, but for where it runs."""
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if name != "device"}

    def rounds(self, task: int) -> int:
        """One."""
        return 1

    def participants(
        self, task: int, round_: int, clients: tuple[str, ...], seed: int
    ) -> tuple[str, ...]:
        """Everyone."""
        return clients

    def formula(self, in_features: int, n_classes: int) -> int | None:
        """No count of its own."""

    def gram(self, state: Any) -> tuple[Callable[[Any], Any], Any] | None:
        """No Gram to compare."""

    def embed(self, state: Any, X: NDArray[Any]) -> None:
        """Frozen: there is no drift."""

    def dump_client(self, cstate: Any) -> bytes:
        """Nothing to write."""
        return b""

    def load_client(self, blob: bytes) -> None:
        """Nothing to read: the next call starts from the seed."""


class HasHead(Protocol):
    """A server state with a feature map and, after the first task, a head."""

    @property
    def phi(self) -> FeatureMap:
        """The feature map that all clients share."""
        ...

    @property
    def head(self) -> Head | None:
        """The newest head."""
        ...


class HeadMethod(OneRound):
    """The server broadcasts its newest head and predicts with it."""

    def broadcast(self, state: HasHead, task: int, round_: int) -> bytes:
        """The newest head, empty before the first task."""
        return b"" if state.head is None else encode(state.head)

    def predict(self, state: HasHead, X: NDArray[Any]) -> NDArray[Any]:
        """The head's labels."""
        if state.head is None:
            raise ValueError("nothing to predict with: no task was aggregated yet")
        return state.head.predict(state.phi(to_device(X, self.device)))
