"""The exact Gram method and its feature maps against a dense ridge."""

import numpy as np
import pytest

from fedran.core.features import RandomFeatures
from fedran_bench.methods.analytic.base import Projection
from fedran_bench.methods.analytic.gram_based import Exact
from helpers.bench.toy_federation import (
    assert_labels,
    distance,
    gram_and_sums,
    in_order,
    make_toy,
    random_features,
    ridge,
)

M = 40


def mapped(Z, features, seed):
    Z = Z.astype(np.float64)
    if features == "raw":
        return Z
    if features == "linear":
        return random_features(Z, M, seed, "relu") - random_features(-Z, M, seed, "relu")
    return random_features(Z, M, seed, features)


@pytest.mark.parametrize("features", ["relu", "cosine", "hellinger", "linear", "raw"])
@pytest.mark.parametrize("lam", [None, 50.0])
@pytest.mark.parametrize(("seed", "kind"), [(0, "int"), (1, "str"), (2, "mixed")])
def test_equals_the_dense_joint_ridge(features, lam, seed, kind):
    toy = make_toy(seed, kind)
    if features == "hellinger":
        toy.tasks = [[(np.abs(X), y) for X, y in task] for task in toy.tasks]
        toy.X_test = np.abs(toy.X_test)
    if features in ("raw", "linear"):
        method = Exact(M, features, lam=lam)
    else:
        method = Exact(M, kind=features, lam=lam)
    state = toy.play(method, seed)
    X, y = toy.pooled()
    H, classes = mapped(X, features, seed), in_order(y)
    wanted_lam = lam or 0.03 * sum(h @ h for h in H) / len(H)
    wanted = ridge(H, y, classes, wanted_lam)
    assert np.isclose(state.head.diagnosis.lam, wanted_lam, rtol=1e-5)
    assert distance(state.head.weights, wanted) < 1e-3
    assert distance(state.total.gram(), gram_and_sums(H, y, classes)[0]) < 1e-5
    scores = mapped(toy.X_test, features, seed) @ wanted
    assert_labels(method.predict(state, toy.X_test), scores, classes, clear=1e-2)


@pytest.mark.parametrize("upto", [1, 2])
def test_lambda_follows_the_rows_seen_so_far(upto):
    toy = make_toy(3)
    state = toy.play(Exact(M), upto=upto)
    X, y = toy.pooled(upto)
    H = random_features(X, M, 0)
    lam = 0.03 * np.mean(np.sum(H * H, axis=1))
    assert distance(state.head.weights, ridge(H, y, in_order(y), lam)) < 1e-3


def test_the_projection_is_the_relu_map_before_its_relu():
    Z = make_toy(0).X_test
    linear, random = Projection(8, M, seed=5), RandomFeatures(8, M, "relu", seed=5)
    assert np.array_equal(np.maximum(linear(Z), 0), random(Z))
    assert distance(linear(Z), mapped(Z, "linear", 5)) < 1e-6
    assert linear(Z).min() < 0
    assert (linear.in_features, linear.out_features) == (8, M)
