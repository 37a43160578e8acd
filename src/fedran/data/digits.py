"""scikit-learn's bundled handwritten digits: 8 x 8 images whose pixels serve as features."""

from __future__ import annotations

import numpy as np

from fedran.data.dataset import Dataset
from fedran.data.pixel_arrays import ArrayImages

TEST_SHARE = 0.3
SPLIT_SEED = 0


def digits() -> Dataset:
    """1,797 digits of 64 pixels in 0 .. 1, three in ten of each class for testing.

    >>> d = digits()
    >>> d.X_train.shape, d.X_test.shape
    ((1262, 64), (535, 64))
    """
    from sklearn.datasets import load_digits  # takes a second to import

    X, y = load_digits(return_X_y=True)
    X = (X / 16.0).astype(np.float32)
    test = np.zeros(len(y), dtype=bool)
    rng = np.random.default_rng(SPLIT_SEED)
    for c in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == c))
        test[rows[: int(TEST_SHARE * len(rows))]] = True
    pixels = np.rint(255 * X).astype(np.uint8).reshape(-1, 8, 8)
    train, held = ArrayImages(pixels[~test]), ArrayImages(pixels[test])
    return Dataset(
        "digits", "features", X[~test], y[~test], X[test], y[test], images=train, test_images=held
    )
