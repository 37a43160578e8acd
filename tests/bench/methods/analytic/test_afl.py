"""AFL against its printed law and against least squares over the pooled rows."""

import numpy as np
import pytest

from fedran_bench.methods.analytic.afl import AFL, AFLRidgeKept
from helpers.bench.toy_federation import assert_labels, distance, in_order, make_toy


def printed_law(Wu, Cu, Wv, Cv):
    """W = (I - Ru Cv + Ru Cv (Cu + Cv)^-1 Cv) Wu + the same with u and v exchanged."""
    one = np.eye(len(Cu))
    Ru, Rv, R = np.linalg.inv(Cu), np.linalg.inv(Cv), np.linalg.inv(Cu + Cv)
    left = one - Ru @ Cv + Ru @ Cv @ R @ Cv
    right = one - Rv @ Cu + Rv @ Cu @ R @ Cu
    return left @ Wu + right @ Wv


def one_hot(y, classes):
    Y = np.zeros((len(y), len(classes)))
    for i, c in enumerate(y):
        Y[i, classes.index(c)] = 1.0
    return Y


def published(toy, gamma):
    """Client after client by the printed law, then K gamma taken out, all in float64."""
    classes = in_order(toy.pooled()[1])
    W, C, K = None, None, 0
    for X, y in (part for task in toy.tasks for part in task if len(part[0])):
        F = X.astype(np.float64)
        Ck = F.T @ F + gamma * np.eye(F.shape[1])
        Wk = np.linalg.inv(Ck) @ F.T @ one_hot(y, classes)
        W, C, K = (Wk, Ck, 1) if W is None else (printed_law(W, C, Wk, Ck), C + Ck, K + 1)
    return W + K * gamma * np.linalg.inv(C - K * gamma * np.eye(len(C))) @ W


def least_squares(toy, upto=None):
    X, y = toy.pooled(upto)
    classes = in_order(y)
    return np.linalg.lstsq(X, one_hot(y, classes), rcond=1e-12)[0], classes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["int", "str", "mixed"])
def test_equals_the_published_sequence_and_joint_least_squares(seed, kind):
    toy = make_toy(seed, kind)
    head = toy.play(AFL()).head
    wanted, classes = least_squares(toy)
    assert list(head.classes) == classes
    assert distance(head.weights, wanted) < 1e-4
    assert distance(head.weights, published(toy, 1.0)) < 1e-4


@pytest.mark.parametrize("upto", [1, 2, 3])
def test_after_every_task_it_is_the_least_squares_of_the_rows_so_far(upto):
    toy = make_toy(5)
    wanted, classes = least_squares(toy, upto)
    state = toy.play(AFL(), upto=upto)
    assert list(state.head.classes) == classes
    assert distance(state.head.weights, wanted) < 1e-4
    scores = toy.X_test.astype(np.float64) @ wanted
    assert_labels(AFL().predict(state, toy.X_test), scores, classes)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("d", [100, 150])
def test_fewer_rows_than_features_give_the_shortest_solution(seed, d):
    toy = make_toy(seed, d=d, rows=8)
    assert len(toy.pooled()[0]) < d
    head = toy.play(AFL()).head
    assert distance(head.weights, least_squares(toy)[0]) < 1e-3
    assert f"{len(toy.pooled()[0])} of {d} directions" in head.diagnosis.route


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("smallest", [1e-2, 1e-3])
def test_weak_directions_that_rows_really_have_are_kept(seed, smallest):
    toy = make_toy(seed)
    scale = np.geomspace(1.0, smallest, toy.width).astype(np.float32)
    toy.tasks = [[(X * scale, y) for X, y in task] for task in toy.tasks]
    wanted, classes = least_squares(toy)
    state = toy.play(AFL())
    assert f"{toy.width} of {toy.width} directions" in state.head.diagnosis.route
    X, _ = toy.pooled()
    assert distance(X @ state.head.weights, X @ wanted) < 1e-3
    assert_labels(AFL().predict(state, toy.X_test * scale), toy.X_test * scale @ wanted, classes)


@pytest.mark.parametrize("gamma", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("upto", [1, 3])
def test_the_ridge_that_is_kept_is_gamma_for_every_upload_with_rows(gamma, upto):
    toy = make_toy(3)
    X, y = toy.pooled(upto)
    classes = in_order(y)
    uploads = sum(len(part) > 0 for task in toy.tasks[:upto] for part, _ in task)
    G = X.T @ X + uploads * gamma * np.eye(toy.width)
    wanted = np.linalg.solve(G, X.T @ one_hot(y, classes))
    head = toy.play(AFLRidgeKept(gamma), upto=upto).head
    assert distance(head.weights, wanted) < 1e-5
    assert head.diagnosis.lam == pytest.approx(uploads * gamma)
    assert distance(head.weights, toy.play(AFL(gamma), upto=upto).head.weights) > 1e-4
