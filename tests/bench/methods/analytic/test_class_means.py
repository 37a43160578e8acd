"""FedNCM and FedCOF against their formulas written out in loops."""

from __future__ import annotations

import numpy as np
import pytest

from fedran_bench.methods.analytic.class_means import FedCOF, FedNCM
from helpers.bench.toy_federation import assert_labels, distance, in_order, make_toy, unit


def pooled_means(toy, upto=None):
    X, y = toy.pooled(upto)
    classes = in_order(y)
    means = []
    for c in classes:
        rows = [x for x, label in zip(X, y, strict=True) if label == c]
        means.append(sum(rows) / len(rows))
    return classes, means


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["int", "str", "mixed"])
@pytest.mark.parametrize("upto", [1, 3])
def test_the_weights_are_the_unit_means_of_the_pooled_rows(seed, kind, upto):
    toy = make_toy(seed, kind)
    head = toy.play(FedNCM(), upto=upto).head
    classes, means = pooled_means(toy, upto)
    assert list(head.classes) == classes
    assert head.diagnosis.n_rows == len(toy.pooled(upto)[1])
    assert np.allclose(head.weights.T, [m / np.linalg.norm(m) for m in means], atol=1e-5)


def test_a_class_whose_rows_cancel_is_never_nearest_and_gives_no_nan():
    toy = make_toy(0)
    X = np.array([[1.0, 2.0], [-1.0, -2.0], [3.0, 0.0]], dtype=np.float32)
    toy.tasks, toy.X_test = [[(X, ["null", "null", "one"])]], X[2:]
    assert FedNCM().predict(toy.play(FedNCM()), toy.X_test).tolist() == ["one"]


def class_means(toy, upto=None):
    """(count, mean) of each class in each upload."""
    found = {}
    for X, y in (part for task in toy.tasks[:upto] for part in task):
        for c in set(y):
            rows = [x.astype(np.float64) for x, label in zip(X, y, strict=True) if label == c]
            found.setdefault(c, []).append((len(rows), sum(rows) / len(rows)))
    return found


def reference(toy, gamma, upto=None):
    """G = sum_c (N_c - 1)(S_c + gamma I) + N mu mu', W_c = pinv(G) P_c, unit norm."""
    means = class_means(toy, upto)
    classes = in_order(means)
    d = toy.width
    G, P, N = np.zeros((d, d)), [], 0
    for c in classes:
        N_c = sum(n for n, _ in means[c])
        P_c = sum(n * m for n, m in means[c])
        S_c = np.zeros((d, d))
        for n, m in means[c]:
            S_c += n * np.outer(m - P_c / N_c, m - P_c / N_c)
        S_c /= max(1, len(means[c]) - 1)
        G += (N_c - 1) * (S_c + gamma * np.eye(d))
        P.append(P_c)
        N += N_c
    mu = sum(P) / N
    G += N * np.outer(mu, mu)
    return unit(np.stack([np.linalg.pinv(G) @ P_c for P_c in P], axis=1)), classes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["int", "str", "mixed"])
@pytest.mark.parametrize("gamma", [1.0, 0.1])
def test_equals_its_formula(seed, kind, gamma):
    toy = make_toy(seed, kind)
    method = FedCOF(gamma)
    state = toy.play(method)
    wanted, classes = reference(toy, gamma)
    assert list(state.head.classes) == classes
    assert distance(state.head.weights, wanted) < 1e-5
    scores = toy.X_test.astype(np.float64) @ wanted
    assert_labels(method.predict(state, toy.X_test), scores, classes)


def test_a_single_client_has_no_spread_between_means():
    toy = make_toy(1, clients=1)
    toy.tasks = toy.tasks[:1]
    (X, y), N = toy.tasks[0][0], len(toy.tasks[0][0][0])
    mu, classes = X.astype(np.float64).mean(axis=0), in_order(y)
    G = (N - len(classes)) * np.eye(toy.width) + N * np.outer(mu, mu)
    mine = [X[[label == c for label in y]].astype(np.float64).mean(axis=0) for c in classes]
    wanted = unit(np.linalg.solve(G, np.stack(mine, axis=1)))
    assert distance(toy.play(FedCOF()).head.weights, wanted) < 1e-5
    assert distance(reference(toy, 1.0)[0], wanted) < 1e-10


@pytest.mark.parametrize("upto", [1, 2, 3])
def test_a_class_that_comes_back_counts_every_upload_as_a_client(upto):
    toy = make_toy(3)
    weights = toy.play(FedCOF(), upto=upto).head.weights
    assert distance(weights, reference(toy, 1.0, upto)[0]) < 1e-5
    again = [c for c, parts in class_means(toy).items() if len(parts) > 3]
    assert len(again) == 1
