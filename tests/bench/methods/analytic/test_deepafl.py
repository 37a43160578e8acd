"""DeepAFL against dense least squares on the pooled rows, layer by layer in float64."""

import numpy as np
import pytest
from scipy.special import ndtr

from fedran_bench.methods.analytic.deepafl import DeepAFL, projection, sandwiched
from helpers.bench.hostile import NAN, altered, at_first, frozen
from helpers.bench.toy_federation import assert_labels, distance, in_order, make_toy, ridge

M = 7


def one_hot(y, classes):
    return np.array([[float(c == label) for c in classes] for label in y])


def dense_layer(F, R, W, lam):
    """The minimiser of |R - F D W|^2 + lam |D|^2, as one ridge over all entries of D."""
    A = np.kron(W.T, F)  # vec(F D W) = (W' x F) vec(D), columns below each other
    d = np.linalg.solve(A.T @ A + lam * np.eye(A.shape[1]), A.T @ R.flatten("F"))
    return d.reshape((F.shape[1], W.shape[0]), order="F")


def through(Z, layers, seed):
    """Rows after some layers, and the input of the next one."""
    P, p = projection(Z.shape[1], M, seed, 0)
    X, F = np.tanh(Z @ P.astype(np.float64) + p), np.zeros((len(Z), M))
    for number, D in enumerate([np.zeros((M, M)), *layers]):
        X = X + F @ D
        P, p = projection(M, M, seed, number + 1)
        U = X @ P.astype(np.float64) + p
        F = U * ndtr(U)
    return X, F


def reference(toy, method, seed):
    """The layers from the rows of task 0."""
    Z, y = toy.pooled(1)
    classes, layers = in_order(y), []
    for _ in range(method.layers):
        X, F = through(Z, layers, seed)
        W = ridge(X, y, classes, method.lam)
        layers.append(dense_layer(F, one_hot(y, classes) - X @ W, W, method.layer_lam))
    return layers


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["int", "str", "mixed"])
@pytest.mark.parametrize("upto", [1, 3])
def test_layers_are_solved_in_task_0_and_the_classifier_on_all_rows(seed, kind, upto):
    toy, method = make_toy(seed, kind, noise=2.0), DeepAFL(M, 3, lam=0.5, layer_lam=0.05)
    state = toy.play(method, seed, upto)
    layers = reference(toy, method, seed)
    assert len(state.phi.layers) == 3
    for found, wanted in zip(state.phi.layers, layers, strict=True):
        assert distance(found, wanted) < 1e-3
    Z, y = toy.pooled(upto)
    classes = in_order(y)
    W = ridge(through(Z, layers, seed)[0], y, classes, 0.5)
    assert list(state.head.classes) == classes
    assert distance(state.head.weights, W) < 1e-3
    scores = through(toy.X_test.astype(np.float64), layers, seed)[0] @ W
    assert_labels(method.predict(state, toy.X_test), scores, classes)


def test_a_client_with_one_row_of_a_class_may_send_large_residuals_of_it():
    """Its other rows are taken for that class, which is common at the other client."""
    toy = make_toy(0, clients=2)
    X = np.random.default_rng(0).standard_normal((800, 8)).astype(np.float32)
    there, here = (X[:400], ["rare"] * 400), (X[400:], ["rare", *["usual"] * 399])
    toy.tasks = [[there, here]]
    method = DeepAFL(M, 2)
    for found, wanted in zip(toy.play(method).phi.layers, reference(toy, method, 0), strict=True):
        assert distance(found, wanted) < 1e-2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n_classes", [2, 5, 9])
def test_the_sandwiched_solution_is_the_dense_one(seed, n_classes):
    rng = np.random.default_rng(seed)
    F, R = rng.standard_normal((20, 6)), rng.standard_normal((20, n_classes))
    W = rng.standard_normal((6, n_classes))
    found = sandwiched(F.T @ F, F.T @ R, W, 0.3)
    assert distance(found, dense_layer(F, R, W, 0.3)) < 1e-9


def test_random_layers_are_those_of_a_linear_module():
    P, p = projection(400, 300, 0, 1)
    drawn = np.concatenate([P.ravel(), p]) * 20
    assert np.abs(drawn).max() <= 1
    assert abs(drawn.std() - 1 / np.sqrt(3)) < 0.01
    assert not np.array_equal(P, projection(400, 300, 0, 2)[0])


ATTACKS = {
    "NaN": {"gram": at_first(NAN)},
    "a class too few": {"classes": lambda c: c[:-1], "counts": [0, 0], "sums": lambda s: s[:-1]},
    "another kind": {"kind": "gram"},
    "too wide": {"sums": lambda s: np.concatenate([s, s[:, :1]], axis=1)},
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_hostile_sums_of_residuals_change_nothing(attack):
    toy, method, cstates = make_toy(0), DeepAFL(M, 2), {}
    state = method.init(toy.spec, 0)
    for round_ in (0, 1):
        message = method.broadcast(state, 0, round_)
        sent = toy.uploads(method, 0, 0, message, cstates)
        state = state if round_ else method.aggregate(state, 0, 0, sent)
    before = frozen(state)
    with pytest.raises(ValueError, match="expected"):
        method.aggregate(state, 0, 1, {**sent, "client-1": altered(sent["client-1"], **attack)})
    assert frozen(state) == before
