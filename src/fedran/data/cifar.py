"""CIFAR-100 as its authors publish it: records in train.bin, or pickled arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.data.images import ImageSet
from fedran.data.plain_pickle import load_plain

SIDE = 32
PIXELS = 3 * SIDE * SIDE
RECORD = 2 + PIXELS
CLASSES = 100


class RawImages:
    """32 x 32 images as rows of 3,072 bytes: all red, then all green, then all blue."""

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

    They are read without running anything that a pickle could ask for. Labels are the fine ones.
    """
    train, y_train = _pickled(Path(folder) / "train")
    test, y_test = _pickled(Path(folder) / "test")
    return ImageSet("cifar100", train, y_train, test, y_test)


def _binary(path: Path) -> tuple[RawImages, NDArray[np.int16]]:
    size = path.stat().st_size
    if size == 0 or size % RECORD:
        raise Refused(
            f"{path}: size",
            f"a multiple of {RECORD} bytes, one record an image",
            size,
            hint="get the file again",
        )
    records = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, RECORD)
    return RawImages(records[:, 2:]), _labels(records[:, 1], path)


def _pickled(path: Path) -> tuple[RawImages, NDArray[np.int16]]:
    content = load_plain(path)
    rows, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != PIXELS:
        got = f"{type(rows).__name__} {getattr(rows, 'shape', '')}"
        raise Refused(f"{path}: data", f"uint8 rows of {PIXELS} pixels", got)
    if not isinstance(labels, list) or not all(type(y) is int for y in labels):
        raise Refused(f"{path}: fine_labels", "a list of whole numbers", type(labels).__name__)
    if len(labels) != len(rows):
        raise Refused(f"{path}: fine_labels", f"{len(rows)}, one for each image", len(labels))
    return RawImages(rows), _labels(np.array(labels), path)


def _labels(labels: NDArray[Any], path: Path) -> NDArray[np.int16]:
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < CLASSES:
        got = f"{labels.min()} to {labels.max()}"
        raise Refused(f"{path}: labels", f"0 to {CLASSES - 1}", got, hint="get the file again")
    return labels.astype(np.int16)
