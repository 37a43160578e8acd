"""Fed3R against a dense reference: a bias column, lambda 0.01, weights of unit norm."""

import numpy as np
import pytest

from fedran_bench.methods.analytic.gram_based import Fed3R
from helpers.bench.toy_federation import assert_labels, distance, in_order, make_toy, ridge


def with_bias(X):
    return np.array([[*row, 1.0] for row in X.astype(np.float64)])


def reference(toy, lam, upto=None):
    X, y = toy.pooled(upto)
    classes = in_order(y)
    columns = ridge(with_bias(X), y, classes, lam).T
    return np.stack([w / np.linalg.norm(w[:-1]) for w in columns], axis=1), classes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["int", "str", "mixed"])
def test_equals_the_dense_solve_with_bias_and_unit_weights(seed, kind):
    toy = make_toy(seed, kind)
    state = toy.play(Fed3R())
    wanted, classes = reference(toy, 0.01)
    assert state.head.weights.shape == (9, 6)
    assert list(state.head.classes) == classes
    assert distance(state.head.weights, wanted) < 1e-4
    assert state.head.diagnosis.lam == 0.01
    assert_labels(Fed3R().predict(state, toy.X_test), with_bias(toy.X_test) @ wanted, classes)


def test_the_bias_is_divided_by_the_norm_but_is_not_part_of_it():
    W = make_toy(4).play(Fed3R()).head.weights
    assert np.allclose(np.linalg.norm(W[:-1], axis=0), 1.0, atol=1e-6)
    assert np.abs(W[-1]).min() > 1e-4


def test_a_class_of_zero_rows_gets_the_smallest_norm_of_the_published_code():
    toy = make_toy(0)
    toy.tasks = [[(np.zeros((4, toy.width), dtype=np.float32), [1, 1, 2, 2])]]
    W = toy.play(Fed3R()).head.weights
    assert not W[:-1].any()
    assert np.allclose(W[-1], 2 / (4 + 0.01) / 1e-6)
