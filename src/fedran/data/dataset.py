"""A dataset in memory: rows and labels, split into training and test.

Rows are features, or images that a method trains a network on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.prepare import UnitKind, kind_for, require_nonnegative
from fedran.data.images import Images, ImageSet, stack_images

Kind = Literal["features", "images"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows of the same kind; labels are ints or strs."""

    name: str
    kind: Kind
    X_train: NDArray[Any]
    y_train: NDArray[Any]
    X_test: NDArray[Any]
    y_test: NDArray[Any]
    groups: NDArray[Any] | None = None
    """The owner of each training row (a person, a device), for natural clients."""
    images: Images | None = None
    """The images from which the training rows were computed."""
    test_images: Images | None = None
    """The images from which the test rows were computed."""
    source: Mapping[str, str] = field(default_factory=dict)
    """How the features were made: backbone, weights (a hash), preprocessing."""
    seconds_per_row: float | None = None
    """Duration of the backbone's forward pass, measured when the features were made."""
    nonnegative: bool | None = None
    """Whether the features are declared never negative; None: nothing is declared."""
    note: str = ""
    """What a user must be told before the rows are used."""
    columns: tuple[str, ...] = ()
    """Names of the features, of a table with a header."""

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            X, y = getattr(self, f"X_{part}"), getattr(self, f"y_{part}")
            if y.ndim != 1:
                raise ValueError(
                    f"{self.name}: {part} labels must have one dimension, got shape {y.shape}"
                )
            if len(X) != len(y):
                raise ValueError(f"{self.name}: {len(X)} {part} rows but {len(y)} labels")
            if self.nonnegative:
                why = "as this dataset declares features that are never negative"
                require_nonnegative(X, f"{self.name}: {part} rows", why)
        if self.X_train.shape[1:] != self.X_test.shape[1:]:
            raise ValueError(
                f"{self.name}: training rows of shape {self.X_train.shape[1:]}, test rows of "
                f"shape {self.X_test.shape[1:]}"
            )
        if self.groups is not None and self.groups.ndim != 1:
            raise ValueError(
                f"{self.name}: groups must have one dimension, got shape {self.groups.shape}"
            )
        for name in ("groups", "images", "test_images"):
            rows = getattr(self, name)
            part = "test" if name == "test_images" else "training"
            expected = len(self.X_test if part == "test" else self.X_train)
            if rows is not None and len(rows) != expected:
                raise ValueError(f"{self.name}: {len(rows)} {name} for {expected} {part} rows")
        unknown = set(np.unique(self.y_test)) - set(np.unique(self.y_train))
        if unknown:
            raise ValueError(
                f"{self.name}: test labels without training rows: {sorted(unknown)[:5]}"
            )

    @property
    def feature_kind(self) -> UnitKind:
        """The kind of random features that suits the declared sign of the features."""
        return kind_for(self.nonnegative)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over all rows and labels."""
        sha = hashlib.sha256()
        for array in (self.X_train, self.y_train, self.X_test, self.y_test):
            sha.update(f"{array.dtype} {array.shape}".encode())
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()


def image_dataset(images: ImageSet) -> Dataset:
    """A dataset whose rows are the images themselves."""
    if not len(images.test) or "" in np.union1d(images.y_train, images.y_test).tolist():
        expected = "images in train/<class>/ and test/<class>/"
        raise Refused(images.name, expected, "images without a label, or none to test on")
    return Dataset(
        images.name,
        "images",
        stack_images(images.train),
        images.y_train,
        stack_images(images.test),
        images.y_test,
        images=images.train,
        test_images=images.test,
    )


def as_images(dataset: Dataset, size: int | None = None) -> Dataset:
    """The same dataset with images as rows, resized to squares of ``size`` pixels if given.

    A dataset of features without its images is a ValueError.
    """
    if dataset.kind == "images" and (size is None or dataset.X_train.shape[1:3] == (size, size)):
        return dataset
    if dataset.images is None or dataset.test_images is None:
        raise ValueError(
            f"{dataset.name} has features without images, or they were moved, and this method "
            "needs images: use a dataset that has them (docs/how-to/features.md), or "
            "network = 'head' where the method has this setting"
        )
    return replace(
        dataset,
        kind="images",
        X_train=stack_images(dataset.images, size),
        X_test=stack_images(dataset.test_images, size),
        source={},
        seconds_per_row=None,
        nonnegative=None,
    )
