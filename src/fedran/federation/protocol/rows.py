"""Rows with labels in an ``.npz`` file: a site's task, or the server's validation set."""

from __future__ import annotations

import logging
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.labels import encode_labels

log = logging.getLogger(__name__)
UNLABELLED = ""
"""Stands for a missing label in files whose arrays cannot hold None."""
UNREADABLE = (ValueError, OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
"""Exceptions that NumPy raises for a foreign or damaged file."""


@dataclass(frozen=True)
class Rows:
    """Features (n, d), or images (n, height, width, 3) in uint8, with one label per row."""

    X: NDArray[Any]
    y: list[Any]
    """None where a label is missing."""

    def __post_init__(self) -> None:
        images = self.X.ndim == 4 and self.X.dtype == np.uint8 and self.X.shape[3] == 3
        if self.X.ndim != 2 and not images:
            raise Refused(
                "rows",
                "features (n, d) or images (n, height, width, 3) in uint8",
                f"{self.X.dtype} {self.X.shape}",
            )
        if len(self.y) != len(self.X):
            raise Refused("labels", f"{len(self.X)}, one per row", len(self.y))
        encode_labels(self.y, len(self.X))  # refuses values that cannot be labels

    @property
    def is_images(self) -> bool:
        """Whether a backbone has to extract features first."""
        return self.X.ndim == 4


def read_rows(path: Path) -> Rows:
    """Read an ``.npz`` file with ``labels`` and one of ``features``, ``images``."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            names = [n for n in ("features", "images") if n in file.files]
            if len(names) != 1 or "labels" not in file.files:
                expected = "arrays labels and one of features, images"
                raise Refused(path.name, expected, ", ".join(file.files))
            X, y = file[names[0]], file["labels"]
    except Refused:
        raise
    except UNREADABLE as reason:
        log.warning("%s: %s", path, reason)
        raise Refused(path.name, "an .npz file", type(reason).__name__) from None
    return Rows(X, none_if_missing(np.atleast_1d(y).tolist()))


def none_if_missing(labels: list[Any]) -> list[Any]:
    """Replace NaN and ``UNLABELLED`` by None.

    >>> none_if_missing(["cat", "", float("nan"), 3])
    ['cat', None, None, 3]
    """
    return [
        None if (isinstance(v, float) and v != v) or (isinstance(v, str) and v == UNLABELLED) else v
        for v in labels
    ]
