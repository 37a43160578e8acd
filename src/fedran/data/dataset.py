"""A dataset in memory: rows and labels, split into training and test."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.data.images import Images

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
    """Whom each training row belongs to, where clients are given by nature."""
    images: Images | None = None
    """The training images behind the features, row by row."""
    test_images: Images | None = None
    """Those of the test rows."""
    source: Mapping[str, str] = field(default_factory=dict)
    """What made the features: backbone, weights (a hash), preprocessing."""
    seconds_per_row: float | None = None
    """The backbone's forward pass, as measured when the features were made."""

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            X, y = getattr(self, f"X_{part}"), getattr(self, f"y_{part}")
            if y.ndim != 1:
                raise ValueError(f"{self.name}: {part} labels must be a row, got shape {y.shape}")
            if len(X) != len(y):
                raise ValueError(f"{self.name}: {len(X)} {part} rows but {len(y)} labels")
        if self.X_train.shape[1:] != self.X_test.shape[1:]:
            raise ValueError(
                f"{self.name}: training rows of shape {self.X_train.shape[1:]}, test rows of "
                f"shape {self.X_test.shape[1:]}"
            )
        if self.groups is not None and self.groups.ndim != 1:
            raise ValueError(f"{self.name}: groups must be a row, got shape {self.groups.shape}")
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

    @cached_property
    def hash(self) -> str:
        """SHA-256 over all rows and labels."""
        sha = hashlib.sha256()
        for array in (self.X_train, self.y_train, self.X_test, self.y_test):
            sha.update(f"{array.dtype} {array.shape}".encode())
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()
