"""GH-OFL: LDA against scikit-learn's, the Fisher subspace against generalised eigenvectors."""

import numpy as np
import pytest
from scipy.linalg import eigh
from sklearn.covariance import shrunk_covariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedran_bench.methods.analytic.gaussian import GHOFLLDA, GHOFLFisherMix, fisher_directions
from helpers.bench.toy_federation import distance, in_order, make_toy


def moments(X, y, classes):
    """Counts, class means and the scatter within the classes, row after row."""
    n = np.array([y.count(c) for c in classes])
    means = np.array([X[[label == c for label in y]].mean(axis=0) for c in classes])
    scatter = sum(
        np.outer(x - means[classes.index(c)], x - means[classes.index(c)])
        for x, c in zip(X, y, strict=True)
    )
    return n, means, scatter


def covariance(X, y, classes, shrinkage):
    _, _, scatter = moments(X, y, classes)
    return shrunk_covariance(scatter / (len(X) - len(classes)), shrinkage)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["int", "str", "mixed"])
@pytest.mark.parametrize("shrinkage", [0.05, 0.7])
@pytest.mark.parametrize("upto", [1, 3])
def test_lda_equals_that_of_scikit_learn_up_to_the_denominator(seed, kind, shrinkage, upto):
    toy = make_toy(seed, kind)
    state = toy.play(GHOFLLDA(shrinkage), upto=upto)
    X, y = toy.pooled(upto)
    classes = in_order(y)
    codes = [classes.index(c) for c in y]
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(X, codes)
    assert list(state.head.classes) == classes
    W = state.head.weights.astype(np.float64)
    # scikit-learn divides the scatter by N, GH-OFL by N - C.
    ratio = len(X) / (len(X) - len(classes))
    assert distance(ratio * W[:-1], lda.coef_.T) < 1e-5
    priors = np.log(lda.priors_)
    assert distance(ratio * (W[-1] - priors), lda.intercept_ - priors) < 1e-5


@pytest.mark.parametrize("method", [GHOFLLDA(), GHOFLFisherMix(rows_per_class=300)])
def test_one_row_per_class_gives_the_nearest_class_mean(method):
    toy = make_toy(1, clients=1)
    rng = np.random.default_rng(5)
    X = 10 * rng.standard_normal((4, 8)).astype(np.float32)
    toy.tasks = [[(X, ["a", "b", "c", "d"])]]
    near = X[[2, 0, 3, 1]] + 0.1 * rng.standard_normal((4, 8)).astype(np.float32)
    assert method.predict(toy.play(method), near).tolist() == ["c", "a", "d", "b"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shrinkage", [0.05, 0.5])
def test_fisher_directions_solve_the_generalised_eigenproblem(seed, shrinkage):
    toy = make_toy(seed, "mixed")
    X, y = toy.pooled()
    classes = in_order(y)
    n, means, _ = moments(X, y, classes)
    S = covariance(X, y, classes, shrinkage)
    centred = means - n @ means / n.sum()
    between = (centred.T * (n / n.sum())) @ centred
    values, wanted = eigh(between, S)
    total = toy.play(GHOFLLDA()).total
    V = fisher_directions(total, shrinkage, energy=1.0, most=128)
    assert V.shape == (8, 5)
    assert np.allclose(V.T @ S @ V, np.eye(5), atol=1e-4)
    assert np.allclose(np.abs(np.diag(V.T @ S @ wanted[:, ::-1][:, :5])), 1, atol=1e-3)
    for energy in (0.3, 0.8):
        shares = np.cumsum(values[::-1]) / values.sum()
        needed = 1 + int(np.sum(shares < energy))
        assert fisher_directions(total, shrinkage, energy, 128).shape[1] == needed
    assert fisher_directions(total, shrinkage, 1.0, 2).shape[1] == 2


def test_fishermix_approaches_lda_with_equal_priors():
    toy = make_toy(0, noise=4.0)
    mixed = GHOFLFisherMix(
        rows_per_class=3000, tau=1.0, epochs=30, batch=500, lr=0.02, weight_decay=0.0, energy=1.0
    )
    W = toy.play(mixed).head.weights.astype(np.float64)
    lda = toy.play(GHOFLLDA()).head.weights.astype(np.float64)
    y = toy.pooled()[1]
    classes = in_order(y)
    lda[-1] -= np.log([y.count(c) for c in classes])
    rows = np.hstack([toy.X_test, np.ones((200, 1))]).astype(np.float64)

    def between_classes(V):
        scores = rows @ V
        return scores - scores.mean(axis=1, keepdims=True)

    assert distance(between_classes(W), between_classes(lda)) < 0.1
