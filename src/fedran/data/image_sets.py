"""Image datasets by name or by folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from fedran.core.errors import nearest
from fedran.data.cifar import cifar100_binary, cifar100_python
from fedran.data.image_folder import image_folder
from fedran.data.images import ImageSet
from fedran.data.packed import VARIABLE
from fedran.data.packed_images import PackedImages

NAMES = ("cifar100",)
_CIFAR_FOLDERS = ("cifar100", "cifar-100-binary", "cifar-100-python")


def load_images(name_or_path: str | Path) -> ImageSet:
    """The images of a known dataset (``"cifar100"``) or of a folder.

    A known dataset is looked for below the folder that FEDRAN_DATA names. A folder may hold
    ``train/<class>/`` and ``test/<class>/``, packed ``train*.npz`` and ``test.npz``, or CIFAR-100
    in either of its published layouts.
    """
    if str(name_or_path) in NAMES:
        return _cifar100()
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        raise ValueError(f"{path}: expected the folder that holds the images, got a file")
    raise FileNotFoundError(_unknown(str(name_or_path)))


def _cifar100() -> ImageSet:
    for folder in _candidates():
        found = _layout(folder)
        if found is not None:
            return found
    where = os.environ.get(VARIABLE)
    state = f"{VARIABLE}={where} holds none of them" if where else f"{VARIABLE} is not set"
    raise FileNotFoundError(
        "cifar100: expected data/cifar100/train_0.npz, cifar-100-binary or cifar-100-python below "
        f"the folder that {VARIABLE} names, but {state}; download 'CIFAR-100 binary version' "
        "from https://www.cs.toronto.edu/~kriz/cifar.html, unpack it there and set "
        f"{VARIABLE} to that folder"
    )


def _candidates() -> Iterator[Path]:
    root = os.environ.get(VARIABLE)
    if root:
        for name in _CIFAR_FOLDERS:
            yield Path(root).expanduser() / "data" / name
            yield Path(root).expanduser() / name


def _folder(folder: Path) -> ImageSet:
    """The dataset in a folder, or in the one folder of CIFAR-100 that it holds."""
    for place in (folder, *(folder / name for name in _CIFAR_FOLDERS)):
        found = _layout(place)
        if found is not None:
            return found
    return image_folder(folder)  # says what it misses


def _layout(folder: Path) -> ImageSet | None:
    """What lies in the folder, recognised by its names."""
    if (folder / "train").is_dir():
        return image_folder(folder)
    if (folder / "train.bin").is_file() and (folder / "test.bin").is_file():
        return cifar100_binary(folder)
    if (folder / "train").is_file() and (folder / "test").is_file():
        return cifar100_python(folder)
    packed = [p for p in folder.glob("train*.npz") if re.fullmatch(r"train(_\d+)?", p.stem)]
    if packed and (folder / "test.npz").is_file():
        packed.sort(key=lambda p: (len(p.stem), p.stem))  # train_10 after train_9
        train = PackedImages(packed)
        test = PackedImages([folder / "test.npz"])
        return ImageSet(folder.resolve().name, train, train.labels, test, test.labels)
    return None


def _unknown(name: str) -> str:
    guess = nearest(name.lower(), NAMES)
    return f"{name}: no such folder, and no dataset of that name{guess}; known: {', '.join(NAMES)}"
