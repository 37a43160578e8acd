"""Datasets by name or path, as a configuration or a command line gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedran.core.errors import nearest
from fedran.data.dataset import Dataset
from fedran.data.digits import digits
from fedran.data.har import har
from fedran.data.image_sets import load_images
from fedran.data.packed import data_file, packed_features
from fedran.data.pixel_arrays import image_dataset

CIFAR = "features of CIFAR-100: make them with `fedran features cifar100`"
VTAB = "features of 50 classes of 5 VTAB domains: make them with `fedran features FOLDER`"
DSA = (
    "statistics of the UCI 'Daily and Sports Activities' data, archive.ics.uci.edu dataset 256: "
    "arrays features, labels, subjects, segments"
)


def _below(relative: str, what: str) -> Callable[[], Dataset]:
    return lambda: packed_features(data_file(relative, what))


DATASETS: dict[str, Callable[[], Dataset]] = {
    "digits": digits,
    "cifar100-efficientnet_lite0": lambda: with_images(
        packed_features(data_file("features/cifar100-efficientnet_lite0.npz", CIFAR)), "cifar100"
    ),
    "vtab50-efficientnet_lite0": _below("features/vtab50-efficientnet_lite0.npz", VTAB),
    "vtab50-vit_s14": _below("features/vtab50-vit_s14.npz", VTAB),
    "cifar100": lambda: image_dataset(load_images("cifar100")),
    "har-dsa19": lambda: har(data_file("data/har_dsa19/features.npz", DSA)),
}


def with_images(dataset: Dataset, images: str | None) -> Dataset:
    """The same with the images beside the features, where they are on this machine."""
    if images is None:
        return dataset
    try:
        found = load_images(images)
    except (ValueError, OSError, ImportError):
        return dataset
    if not np.array_equal(found.y_train, dataset.y_train):
        return dataset  # other images, or another order: they do not belong together
    test = found.test if np.array_equal(found.y_test, dataset.y_test) else None
    return replace(dataset, images=found.train, test_images=test)


def _images_of(path: Path) -> str | None:
    """The images that a feature file says it was made from."""
    with path.open("rb") as raw:
        file = np.load(raw, allow_pickle=False)
        return str(file["images"]) if "images" in file.files else None


def load_dataset(name: str) -> Dataset:
    """A dataset of the catalogue, the feature file at a path that ends in ``.npz``, or a folder.

    A relative file is looked for here, then below FEDRAN_DATA. A folder holds images without
    features (``load_images`` says how): for methods that train a network.

    >>> load_dataset("digits").name
    'digits'
    """
    if name in DATASETS:
        return DATASETS[name]()
    if Path(name).suffix == ".npz":
        here = Path(name).is_file() or Path(name).is_absolute()
        path = Path(name) if here else data_file(name, "made by `fedran features`")
        return with_images(packed_features(path), _images_of(path))
    if Path(name).is_dir():
        return image_dataset(load_images(name))
    raise ValueError(
        f"no dataset {name!r}{nearest(name, DATASETS)}; expected one of {', '.join(DATASETS)} "
        "or the path of a feature file (.npz) or of a folder of images"
    )
