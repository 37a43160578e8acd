"""Exact STSA against a dense reference: unscaled random features, constant ridge, cosine head."""

import numpy as np
import pytest

from fedran_bench.methods.analytic.gram_based import STSA
from helpers.toy_federation import (
    assert_labels,
    distance,
    gram_and_sums,
    in_order,
    make_toy,
    relu_features,
    ridge,
    unit,
)

M = 40


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("lam", [1e6, 300.0])
@pytest.mark.parametrize("kind", ["int", "mixed"])
def test_equals_the_dense_solve_with_unit_columns(seed, lam, kind):
    toy = make_toy(seed, kind)
    method = STSA(M, lam)
    state = toy.play(method, seed)
    X, y = toy.pooled()
    classes = in_order(y)
    W = ridge(relu_features(X, M, seed), y, classes, lam)
    assert distance(state.head.weights, unit(W)) < 1e-4
    scores = np.array(
        [[h @ w / np.linalg.norm(w) for w in W.T] for h in relu_features(toy.X_test, M, seed)]
    )
    assert_labels(method.predict(state, toy.X_test), scores, classes)


def test_the_published_ridge_is_the_default():
    assert STSA().lam == 1e6
    assert make_toy().play(STSA(M)).head.diagnosis.lam == 1e6


def test_the_gram_is_the_sum_over_clients_and_tasks():
    toy = make_toy(2)
    method = STSA(M, 300.0)
    X, y = toy.pooled()
    G, _ = gram_and_sums(relu_features(X, M, 0), y, in_order(y))
    assert distance(method.gram(toy.play(method))[1], G) < 1e-5


def test_cosine_scores_differ_from_plain_ones_where_classes_are_unequal():
    toy = make_toy(2, noise=2.0)
    X, y = toy.tasks[0][0]
    toy.tasks[0][0] = (np.repeat(X, 20, axis=0), [c for c in y for _ in range(20)])
    method = STSA(M, 1e6)
    state = toy.play(method)
    X, y = toy.pooled()
    classes = in_order(y)
    W = ridge(relu_features(X, M, 0), y, classes, 1e6)
    H = relu_features(toy.X_test, M, 0)
    found = method.predict(state, toy.X_test)
    assert_labels(found, H @ unit(W), classes)
    plain = np.array(classes)[(H @ W).argmax(axis=1)]
    assert np.mean(found != plain) > 0.05
