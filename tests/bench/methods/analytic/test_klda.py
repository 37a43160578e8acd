"""KLDA against Mahalanobis distances in the feature space, row after row in float64."""

import numpy as np
import pytest

from fedran_bench.methods.analytic.klda import KLDA, FourierFeatures
from helpers.bench.toy_federation import assert_labels, distance, in_order, make_toy


def fourier(Z, D, gamma, seed, member):
    """The features of one model, and what it draws."""
    random = np.random.RandomState([seed, member])
    omega = np.sqrt(2 * gamma) * random.standard_normal((Z.shape[1], D))
    return np.sqrt(2 / D) * np.cos(Z @ omega + 2 * np.pi * random.random_sample(D))


def closeness(toy, method, seed, upto=None):
    """Minus the squared Mahalanobis distances of the test rows from the class means, per model."""
    X, y = toy.pooled(upto)
    classes, found = in_order(y), []
    for member in range(method.members):
        options = method.out_features, method.gamma, seed, member
        H, T = fourier(X, *options), fourier(toy.X_test.astype(np.float64), *options)
        means = {c: H[[label == c for label in y]].mean(axis=0) for c in classes}
        S = sum(np.outer(h - means[c], h - means[c]) for h, c in zip(H, y, strict=True))
        P = np.linalg.pinv(S / (len(H) - len(classes)), hermitian=True)
        found.append([[-(t - means[c]) @ P @ (t - means[c]) for c in classes] for t in T])
    return np.array(found), classes, len(X) - len(classes)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("members", "kind"), [(1, "mixed"), (3, "int"), (3, "str")])
@pytest.mark.parametrize("upto", [1, 3])
def test_equals_the_mean_mahalanobis_distance_of_its_models(seed, members, kind, upto):
    toy = make_toy(seed, kind, rows=30)
    method = KLDA(out_features=12, gamma=0.2, members=members)
    state = toy.play(method, seed, upto)
    wanted, classes, _ = closeness(toy, method, seed, upto)
    assert list(state.head.classes) == classes
    assert_labels(method.predict(state, toy.X_test), wanted.mean(axis=0), classes)
    scores = state.head.scores(state.phi(toy.X_test))
    between = scores - scores.mean(axis=1, keepdims=True)
    wanted = wanted.mean(axis=0) / 2
    assert distance(between, wanted - wanted.mean(axis=1, keepdims=True)) < 1e-2


def test_with_many_rows_the_mean_of_probabilities_gives_the_same_labels():
    """As published: the logits are divided by the rows before their softmax."""
    toy = make_toy(1, rows=200, noise=2.0)
    method = KLDA(out_features=12, gamma=0.05, members=3)
    logits, classes, n = closeness(toy, method, 0)
    shares = np.exp(logits / n - (logits / n).max(axis=2, keepdims=True))
    shares = (shares / shares.sum(axis=2, keepdims=True)).mean(axis=0)
    found = method.predict(toy.play(method), toy.X_test)
    wanted = np.array(classes)[shares.argmax(axis=1)]
    assert np.mean(found == wanted) > 0.97


def test_products_of_features_are_the_kernel():
    Z = np.random.default_rng(0).standard_normal((30, 6)).astype(np.float32)
    H = FourierFeatures(6, 40_000, 0.1, members=1, seed=0)(Z)[:, :-1]
    squares = ((Z[:, None] - Z[None]) ** 2).sum(axis=2)
    assert np.abs(H @ H.T - np.exp(-0.1 * squares)).max() < 0.03


def test_one_row_per_class_gives_the_nearest_class_mean():
    toy = make_toy(1, clients=1)
    X = np.random.default_rng(5).standard_normal((4, 8)).astype(np.float32)
    toy.tasks = [[(X, ["a", "b", "c", "d"])]]
    method = KLDA(out_features=64, gamma=0.1, members=2)
    assert method.predict(toy.play(method), X[[2, 0, 3, 1]]).tolist() == ["c", "a", "d", "b"]
