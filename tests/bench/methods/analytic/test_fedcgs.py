"""FedCGS against its formula on the pooled rows."""

import numpy as np
import pytest

from fedran_bench.methods.analytic.gaussian import FedCGS
from helpers.bench.toy_federation import assert_labels, distance, in_order, make_toy


def reference(X, y):
    """W (d, C), b (C,) and the classes, with the covariance of all rows."""
    classes = in_order(y)
    P = np.linalg.pinv(np.cov(X.T), hermitian=True, rcond=1e-6)
    W, b = [], []
    for c in classes:
        rows = X[[label == c for label in y]]
        m = rows.mean(axis=0)
        W.append(P @ m)
        b.append(np.log(len(rows) / len(X)) - m @ P @ m / 2)
    return np.array(W).T, np.array(b), classes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["int", "str", "mixed"])
@pytest.mark.parametrize("upto", [1, 3])
def test_equals_its_formula_on_the_pooled_rows(seed, kind, upto):
    toy = make_toy(seed, kind)
    state = toy.play(FedCGS(), upto=upto)
    W, b, classes = reference(*toy.pooled(upto))
    assert list(state.head.classes) == classes
    assert distance(state.head.weights[:-1], W) < 1e-4
    assert distance(state.head.weights[-1], b) < 1e-4
    scores = toy.X_test.astype(np.float64) @ W + b
    assert_labels(FedCGS().predict(state, toy.X_test), scores, classes)


def test_a_constant_column_and_a_copied_one_are_no_directions():
    toy = make_toy(0)
    for task in toy.tasks:
        for k, (X, y) in enumerate(task):
            task[k] = (np.hstack([X, X[:, :1], np.full((len(X), 1), 7.0, np.float32)]), y)
    toy.X_test = np.hstack([toy.X_test, toy.X_test[:, :1], np.full((200, 1), 7.0, np.float32)])
    state = toy.play(FedCGS())
    assert "8 of 10 directions" in state.head.diagnosis.route
    W, b, classes = reference(*toy.pooled())
    assert distance(state.head.weights[:-1], W) < 1e-3
    scores = toy.X_test.astype(np.float64) @ W + b
    assert_labels(FedCGS().predict(state, toy.X_test), scores, classes)


def test_rows_that_are_all_equal_give_the_nearest_mean():
    toy = make_toy(0)
    toy.tasks[0] = [(0 * X + 1, y) for X, y in toy.tasks[0]]
    state = toy.play(FedCGS(), upto=1)
    assert np.all(np.isfinite(state.head.weights))


def test_features_beyond_float32_are_an_error_at_the_client():
    toy = make_toy(0)
    toy.tasks[0] = [(X * np.float32(1e25), y) for X, y in toy.tasks[0]]
    with pytest.raises(ValueError, match="rescale the features"):
        toy.uploads(FedCGS(), 0)
