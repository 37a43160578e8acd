"""Images packed into .npz files: encoded one after the other, with offsets and labels."""

from __future__ import annotations

import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.data.decode import decode_image


class PackedFile:
    """One file with ``blob`` (bytes), ``offsets`` (n + 1), ``labels`` (n), ``classes``.

    Image i is ``blob[offsets[i]:offsets[i + 1]]``. The small arrays are read and checked at once,
    the blob when the first image is asked for.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.offsets = self._array("offsets")
        self.labels = _labels(self._array("labels"))
        self.classes = self._array("classes")
        self._check()

    def __len__(self) -> int:
        return len(self.labels)

    def encoded(self, i: int) -> bytes:
        """Image i as it is stored."""
        return self._blob[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def _array(self, name: str) -> NDArray[Any]:
        try:
            with self.path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                return file[name]
        except KeyError:
            found = f"a file without {name!r}"
        except (ValueError, zipfile.BadZipFile, zlib.error, EOFError) as reason:
            found = f"{reason}"
        raise Refused(str(self.path), "an .npz file of packed images", found)

    @cached_property
    def _blob(self) -> NDArray[np.uint8]:
        return self._array("blob")

    def _check(self) -> None:
        n, offsets = len(self.labels), self.offsets
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) != n + 1:
            raise self._refused(
                "offsets", f"{n + 1} whole numbers", f"{offsets.dtype} {offsets.shape}"
            )
        size = self._blob_size()
        steps = np.diff(offsets.astype(np.int64))
        if offsets[0] != 0 or offsets[-1] > size or (steps <= 0).any():
            raise self._refused(
                "offsets",
                f"an ascent from 0 to at most the {size} bytes of the blob",
                f"{offsets[0]} to {offsets[-1]}, smallest step {steps.min(initial=0)}",
            )
        if self.labels.dtype.kind == "i" and n:
            low, high = self.labels.min(), self.labels.max()
            if low < 0 or high >= len(self.classes):
                raise self._refused(
                    "labels", f"0 to {len(self.classes) - 1}, the classes named", f"{low} to {high}"
                )

    def _blob_size(self) -> int:
        """The blob's length from its header, without reading it."""
        shape, dtype = _header(self.path, "blob")
        if len(shape) != 1 or dtype != np.uint8:
            raise self._refused("blob", "a row of uint8", f"{dtype} {shape}")
        return shape[0]

    def _refused(self, name: str, expected: str, got: str) -> Refused:
        return Refused(f"{self.path}: {name}", expected, got, hint="get the file again")


class PackedImages:
    """The images of several packed files, one file after the other."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        if not paths:
            raise ValueError("expected at least one packed image file, got none")
        self.files = [PackedFile(p) for p in paths]
        self._ends = list(accumulate(len(f) for f in self.files))
        for file in self.files[1:]:
            if not np.array_equal(file.classes, self.files[0].classes):
                raise Refused(
                    f"{file.path}: classes",
                    f"those of {self.files[0].path}",
                    "others",
                    hint="pack both files with the same list of classes",
                )

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def labels(self) -> NDArray[Any]:
        """The label of each image."""
        return np.concatenate([f.labels for f in self.files])

    def encoded(self, i: int) -> bytes:
        """Image i as it is stored."""
        file, row = self._place(i)
        return file.encoded(row)

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """Image i as (height, width, 3)."""
        file, row = self._place(i)
        return decode_image(file.encoded(row), f"{file.path}: image {row}")

    def _place(self, i: int) -> tuple[PackedFile, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"image {i} of {len(self)}")
        k = bisect_right(self._ends, i)
        return self.files[k], i - (self._ends[k - 1] if k else 0)


def _labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as stored, but signed: differences of unsigned ones wrap around."""
    return (
        labels.astype(np.promote_types(labels.dtype, np.int8))
        if labels.dtype.kind == "u"
        else labels
    )


def _header(path: Path, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            raise Refused(str(path), "an .npz file of packed images", f"a file without {name!r}")
        with archive.open(f"{name}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read is None:
                raise Refused(f"{path}: {name}", ".npy version 1.0 or 2.0", f"{version}")
            shape, _, dtype = read(file)
            return shape, dtype
