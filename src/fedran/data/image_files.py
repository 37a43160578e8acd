"""Image files on disk: one folder per class, images packed into .npz files, CIFAR-100."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.data.arrays import open_arrays
from fedran.data.images import ImageSet, decode_image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
PACKED = "an .npz file of packed images"


class FolderImages:
    """A list of image files, which are read when they are asked for."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def encoded(self, i: int) -> bytes:
        """The bytes of file i."""
        return self.paths[i].read_bytes()

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """File i as (height, width, 3)."""
        return decode_image(self.encoded(i), str(self.paths[i]))


def image_folder(folder: str | Path) -> ImageSet:
    """Images below ``train/<class>/`` and ``test/<class>/`` (or ``val/<class>/``).

    The names of the class folders are the labels. Files are taken in sorted order, also from
    folders inside a class folder. Hidden files and files with other suffixes are ignored.
    """
    folder = Path(folder)
    test = next((folder / name for name in ("test", "val") if (folder / name).is_dir()), None)
    if not (folder / "train").is_dir() or test is None:
        raise Refused(
            str(folder),
            "folders train/<class>/ and test/<class>/ (or val/<class>/)",
            f"{sorted(p.name for p in folder.iterdir())[:10]}",
            hint="move the class folders into train, and some images of every class into test",
        )
    train_images, y_train = _labelled_files(folder / "train")
    test_images, y_test = _labelled_files(test)
    unknown = sorted(set(y_test.tolist()) - set(y_train.tolist()))
    if unknown:
        raise Refused(str(test), "classes that train has too", f"{unknown[:5]}")
    return ImageSet(folder.resolve().name, train_images, y_train, test_images, y_test)


def _labelled_files(part: Path) -> tuple[FolderImages, NDArray[np.str_]]:
    classes = sorted(p for p in part.iterdir() if not p.name.startswith(".") and p.is_dir())
    if not classes:
        raise Refused(str(part), "one folder per class", "none", hint="sort the images by class")
    paths: list[Path] = []
    labels: list[str] = []
    for folder in classes:
        found = _image_paths(folder)
        if not found:
            raise Refused(
                str(folder),
                f"images ({' '.join(SUFFIXES)})",
                "none",
                hint="remove the folder or put images into it",
            )
        paths += found
        labels += [folder.name] * len(found)
    return FolderImages(paths), np.array(labels)


def _image_paths(folder: Path) -> list[Path]:
    """Image files in a folder and the folders inside it.

    A link to a folder is refused. Following it might never end, and skipping it would leave images
    out without a message.
    """
    found = []
    for parent, folders, names in os.walk(folder):
        for name in folders:
            if (Path(parent) / name).is_symlink():
                raise Refused(f"{parent}/{name}", "a folder", "a link to one", hint="copy it here")
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = [name for name in names if not name.startswith(".")]
        found += [Path(parent) / name for name in visible if name.lower().endswith(SUFFIXES)]
    for path in found:
        if not path.is_file():
            got = "a link to a missing file" if path.is_symlink() else "a pipe or a device"
            raise Refused(str(path), "an image file", got, hint="remove it")
    return sorted(found)


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
