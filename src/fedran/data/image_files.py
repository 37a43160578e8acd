"""Image files on disk: folders of any layout, images packed into .npz files, CIFAR-100."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, shortened
from fedran.data.images import ArrayImages, ImageSet, Range, decode_image, is_dicom
from fedran.data.rows import UNLABELLED, open_arrays

SUFFIXES = (
    *(".bmp", ".dcm", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"),
)
PACKED = "an .npz file of packed images"
AGAIN = "download the file again"


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


class PackedImages:
    """Images in files with ``blob`` (bytes), ``offsets`` (n + 1), ``labels`` (n) and ``classes``.

    Image i of a file is ``blob[offsets[i]:offsets[i + 1]]``. The small arrays are read and checked
    at once, a blob when the first of its images is asked for.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        if not paths:
            raise ValueError("expected at least one packed image file, got none")
        self.paths = [Path(path) for path in paths]
        self.offsets, labels = [], []
        first = _packed(self.paths[0], "classes")
        for path in self.paths:
            classes = _packed(path, "classes")
            if not np.array_equal(classes, first):
                hint = "pack both files with the same list of classes"
                expected = f"the classes of {self.paths[0]}"
                raise Refused(f"{path}: classes", expected, "other classes", hint)
            labels.append(_packed(path, "labels"))
            self.offsets.append(_offsets(path, len(labels[-1])))
            if labels[-1].dtype.kind in "iu" and len(labels[-1]):
                low, high, last = labels[-1].min(), labels[-1].max(), len(classes) - 1
                if low < 0 or high > last:
                    named = f"0 to {last}, the classes named"
                    raise Refused(f"{path}: labels", named, f"{low} to {high}", AGAIN)
        self.labels = np.concatenate(labels)
        """The label of each image."""
        if self.labels.dtype.kind == "u":  # differences of unsigned labels would wrap around
            self.labels = self.labels.astype(np.promote_types(self.labels.dtype, np.int8))
        self._ends = list(accumulate(len(offsets) - 1 for offsets in self.offsets))
        self._blobs: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def encoded(self, i: int) -> bytes:
        """Image i as it is stored."""
        k, row = self._locate(i)
        if k not in self._blobs:
            blob, end = _packed(self.paths[k], "blob"), self.offsets[k][-1]
            if blob.ndim != 1 or blob.dtype != np.uint8 or len(blob) < end:
                expected = f"one dimension of uint8, at least {end} bytes"
                got = f"{blob.dtype} {blob.shape}"
                raise Refused(f"{self.paths[k]}: blob", expected, got, AGAIN)
            self._blobs[k] = blob
        return self._blobs[k][self.offsets[k][row] : self.offsets[k][row + 1]].tobytes()

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """Image i as (height, width, 3)."""
        k, row = self._locate(i)
        return decode_image(self.encoded(i), f"{self.paths[k]}: image {row}")

    def _locate(self, i: int) -> tuple[int, int]:
        """The file of an image and its number there."""
        if not 0 <= i < len(self):
            raise IndexError(f"image {i} of {len(self)}")
        k = bisect_right(self._ends, i)
        return k, i - (self._ends[k - 1] if k else 0)


def _packed(path: Path, name: str) -> NDArray[Any]:
    with open_arrays(path, PACKED) as file:
        if name in getattr(file, "files", ()):
            return file[name]
    raise Refused(str(path), PACKED, f"a file without {name!r}")


def _offsets(path: Path, n: int) -> NDArray[Any]:
    """Where the n images of a packed file begin, and the end of the last."""
    found = _packed(path, "offsets")
    if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) != n + 1:
        got = f"{found.dtype} {found.shape}"
        raise Refused(f"{path}: offsets", f"{n + 1} whole numbers", got, AGAIN)
    if found[0] != 0 or (np.diff(found.astype(np.int64)) <= 0).any():
        raise Refused(f"{path}: offsets", "increasing numbers from 0", "others", AGAIN)
    return found


def cifar100_binary(folder: str | Path) -> ImageSet:
    """CIFAR-100 in the folder ``cifar-100-binary`` with train.bin and test.bin.

    A record is a coarse label, a fine label, and 1,024 bytes of red, of green and of blue. Labels
    are the fine ones.
    """
    train, y_train = _cifar_records(Path(folder) / "train.bin")
    test, y_test = _cifar_records(Path(folder) / "test.bin")
    return ImageSet("cifar100", train=train, y_train=y_train, test=test, y_test=y_test)


def _cifar_records(path: Path) -> tuple[ArrayImages, NDArray[np.int16]]:
    size = path.stat().st_size
    if size == 0 or size % 3074:
        raise Refused(
            f"{path}: size", "a multiple of 3074 bytes, one record per image", size, AGAIN
        )
    records = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, 3074)
    labels = records[:, 1].astype(np.int16)
    if labels.max() >= 100:
        raise Refused(f"{path}: labels", "0 to 99", f"up to {labels.max()}", AGAIN)
    pixels = records[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return ArrayImages(pixels), labels
