"""The base class of a method, and a check that a class is a complete method."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import FunctionType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.methods.protocol import Claims, Method, Spec
from fedran.settings import Settings

HOW_TO = "docs/how-to/add-a-method.md"


class BaseMethod(Settings):
    """Defaults for a method with one round per task on frozen features.

    A subclass is a dataclass whose fields are its settings. It must have ``name`` and define
    ``init``, ``client``, ``aggregate`` and ``predict``. Everything else has a default here. The
    server's state may be anything; ``dump`` and ``load`` must be overridden unless it is a
    dictionary of NumPy arrays.
    """

    family: Literal["analytic", "trained", "reference"] = "analytic"
    input: Literal["features", "images"] = "features"
    device: str | None = None

    @property
    def claims(self) -> Claims:
        """It claims nothing but one round per task."""
        return Claims()

    @property
    def sends(self) -> str:
        """What a client uploads, as shown in tables."""
        return "not stated"

    @property
    def verified(self) -> str:
        """What it was compared with, as shown by ``fedran methods``."""
        return "no"

    def params(self) -> dict[str, Any]:
        """The fields of the dataclass without the device."""
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
        """The paper of the method gives no formula."""

    def broadcast(self, state: Any, task: int, round_: int) -> bytes:
        """Clients download nothing."""
        return b""

    def gram(self, state: Any) -> tuple[Callable[[Any], Any], Any] | None:
        """The server holds no Gram."""

    def embed(self, state: Any, X: NDArray[Any]) -> NDArray[Any] | None:
        """The features are frozen: there is no drift."""

    def dump(self, state: Any) -> bytes:
        """A state that is a dictionary of arrays, as bytes."""
        return arrays_to_bytes(state)

    def load(self, blob: bytes, spec: Spec, seed: int) -> Any:
        """The state that ``dump`` wrote."""
        return arrays_from_bytes(blob)

    def dump_client(self, cstate: Any) -> bytes:
        """Nothing to write: clients keep nothing that does not follow from the seed."""
        return b""

    def load_client(self, blob: bytes) -> Any:
        """Nothing to read: the next call starts from the seed."""


def arrays_to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Named arrays of numbers or text as bytes, for messages and states.

    >>> blob = arrays_to_bytes({"sums": np.ones((2, 3)), "labels": np.array(["a", "b"])})
    >>> arrays_from_bytes(blob)["labels"].tolist()
    ['a', 'b']
    """
    if not isinstance(arrays, Mapping):
        raise TypeError(
            f"expected a dictionary of arrays, got {type(arrays).__name__}; a method with another "
            "state overrides dump and load"
        )
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **{k: np.asarray(v) for k, v in arrays.items()})
    return out.getvalue()


def arrays_from_bytes(blob: bytes) -> dict[str, NDArray[Any]]:
    """Inverse of ``arrays_to_bytes``. Nothing in the bytes is executed."""
    with np.load(io.BytesIO(blob), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def require_method(method: Any, key: str) -> None:
    """ValueError unless ``method`` has every member of ``Method``, with fitting parameters."""
    missing, wrong = [], []
    for name, member in vars(Method).items():
        if name.startswith("_"):
            continue
        if not hasattr(method, name):
            missing.append(name)
        elif isinstance(member, FunctionType):
            expected = list(inspect.signature(member).parameters)[1:]
            if not _accepts(getattr(method, name), len(expected)):
                wrong.append(f"{name} must be a function of ({', '.join(expected)})")
    if missing:
        wrong.append(f"it lacks {', '.join(missing)}")
    if not wrong and not isinstance(method.claims, Claims):
        wrong.append(f"claims must be a Claims, not {method.claims!r}")
    for name, allowed in (
        ("family", ("analytic", "trained", "reference")),
        ("input", ("features", "images")),
    ):
        if name not in missing and getattr(method, name) not in allowed:
            wrong.append(f"{name} must be one of {', '.join(allowed)}")
    if wrong:
        raise ValueError(f"{key!r} is not a method of the benchmark: {'; '.join(wrong)} ({HOW_TO})")


def _accepts(function: Any, count: int) -> bool:
    """Whether a function can be called with so many positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True
