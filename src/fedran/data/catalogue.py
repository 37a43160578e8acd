"""Datasets by name or path: ``load_dataset`` for any dataset, ``load_images`` for images."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedran.core.errors import Refused, nearest
from fedran.data.dataset import Dataset, image_dataset
from fedran.data.feature_file import (
    held_out,
    images_of,
    load_arrays,
    read_feature_file,
    require,
)
from fedran.data.image_files import PackedImages, cifar100_binary, image_folder
from fedran.data.images import ArrayImages, ImageSet, Range
from fedran.data.rows import LABEL, is_table

VARIABLE = "FEDRAN_DATA"
"""The environment variable that names the folder with all datasets."""
CIFAR_FOLDERS = ("cifar100", "cifar-100-binary")
IMAGE_SETS = {
    "cifar100": (
        CIFAR_FOLDERS,
        "download 'CIFAR-100 binary version' from https://www.cs.toronto.edu/~kriz/cifar.html and "
        "unpack it there",
    ),
    "vtab50": (
        ("vtab50",),
        "put train.npz and test.npz, or train/<class>/ and test/<class>/, there",
    ),
}
"""Folders in which the images of known datasets are looked up, and how to provide them."""

CIFAR = "features of CIFAR-100: make them with `fedran features cifar100`"
CLINC = "sentence embeddings of CLINC150: arrays train, test, train_labels, test_labels"
VTAB = "features of 50 classes of 5 VTAB domains: make them with `fedran features FOLDER`"
DSA = (
    "statistics of the UCI 'Daily and Sports Activities' data, archive.ics.uci.edu dataset 256: "
    "arrays features, labels, subjects, segments"
)


def load_dataset(name: str, label: str = LABEL) -> Dataset:
    """A dataset of ``DATASETS``, a feature file (``.npz``), a table, or a folder of images.

    A relative file is looked up in the current folder, then below FEDRAN_DATA. A folder holds
    images without features (see ``load_images``) for methods that train a network. ``label`` is the
    column of labels in a table.

    >>> load_dataset("digits").name
    'digits'
    """
    if name in DATASETS:
        return DATASETS[name]()
    path = Path(name)
    if path.suffix == ".npz" or is_table(path):
        if not path.is_file() and not path.is_absolute():
            if not os.environ.get(VARIABLE):
                raise FileNotFoundError(
                    f"{name}: no such file in the current folder; {VARIABLE} may name another "
                    "folder with data and is not set"
                )
            path = data_file(name, "made by `fedran features`")
        dataset, images = read_feature_file(path, label=label), images_of(path)
        return dataset if images is None else _with_images(dataset, images)
    if path.is_dir():
        return image_dataset(load_images(name))
    raise ValueError(
        f"no dataset {name!r}{nearest(name, DATASETS)}; expected one of {', '.join(DATASETS)} "
        "or the path of a feature file (.npz), of a table (.csv, .parquet) or of a folder of images"
    )


def load_images(name_or_path: str | Path, values: Range | None = None) -> ImageSet:
    """The images of a known dataset (``"cifar100"``, ``"vtab50"``) or of a folder.

    A known dataset is looked up below the folder that FEDRAN_DATA names. A folder may hold image
    files in any layout (see ``image_folder``, which takes ``values``), packed ``train*.npz`` and
    ``test.npz``, or the binary version of CIFAR-100.
    """
    name = str(name_or_path)
    if name in IMAGE_SETS:
        return _known_images(name)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        for folder in (path, *(path / below for below in CIFAR_FOLDERS)):
            found = _images_in(folder, values)
            if found is not None:
                return found
        return image_folder(path, values)
    if path.is_file():
        raise ValueError(f"{path}: expected the folder that holds the images, got a file")
    raise FileNotFoundError(
        f"{name}: no such folder, and no dataset of that name{nearest(name.lower(), IMAGE_SETS)}; "
        f"known: {', '.join(IMAGE_SETS)}"
    )


def data_file(relative: str, what: str = "") -> Path:
    """The file below FEDRAN_DATA, or a FileNotFoundError that says how to provide it."""
    folder = os.environ.get(VARIABLE)
    note = f" ({what})" if what else ""
    if not folder:
        raise FileNotFoundError(
            f"{VARIABLE} is not set; set it to the folder that holds {relative}{note}, "
            f"for example {VARIABLE}=~/fedran-data"
        )
    path = Path(folder).expanduser() / relative
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; put {relative}{note} below {VARIABLE}={folder}"
        )
    return path


def digits() -> Dataset:
    """The handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, used as features.

    Pixels are in 0 .. 1. Three in ten images of each class are for testing.

    >>> d = digits()
    >>> d.X_train.shape, d.X_test.shape
    ((1262, 64), (535, 64))
    """
    package = find_spec("sklearn")  # found but not imported, which takes longer than the demo
    assert package is not None
    assert package.origin is not None
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    X, y = (rows[:, :-1] / 16.0).astype(np.float32), rows[:, -1].astype(int)
    test = held_out(y)
    pixels = np.rint(255 * X).astype(np.uint8).reshape(-1, 8, 8)
    return Dataset(
        "digits",
        "features",
        X[~test],
        y[~test],
        X[test],
        y[test],
        images=ArrayImages(pixels[~test]),
        test_images=ArrayImages(pixels[test]),
        nonnegative=True,
    )


def har(path: str | Path) -> Dataset:
    """Daily and Sports Activities (UCI): 19 activities of 8 people, who are the natural clients.

    The file holds statistics of 5-second segments: ``features`` (n, 450), ``labels``,
    ``subjects`` and ``segments``. Each column is standardised with the mean and deviation of all
    training rows. In a federation this takes one more exchange of 900 numbers before the first
    task, which the benchmark does not count.
    """
    path = Path(path)
    arrays = load_arrays(path)
    X = require(arrays, "features", path).astype(np.float32)
    y, people, segment = (require(arrays, n, path) for n in ("labels", "subjects", "segments"))
    if X.ndim != 2 or any(a.shape != X.shape[:1] for a in (y, people, segment)):
        shapes = ", ".join(str(a.shape) for a in (X, y, people, segment))
        raise Refused(
            f"{path}", "features (rows, columns) and one entry per row in the others", shapes
        )
    if not np.all(np.isfinite(X)):
        raise Refused(f"{path}: features", "finite values", "NaN or infinity", "repair such rows")
    test = segment >= 45  # of 60: the same people at a later time
    mean, deviation = X[~test].mean(axis=0), X[~test].std(axis=0)
    X = (X - mean) / np.where(deviation > 0, deviation, 1.0)
    return Dataset(
        "har-dsa19",
        "features",
        X[~test],
        y[~test],
        X[test],
        y[test],
        groups=people[~test],
        nonnegative=False,
    )


FEATURE_FILES: dict[str, tuple[str, bool, str | None]] = {
    "cifar100-efficientnet_lite0": (CIFAR, True, "cifar100"),
    "vtab50-efficientnet_lite0": (VTAB, True, "vtab50"),
    "vtab50-vit_s14": (VTAB, False, None),
    "cifar100-vit_ti16": (CIFAR, False, "cifar100"),
    "vtab50-vit_ti16": (VTAB, False, "vtab50"),
    "cifar100-resnet18": (CIFAR, True, "cifar100"),
    "vtab50-resnet18": (VTAB, True, None),
    "clinc150-minilm": (CLINC, False, None),
}
"""What a known file holds, whether its features are never negative, which the file need not say,
and its images, which come with it if they are on this machine."""


def _feature_file(name: str) -> Dataset:
    what, nonnegative, images = FEATURE_FILES[name]
    dataset = read_feature_file(data_file(f"features/{name}.npz", what), nonnegative=nonnegative)
    return dataset if images is None else _with_images(dataset, images)


DATASETS: dict[str, Callable[[], Dataset]] = {
    "digits": digits,
    **{name: partial(_feature_file, name) for name in FEATURE_FILES},
    "cifar100": lambda: image_dataset(load_images("cifar100")),
    "har-dsa19": lambda: har(data_file("data/har_dsa19/features.npz", DSA)),
}


def _with_images(dataset: Dataset, images: str) -> Dataset:
    """The dataset with the images of its features, if they are on this machine."""
    try:
        found = load_images(images)
    except (ValueError, OSError, ImportError):
        return dataset
    if not np.array_equal(found.y_train, dataset.y_train):
        return dataset  # other images, or the same in another order
    test = found.test if np.array_equal(found.y_test, dataset.y_test) else None
    return replace(dataset, images=found.train, test_images=test)


def _images_in(folder: Path, values: Range | None = None) -> ImageSet | None:
    """The images in a folder with one of the known layouts."""
    if (folder / "train").is_dir():
        return image_folder(folder, values)
    if (folder / "train.bin").is_file() and (folder / "test.bin").is_file():
        return cifar100_binary(folder)
    packed = [p for p in folder.glob("train*.npz") if re.fullmatch(r"train(_\d+)?", p.stem)]
    if packed and (folder / "test.npz").is_file():
        packed.sort(key=lambda p: (len(p.stem), p.stem))  # train_10 after train_9
        train = PackedImages(packed)
        test = PackedImages([folder / "test.npz"])
        return ImageSet(folder.resolve().name, train, train.labels, test, test.labels)
    return None


def _known_images(name: str) -> ImageSet:
    """The images of a dataset of ``IMAGE_SETS``."""
    folders, advice = IMAGE_SETS[name]
    root = os.environ.get(VARIABLE)
    for folder in folders if root else ():
        for place in (f"{root}/data/{folder}", f"{root}/{folder}"):
            found = _images_in(Path(place).expanduser())
            if found is not None:
                return found
    state = f"{VARIABLE}={root} holds none of them" if root else f"{VARIABLE} is not set"
    raise FileNotFoundError(
        f"{name}: expected images in data/{' or data/'.join(folders)} below the folder that "
        f"{VARIABLE} names, but {state}; {advice} and set {VARIABLE} to that folder"
    )
