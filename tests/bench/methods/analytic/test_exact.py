"""The exact Gram method and its feature maps against a dense ridge."""

import numpy as np
import pytest

from fedran.core.features import RandomFeatures
from fedran_bench.methods.analytic import feature_maps
from fedran_bench.methods.analytic.feature_maps import Projection, Raw, WithBias
from fedran_bench.methods.analytic.gram_based import Exact
from helpers.toy_federation import (
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
    assert distance(method.gram(state)[1], gram_and_sums(H, y, classes)[0]) < 1e-5
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


@pytest.mark.parametrize("lam", [0.0, -1.0, float("nan"), float("inf")])
def test_lambda_must_be_positive_and_finite(lam):
    with pytest.raises(ValueError, match="lam must be positive"):
        Exact(M, lam=lam)


def test_features_must_be_known():
    with pytest.raises(ValueError, match="features must be one of random, linear, raw, got 'tanh'"):
        Exact(M, features="tanh")


def test_the_projection_is_the_relu_map_before_its_relu():
    Z = make_toy(0).X_test
    linear, random = Projection(8, M, seed=5), RandomFeatures(8, M, "relu", seed=5)
    assert np.array_equal(np.maximum(linear(Z), 0), random(Z))
    assert distance(linear(Z), mapped(Z, "linear", 5)) < 1e-6
    assert linear(Z).min() < 0
    assert (linear.in_features, linear.out_features) == (8, M)


def test_the_bias_is_a_last_column_of_ones():
    Z = make_toy(0).X_test
    H = WithBias(8)(Z)
    assert H.dtype == np.float32
    assert np.array_equal(H[:, :8], Z)
    assert np.array_equal(H[:, 8], np.ones(len(Z)))
    assert WithBias(8).out_features == 9


@pytest.mark.parametrize("phi", [Raw(8), WithBias(8), Projection(8, M, seed=1)])
def test_blocks_are_the_map_row_by_row(phi, monkeypatch):
    monkeypatch.setattr(feature_maps, "BLOCK_ROWS", 7)
    Z = make_toy(0).X_test[:30]
    found = np.zeros((30, phi.out_features))
    for rows, H in phi.blocks(Z):
        assert len(H) <= 7
        found[rows] += H
    assert np.allclose(found, phi(Z), atol=1e-5)


@pytest.mark.parametrize("phi", [Raw(8), WithBias(8), Projection(8, M, seed=1)])
def test_rows_of_another_width_are_refused(phi):
    with pytest.raises(ValueError, match="Z must have 8 columns"):
        phi(np.zeros((3, 9)))
