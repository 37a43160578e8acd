"""CIFAR-100 as its authors publish it: records in train.bin, or pickled arrays.

A pickle is a program. Here its instructions may build dicts, lists, text, numbers and arrays of
bytes, and nothing else: the names that NumPy's arrays refer to lead to stand-ins in this file, and
every other name is refused before it is looked up.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.data.images import ImageSet

SIDE = 32
PIXELS = 3 * SIDE * SIDE
RECORD = 2 + PIXELS
CLASSES = 100
MAX_PICKLE_BYTES = 2**30


class RawImages:
    """32 x 32 images as rows of 3,072 bytes: the red values, then green, then blue."""

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def encoded(self, i: int) -> bytes:
        """The 3,072 bytes of image i."""
        return self.rows[i].tobytes()

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """Image i as (32, 32, 3)."""
        return np.ascontiguousarray(self.rows[i].reshape(3, SIDE, SIDE).transpose(1, 2, 0))


def cifar100_binary(folder: str | Path) -> ImageSet:
    """The folder ``cifar-100-binary`` with train.bin and test.bin.

    A record is a coarse label, a fine label and 3,072 bytes of pixels. Labels are the fine ones.
    """
    train, y_train = _binary(Path(folder) / "train.bin")
    test, y_test = _binary(Path(folder) / "test.bin")
    return ImageSet("cifar100", train, y_train, test, y_test)


def cifar100_python(folder: str | Path) -> ImageSet:
    """The folder ``cifar-100-python`` with the pickles train and test.

    The pickles are read without executing anything. Labels are the fine ones.
    """
    train, y_train = _pickled(Path(folder) / "train")
    test, y_test = _pickled(Path(folder) / "test")
    return ImageSet("cifar100", train, y_train, test, y_test)


def _binary(path: Path) -> tuple[RawImages, NDArray[np.int16]]:
    size = path.stat().st_size
    if size == 0 or size % RECORD:
        raise Refused(
            f"{path}: size",
            f"a multiple of {RECORD} bytes, one record per image",
            size,
            hint="download the file again",
        )
    records = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, RECORD)
    return RawImages(records[:, 2:]), _labels(records[:, 1], path)


def _pickled(path: Path) -> tuple[RawImages, NDArray[np.int16]]:
    content = _load_plain_pickle(path)
    rows, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != PIXELS:
        got = f"{type(rows).__name__} {getattr(rows, 'shape', '')}"
        raise Refused(f"{path}: data", f"uint8 rows of {PIXELS} pixels", got)
    if not isinstance(labels, list) or not all(type(y) is int for y in labels):
        raise Refused(f"{path}: fine_labels", "a list of whole numbers", type(labels).__name__)
    if len(labels) != len(rows):
        raise Refused(f"{path}: fine_labels", f"{len(rows)}, one per image", len(labels))
    return RawImages(rows), _labels(np.array(labels), path)


def _labels(labels: NDArray[Any], path: Path) -> NDArray[np.int16]:
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < CLASSES:
        got = f"{labels.min()} to {labels.max()}"
        raise Refused(f"{path}: labels", f"0 to {CLASSES - 1}", got, hint="download the file again")
    return labels.astype(np.int16)


def _load_plain_pickle(path: Path) -> dict[str, Any]:
    """The dict in a pickle of plain data and arrays of uint8. Anything else is refused."""
    if path.stat().st_size > MAX_PICKLE_BYTES:
        raise Refused(f"{path}: size", f"at most {MAX_PICKLE_BYTES} bytes", path.stat().st_size)
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file, encoding="bytes").load()
    except Refused as reason:
        raise Refused(f"{path}: {reason.field}", reason.expected, reason.got, reason.hint) from None
    except Exception as reason:  # damaged pickles raise errors of every kind
        raise Refused(f"{path}", "a pickle of plain data", f"{reason}") from None
    if not isinstance(content, dict):
        raise Refused(f"{path}", "a pickled dict", type(content).__name__)
    plain = {}
    for key, value in content.items():
        name = key.decode("latin-1") if isinstance(key, bytes) else str(key)
        plain[name] = value.array if isinstance(value, _Array) else value
    return plain


class _Array:
    """Stands for an array: built by ``_reconstruct``, then filled by ``__setstate__``."""

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
    """Stands for ``numpy.dtype`` and keeps its code."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and flags, which do not matter for one byte."""


class _Latin1:
    """Stands for ``_codecs.encode``, with which newer pickles write bytes as text."""

    def __new__(cls, text: str, encoding: str) -> bytes:  # type: ignore[misc]
        if encoding != "latin1":
            raise Refused("pickle", "bytes written as latin1", encoding)
        return text.encode("latin-1")

    def __setstate__(self, state: object) -> None:
        """Bytes have no further state."""


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Latin1,
}


class _PlainUnpickler(pickle.Unpickler):
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
