"""What analytic methods share: one round a task, frozen features, a head to hand out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from fedran.core.arrays import to_device
from fedran.core.errors import nearest
from fedran.core.head import Head
from fedran.methods.maps import FeatureMap
from fedran.wire.codec import encode
from fedran.wire.quantise import MAX_BITS, MIN_BITS
from fedran.wire.summary_codec import PRECISIONS

RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "out_features": (lambda v: v >= 1, "at least 1"),
    "rank": (lambda v: v >= 1, "at least 1"),
    "dummies": (lambda v: v >= 1, "at least 1"),
    "lam": (lambda v: v is None or 0 < v < math.inf, "positive and finite"),
    "gamma": (lambda v: 0 < v < math.inf, "positive and finite"),
    "tau": (lambda v: -1 <= v <= 1, "a cosine, in -1 .. 1"),
    "margin": (lambda v: 0 <= v < math.inf, "finite and at least 0"),
    "bits": (lambda v: MIN_BITS <= v <= MAX_BITS, f"in {MIN_BITS} .. {MAX_BITS}"),
    "precision": (lambda v: v in PRECISIONS, f"one of {', '.join(PRECISIONS)}"),
}
"""What settings of these names must be, in every method that has them."""


class OneRound:
    """One round a task; clients keep nothing that does not follow from the seed."""

    family: Literal["analytic", "reference"] = "analytic"
    input: Literal["features"] = "features"
    device: str | None = None

    def __post_init__(self) -> None:
        for name, value in self.params().items():
            fits, what = RULES.get(name, (lambda _: True, ""))
            if not fits(value):
                close = nearest(value, PRECISIONS) if name == "precision" else ""
                raise ValueError(f"{name} must be {what}, got {value!r}{close}")

    def params(self) -> dict[str, Any]:
        """The dataclass fields, but for where it runs."""
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if name != "device"}

    def rounds(self, task: int) -> int:
        """One."""
        return 1

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
