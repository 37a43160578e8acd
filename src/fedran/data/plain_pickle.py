"""Pickles of plain data, read without running anything they ask for.

A pickle is a program. Here its instructions may build dicts, lists, text, numbers and arrays of
bytes, and nothing else: the names that NumPy's arrays refer to lead to stand-ins of this file, and
every other name is refused before it is looked up.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedran.core.errors import Refused

MAX_BYTES = 2**30


def load_plain(path: str | Path) -> dict[str, Any]:
    """The dict in a pickle of plain data, with arrays of uint8; Refused for anything else."""
    path = Path(path)
    if path.stat().st_size > MAX_BYTES:
        raise Refused(f"{path}: size", f"at most {MAX_BYTES} bytes", path.stat().st_size)
    try:
        with path.open("rb") as file:
            content = _Plain(file, encoding="bytes").load()
    except Refused as reason:
        raise Refused(f"{path}: {reason.field}", reason.expected, reason.got, reason.hint) from None
    except Exception as reason:  # damaged pickles raise errors of every kind
        raise Refused(f"{path}", "a pickle of plain data", f"{reason}") from None
    if not isinstance(content, dict):
        raise Refused(f"{path}", "a pickled dict", type(content).__name__)
    return {_text(k): v.array if isinstance(v, _Array) else v for k, v in content.items()}


def _text(key: object) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


class _Array:
    """Stands for an array: called as ``_reconstruct``, then given the array's state."""

    array: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", b"u1", "uint8", b"uint8"):
            raise Refused("array", "uint8", getattr(dtype, "code", dtype))
        data = data.encode("latin-1") if isinstance(data, str) else bytes(data)
        if fortran or any(n < 0 for n in shape) or math.prod(shape) != len(data):
            raise Refused("array", f"{shape} bytes in rows", f"{len(data)} bytes")
        self.array = np.frombuffer(data, dtype=np.uint8).reshape(shape)


class _Dtype:
    """Stands for ``numpy.dtype``: remembers its code."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and flags, which one byte does not need."""


class _Latin1:
    """Stands for ``_codecs.encode``, by which newer pickles write bytes as text."""

    def __new__(cls, text: str, encoding: str) -> bytes:  # type: ignore[misc]
        if encoding != "latin1":
            raise Refused("pickle", "bytes written as latin1", encoding)
        return text.encode("latin-1")

    def __setstate__(self, state: object) -> None:
        """Nothing to set."""


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Latin1,
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise Refused(
                "pickle",
                "plain data only",
                f"a call of {module}.{name}",
                hint="do not open this file with anything else; get the official one",
            ) from None
