"""Estimators with few random features."""

import numpy as np
from sklearn.datasets import make_blobs

from fedran import FedRANClassifier

M = 96


def model(**options) -> FedRANClassifier:
    return FedRANClassifier(**{"out_features": M, **options})


def assert_same_model(a: FedRANClassifier, b: FedRANClassifier, X) -> None:
    """Equal labels; weights equal to what float32 sums leave of them."""
    np.testing.assert_array_equal(a.classes_, b.classes_)
    np.testing.assert_array_equal(a.predict(X), b.predict(X))
    W, V = a.head_.weights, b.head_.weights
    assert np.linalg.norm(W - V) < 1e-3 * np.linalg.norm(W)


def rows_of_blobs():
    """Rows and labels of five overlapping clusters, 300 to learn and 100 to test."""
    X, y = make_blobs(400, 6, centers=5, cluster_std=3.0, random_state=0)
    return X[:300], y[:300], X[300:], y[300:]
