"""Image files on disk: folders of any layout, images packed into .npz files, CIFAR-100."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, shortened
from fedran.data.arrays import open_arrays
from fedran.data.images import ImageSet, Range, decode_image, is_dicom
from fedran.data.rows import UNLABELLED

SUFFIXES = (
    *(".bmp", ".dcm", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"),
)
PACKED = "an .npz file of packed images"


class FolderImages:
    """A list of image files, which are read when they are asked for."""

    def __init__(self, folder: Path, paths: list[Path], values: Range | None = None) -> None:
        self.paths, self.values = paths, values
        self.names = [path.relative_to(folder).as_posix() for path in paths]
        """The files as the folder names them."""

    def __len__(self) -> int:
        return len(self.paths)

    def encoded(self, i: int) -> bytes:
        """The bytes of file i."""
        return self.paths[i].read_bytes()

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """File i as (height, width, 3)."""
        return decode_image(self.encoded(i), str(self.paths[i]), self.values)


def image_folder(folder: str | Path, values: Range | None = None) -> ImageSet:
    """The images below a folder, in sorted order.

    The label of an image is the name of the folder inside ``folder`` that it is in; images that lie
    directly in ``folder`` have none. Folders ``train`` and ``test`` (or ``val``) hold such folders
    each, of any classes. Hidden files are ignored, and files that are no images are counted in
    ``skipped``. ``values`` are the black and the white of images with more than 8 bits.
    """
    folder = Path(folder)
    inside = [p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")]
    test = next((name for name in ("test", "val") if {"train", name} <= {*inside}), None)
    skipped: Counter[str] = Counter()
    if test is not None:
        skipped.update(Counter(_kind(p) for p in folder.iterdir() if p.is_file()))
        skipped.update(f"folder {name}" for name in inside if name not in ("train", "test", "val"))
    first = folder / "train" if test is not None or inside == ["train"] else folder
    train, y_train = _labelled_files(first, values, skipped)
    held_out, y_test = FolderImages(folder, []), y_train[:0]
    if test is not None:
        held_out, y_test = _labelled_files(folder / test, values, skipped)
    skipped.pop("", None)  # hidden files
    if not len(train) + len(held_out):
        found = shortened([f"{n} x {kind}" for kind, n in (+skipped).items()], 8) or "none"
        raise Refused(str(folder), f"images ({' '.join(SUFFIXES)})", found)
    name = folder.resolve().name
    return ImageSet(name, train, y_train, held_out, y_test, values, dict(+skipped))


def _labelled_files(
    part: Path, values: Range | None, skipped: Counter[str]
) -> tuple[FolderImages, NDArray[np.str_]]:
    """The images below a folder with their labels. Links to folders are not followed."""
    paths = []
    for parent, folders, names in os.walk(part):
        folders[:] = [name for name in folders if not name.startswith(".")]
        skipped["link to a folder"] += sum((Path(parent) / name).is_symlink() for name in folders)
        for path in (Path(parent) / name for name in names):
            kind = _kind(path)
            if kind in SUFFIXES:
                paths.append(path)
            else:
                skipped[kind] += 1
    paths.sort()
    inside = [path.relative_to(part).parts[:-1] for path in paths]
    labels = [parts[0] if parts else UNLABELLED for parts in inside]
    return FolderImages(part, paths, values), np.array(labels, dtype=str)


def _kind(path: Path) -> str:
    """The suffix of an image in ``SUFFIXES``, what else a file is, or "" if it is hidden."""
    if path.name.startswith("."):
        return ""
    if not path.is_file():
        return "link to a missing file" if path.is_symlink() else "pipe or device"
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return suffix
    with path.open("rb") as file:
        return ".dcm" if is_dicom(file.read(132)) else suffix or "file without a suffix"


class PackedFile:
    """One file with ``blob`` (bytes), ``offsets`` (n + 1), ``labels`` (n) and ``classes``.

    Image i is ``blob[offsets[i]:offsets[i + 1]]``. The small arrays are read and checked at once,
    the blob when the first image is asked for.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.offsets = self._array("offsets")
        labels = self._array("labels")
        if labels.dtype.kind == "u":  # differences of unsigned labels would wrap around
            labels = labels.astype(np.promote_types(labels.dtype, np.int8))
        self.labels = labels
        self.classes = self._array("classes")
        self._check_offsets()
        if labels.dtype.kind == "i" and len(labels):
            low, high, last = labels.min(), labels.max(), len(self.classes) - 1
            if low < 0 or high > last:
                raise self._refused("labels", f"0 to {last}, the classes named", f"{low} to {high}")

    def __len__(self) -> int:
        return len(self.labels)

    def encoded(self, i: int) -> bytes:
        """Image i as it is stored."""
        return self._blob[self.offsets[i] : self.offsets[i + 1]].tobytes()

    @cached_property
    def _blob(self) -> NDArray[np.uint8]:
        blob = self._array("blob")
        if blob.ndim != 1 or blob.dtype != np.uint8:
            raise self._refused("blob", "one dimension of uint8", f"{blob.dtype} {blob.shape}")
        if self.offsets[-1] > len(blob):
            expected = f"at most the {len(blob)} bytes of the blob"
            raise self._refused("offsets", expected, f"{self.offsets[-1]}")
        return blob

    def _array(self, name: str) -> NDArray[Any]:
        with open_arrays(self.path, PACKED) as file:
            if name in getattr(file, "files", ()):
                return file[name]
        raise Refused(str(self.path), PACKED, f"a file without {name!r}")

    def _check_offsets(self) -> None:
        n, offsets = len(self.labels), self.offsets
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) != n + 1:
            raise self._refused(
                "offsets", f"{n + 1} whole numbers", f"{offsets.dtype} {offsets.shape}"
            )
        if offsets[0] != 0 or (np.diff(offsets.astype(np.int64)) <= 0).any():
            raise self._refused("offsets", "increasing numbers from 0", "others")

    def _refused(self, name: str, expected: str, got: str) -> Refused:
        return Refused(f"{self.path}: {name}", expected, got, hint="download the file again")


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
                    f"the classes of {self.files[0].path}",
                    "other classes",
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
        file, row = self._locate(i)
        return file.encoded(row)

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """Image i as (height, width, 3)."""
        file, row = self._locate(i)
        return decode_image(file.encoded(row), f"{file.path}: image {row}")

    def _locate(self, i: int) -> tuple[PackedFile, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"image {i} of {len(self)}")
        k = bisect_right(self._ends, i)
        return self.files[k], i - (self._ends[k - 1] if k else 0)


class RawImages:
    """Images of CIFAR-100 as rows of 3,072 bytes: the red values, then green, then blue."""

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def encoded(self, i: int) -> bytes:
        """The 3,072 bytes of image i."""
        return self.rows[i].tobytes()

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """Image i as (32, 32, 3)."""
        return np.ascontiguousarray(self.rows[i].reshape(3, 32, 32).transpose(1, 2, 0))


def cifar100_binary(folder: str | Path) -> ImageSet:
    """CIFAR-100 in the folder ``cifar-100-binary`` with train.bin and test.bin.

    A record is a coarse label, a fine label and 3,072 bytes of pixels. Labels are the fine ones.
    """
    train, y_train = _cifar_records(Path(folder) / "train.bin")
    test, y_test = _cifar_records(Path(folder) / "test.bin")
    return ImageSet("cifar100", train=train, y_train=y_train, test=test, y_test=y_test)


def _cifar_records(path: Path) -> tuple[RawImages, NDArray[np.int16]]:
    size, hint = path.stat().st_size, "download the file again"
    if size == 0 or size % 3074:
        raise Refused(f"{path}: size", "a multiple of 3074 bytes, one record per image", size, hint)
    records = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, 3074)
    labels = records[:, 1].astype(np.int16)
    if labels.max() >= 100:
        raise Refused(f"{path}: labels", "0 to 99", f"up to {labels.max()}", hint)
    return RawImages(records[:, 2:]), labels
