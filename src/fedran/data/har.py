"""Daily and Sports Activities (UCI): 19 activities, 8 people who are the natural clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedran.data.dataset import Dataset
from fedran.data.packed import load_arrays, require

TEST_FROM = 45
"""Segments 0 .. 44 of each person and activity train, 45 .. 59 test: later in time, same person."""


def har(path: str | Path) -> Dataset:
    """Simple statistics of 5-second segments, standardised; ``groups`` are the people.

    The file holds ``features`` (n, 450), ``labels``, ``subjects`` and ``segments``. Each column
    is standardised by mean and deviation over all training rows: in a federation that is one
    more exchange of 900 numbers before the first task, which the benchmark does not count.
    """
    path = Path(path)
    arrays = load_arrays(path)
    X = require(arrays, "features", path).astype(np.float32)
    y, people, segment = (require(arrays, n, path) for n in ("labels", "subjects", "segments"))
    if X.ndim != 2 or any(a.shape != X.shape[:1] for a in (y, people, segment)):
        raise ValueError(f"{path}: features must be (rows, columns), the others one entry a row")
    if not np.all(np.isfinite(X)):
        raise ValueError(f"{path}: features hold NaN or infinite values; repair such rows")
    test = segment >= TEST_FROM
    mean, deviation = X[~test].mean(axis=0), X[~test].std(axis=0)
    X = (X - mean) / np.where(deviation > 0, deviation, 1.0)
    return Dataset(
        "har-dsa19", "features", X[~test], y[~test], X[test], y[test], groups=people[~test]
    )
