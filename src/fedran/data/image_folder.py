"""A folder of images: train/<class>/* and test/<class>/* (or val/<class>/*)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.data.decode import decode_image
from fedran.data.images import ImageSet

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
TEST_NAMES = ("test", "val")


class FolderImages:
    """Image files, read when they are asked for."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def encoded(self, i: int) -> bytes:
        """The bytes of file i."""
        return self.paths[i].read_bytes()

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """File i decoded, (height, width, 3)."""
        return decode_image(self.encoded(i), str(self.paths[i]))


def image_folder(folder: str | Path) -> ImageSet:
    """Images below ``train`` and ``test`` (or ``val``); the class folders' names are the labels.

    Files are taken in sorted order, folders inside a class included. Hidden names and files with
    other suffixes are left out.
    """
    folder = Path(folder)
    test = next((folder / name for name in TEST_NAMES if (folder / name).is_dir()), None)
    if not (folder / "train").is_dir() or test is None:
        raise Refused(
            str(folder),
            "folders train/<class>/ and test/<class>/ (or val/<class>/)",
            f"{sorted(p.name for p in folder.iterdir())[:10]}",
            hint="move some images of every class to test",
        )
    parts = {part: _read(part) for part in (folder / "train", test)}
    (train, y_train), (held_out, y_test) = parts.values()
    unknown = sorted(set(y_test.tolist()) - set(y_train.tolist()))
    if unknown:
        raise Refused(str(test), "classes that train has too", f"{unknown[:5]}")
    return ImageSet(folder.resolve().name, train, y_train, held_out, y_test)


def _read(part: Path) -> tuple[FolderImages, NDArray[np.str_]]:
    classes = sorted(p for p in part.iterdir() if _visible(p.name) and p.is_dir())
    if not classes:
        raise Refused(
            str(part), "one folder for each class", "none", hint="sort the images by class"
        )
    paths: list[Path] = []
    labels: list[str] = []
    for folder in classes:
        found = _images(folder)
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


def _images(folder: Path) -> list[Path]:
    found = []
    for place, folders, names in os.walk(folder):
        for name in folders:
            # Not followed, because a link to a folder above would never end; not skipped either,
            # because then images would be missing without a word.
            if (Path(place) / name).is_symlink():
                raise Refused(f"{place}/{name}", "a folder", "a link to one", hint="copy it here")
        folders[:] = filter(_visible, folders)
        found += [Path(place) / n for n in names if _visible(n) and n.lower().endswith(SUFFIXES)]
    for path in found:
        if not path.is_file():
            raise Refused(str(path), "an image file", "a link that leads nowhere", hint="remove it")
    return sorted(found)


def _visible(name: str) -> bool:
    return not name.startswith(".")
