"""FedPFT: what clients send, what the server draws, and which classes it then knows."""

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from fedran_bench.methods.analytic.fedpft import ClassMixture, FedPFT, draw, unpack_mixtures
from helpers.toy_federation import make_toy


def mixtures_in(blob, toy, method):
    return list(unpack_mixtures(blob, method.components, toy.width, method.covariance))


def sent(toy, method, t=0, k=0):
    return mixtures_in(toy.uploads(method, t)[f"client-{k}"], toy, method)


def rows_of(toy, label, t=0, k=0):
    X, y = toy.tasks[t][k]
    return X[[c == label for c in y]].astype(np.float64)


@pytest.mark.parametrize("covariance", ["spherical", "diagonal"])
def test_one_component_is_the_mean_and_the_covariance_of_the_class(covariance):
    toy = make_toy(0, "mixed")
    found = sent(toy, FedPFT(covariance=covariance))
    assert {m.label for m in found} == set(toy.tasks[0][0][1])
    for m in found:
        X = rows_of(toy, m.label)
        S = np.cov(X.T, bias=True) + 1e-6 * np.eye(8)
        wanted = {"spherical": [np.trace(S) / 8], "diagonal": np.diag(S)}
        assert m.count == len(X)
        assert m.weights.tolist() == [1.0]
        assert np.allclose(m.means, X.mean(axis=0), rtol=1e-3, atol=1e-4)
        assert np.allclose(m.covariances, [wanted[covariance]], rtol=2e-3, atol=1e-4)


def test_several_components_are_those_of_scikit_learn_in_float16():
    toy = make_toy(1, rows=40)
    for m in sent(toy, FedPFT(components=3, covariance="diagonal")):
        model = GaussianMixture(3, covariance_type="diag", tol=1e-12, max_iter=10_000)
        model.set_params(random_state=0).fit(rows_of(toy, m.label))
        assert np.array_equal(m.weights, np.float16(model.weights_))
        assert np.array_equal(m.means, np.float16(model.means_))
        assert np.array_equal(m.covariances, np.float16(model.covariances_))


@pytest.mark.parametrize("covariance", ["spherical", "diagonal"])
def test_drawn_rows_have_the_moments_of_the_mixture(covariance):
    rng = np.random.default_rng(3)
    flat = {
        "spherical": np.array([[0.5], [2.0]]),
        "diagonal": rng.random((2, 4)) + 0.1,
    }[covariance]
    means, weights = 3 * rng.standard_normal((2, 4)), np.array([0.3, 0.7])
    mixture = ClassMixture("c", 40_000, weights, means, flat)
    rows = draw(mixture, np.random.RandomState(0)).astype(np.float64)
    mean = weights @ means
    spread = sum(
        w * (flat[k] * np.eye(4) + np.outer(means[k] - mean, means[k] - mean))
        for k, w in enumerate(weights)
    )
    assert rows.shape == (40_000, 4)
    assert np.allclose(rows.mean(axis=0), mean, atol=0.1)
    assert np.allclose(np.cov(rows.T), spread, atol=0.06 * np.abs(spread).max())


def test_a_class_with_no_more_rows_than_components_is_left_out():
    toy = make_toy(0, clients=1)
    X, y = toy.tasks[0][0]
    y = ["many"] * (len(y) - 3) + ["three"] * 3
    toy.tasks = [[(X, y)]]
    assert [m.label for m in sent(toy, FedPFT(components=2))] == ["many", "three"]
    few = FedPFT(components=3)
    assert [m.label for m in sent(toy, few)] == ["many"]
    assert toy.play(few).head.classes == ("many",)
    toy.tasks = [[(X[:1], ["lone"])]]
    with pytest.raises(ValueError, match="no task"):
        FedPFT().predict(toy.play(FedPFT()), toy.X_test)


@pytest.mark.parametrize("options", [{}, {"components": 2, "covariance": "diagonal"}])
def test_learns_the_classes_of_all_tasks(options):
    toy, method = make_toy(4, "mixed"), FedPFT(lr=0.01, **options)
    state = toy.play(method)
    X, y = toy.pooled()
    found = method.predict(state, X.astype(np.float32))
    assert np.mean([a == b for a, b in zip(found, y, strict=True)]) > 0.95
    mixtures = [m for blob in state.uploads for m in mixtures_in(blob, toy, method)]
    assert sum(m.count for m in mixtures) == state.head.diagnosis.n_rows


def test_the_formula_counts_two_bytes_per_parameter():
    assert FedPFT().formula(10, 3) == 2 * 3 * (10 + 1 + 1)
    assert FedPFT(components=5, covariance="diagonal").formula(10, 3) == 2 * 15 * (10 + 1 + 10)
    toy = make_toy(0)
    for options in ({}, {"components": 2, "covariance": "diagonal"}):
        method = FedPFT(**options)
        blob, mixtures = toy.uploads(method, 0)["client-0"], sent(toy, method)
        body = method.formula(8, len(mixtures))
        assert body < len(blob) < body + 700


def test_features_beyond_float16_are_an_error_at_the_client():
    toy = make_toy(0)
    toy.tasks[0] = [(X * 1e5, y) for X, y in toy.tasks[0]]
    with pytest.raises(ValueError, match="exceed float16; rescale"):
        toy.uploads(FedPFT(), 0)
