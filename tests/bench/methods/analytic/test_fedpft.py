"""FedPFT, and the softmax regression that trains its head."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from fedran_bench.methods.analytic.base import softmax_regression
from fedran_bench.methods.analytic.fedpft import ClassMixture, FedPFT, draw, unpack_mixtures
from helpers.bench.toy_federation import make_toy


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


def test_features_beyond_float16_are_an_error_at_the_client():
    toy = make_toy(0)
    toy.tasks[0] = [(X * 1e5, y) for X, y in toy.tasks[0]]
    with pytest.raises(ValueError, match="exceed float16; rescale"):
        toy.uploads(FedPFT(), 0)


def problem(seed, n=121, d=5, n_classes=4):  # 121: no gradient is zero but for rounding
    rng = np.random.default_rng(seed)
    codes = rng.integers(n_classes, size=n)
    X = (rng.standard_normal((n_classes, d))[codes] + rng.standard_normal((n, d))).astype("f4")
    return np.hstack([X, np.ones((n, 1), "f4")]), codes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("batch", "decay"), [(121, 0.0), (50, 0.1), (1, 0.01)])
def test_every_step_is_that_of_adamw_in_torch(seed, batch, decay):
    torch = pytest.importorskip("torch")
    X, codes = problem(seed)
    options = {"epochs": 3, "batch": batch, "lr": 0.02, "weight_decay": decay, "seed": seed}
    found = softmax_regression(X, codes, 4, **options)
    W = torch.zeros(6, 4, requires_grad=True)
    optimiser = torch.optim.AdamW([W], lr=0.02, weight_decay=decay)
    random = np.random.RandomState(seed)
    for _ in range(3):
        order = random.permutation(len(codes))
        for i in range(0, len(codes), batch):
            rows = order[i : i + batch]
            optimiser.zero_grad()
            scores = torch.tensor(X[rows]) @ W
            torch.nn.functional.cross_entropy(scores, torch.tensor(codes[rows])).backward()
            optimiser.step()
    assert np.allclose(found, W.detach().numpy(), atol=2e-5)
    moved = softmax_regression(torch.tensor(X), codes, 4, **options)
    assert isinstance(moved, torch.Tensor)
    assert np.allclose(found, moved.numpy(), atol=2e-5)


def test_large_scores_do_not_overflow():
    X, codes = problem(0)
    options = {"epochs": 2, "batch": 30, "weight_decay": 0.0, "seed": 0}
    W = softmax_regression(1e4 * X, codes, 4, lr=1.0, **options)
    assert np.all(np.isfinite(W))
