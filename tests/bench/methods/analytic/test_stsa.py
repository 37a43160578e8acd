"""STSA against a dense ridge, and STSA-E against its double loop."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from fedran_bench.methods.analytic.gram_based import STSA
from fedran_bench.methods.analytic.stsa_e import STSAE, STSAECorrected, chunks, weights
from helpers.bench.toy_federation import (
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


M = 32


def published_gram(toy, dummies, seed, corrected):
    """G_hat, task after task: A_c sum_j s_jc s_jc' / n_jc - B_c P_c P_c'."""
    G = np.zeros((M, M))
    for t, task in enumerate(toy.tasks):
        sums, counts = {}, {}
        for k, (X, y) in enumerate(task):
            part = chunks(len(X), dummies, seed, zlib.crc32(f"client-{k}/{t}".encode()))
            for h, c, j in zip(relu_features(X, M, seed), y, part, strict=True):
                cell = (c, k, int(j))
                sums[cell] = sums.get(cell, 0.0) + h
                counts[cell] = counts.get(cell, 0) + 1
        for c in {cell[0] for cell in sums}:
            mine = [cell for cell in sums if cell[0] == c]
            N, P = sum(counts[cell] for cell in mine), sum(sums[cell] for cell in mine)
            K = len(mine) if corrected else len(task) * dummies
            if K == 1:  # the published code divides by zero here
                G += np.outer(P, P) / N
                continue
            A, B = max(0, (N - 1) / (K - 1)), max(0, (N - K) / ((K - 1) * N))
            for cell in mine:
                G += A * np.outer(sums[cell], sums[cell]) / counts[cell]
            G -= B * np.outer(P, P)
    return G


def play(toy, dummies, corrected, seed=0, lam=1e3):
    method = (STSAECorrected if corrected else STSAE)(M, lam, dummies=dummies)
    state = toy.play(method, seed)
    return method, state, state.total.gram()


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("dummies", [1, 2, 4, 50])
@pytest.mark.parametrize(("seed", "kind"), [(0, "int"), (1, "mixed")])
def test_equals_the_double_loop(corrected, dummies, seed, kind):
    toy = make_toy(seed, kind)
    method, state, G = play(toy, dummies, corrected, seed)
    wanted = published_gram(toy, dummies, seed, corrected)
    assert distance(G, wanted) < 1e-5
    X, y = toy.pooled()
    classes = in_order(y)
    _, B = gram_and_sums(relu_features(X, M, seed), y, classes)
    W = unit(np.linalg.solve(wanted + 1e3 * np.eye(M), B))
    assert distance(state.head.weights, W) < 1e-3
    H = relu_features(toy.X_test, M, seed)
    assert_labels(method.predict(state, toy.X_test), H @ W, classes, clear=1e-2)


def test_singleton_chunks_give_the_exact_gram_when_corrected():
    toy = make_toy(3)
    dummies = 6
    for task in toy.tasks:
        task[:] = [
            (X[:dummies], y[:dummies]) if len(X) >= dummies else (X[:0], y[:0]) for X, y in task
        ]
    X, y = toy.pooled()
    G, _ = gram_and_sums(relu_features(X, M, 0), y, in_order(y))
    assert distance(play(toy, dummies, True)[2], G) < 1e-5
    assert distance(play(toy, dummies, False)[2], G) > 0.2


@pytest.mark.parametrize("corrected", [False, True])
def test_a_single_chunk_does_not_divide_by_zero(corrected):
    toy = make_toy(0, clients=1)
    _, state, G = play(toy, 1, corrected)
    wanted = np.zeros((M, M))
    for task in toy.tasks:
        ((X, y),) = task
        for c in set(y):
            H = relu_features(X[[label == c for label in y]], M, 0)
            wanted += np.outer(H.sum(axis=0), H.sum(axis=0)) / len(H)
    assert distance(G, wanted) < 1e-5
    assert np.all(np.isfinite(state.head.weights))


@pytest.mark.parametrize("N", [2, 9, 40])
@pytest.mark.parametrize("K", [2, 5, 9])
def test_weights_turn_the_unbiased_covariance_into_the_gram(N, K):
    rng = np.random.default_rng(N + K)
    n = rng.multinomial(max(N - K, 0), np.ones(K) / K) + 1
    means = rng.standard_normal((K, 3))
    total, N = sum(n[j] * means[j] for j in range(K)), int(n.sum())
    mean = total / N
    S = sum(n[j] * np.outer(means[j] - mean, means[j] - mean) for j in range(K)) / (K - 1)
    wanted = (N - 1) * S + N * np.outer(mean, mean)
    A, B = weights(N, K)
    found = A * sum(n[j] * np.outer(means[j], means[j]) for j in range(K))
    assert np.allclose(found - B * np.outer(total, total), wanted)


@pytest.mark.parametrize(("n", "dummies"), [(20, 4), (23, 4), (7, 7), (50, 1), (99, 10)])
def test_chunks_have_equal_sizes_and_the_last_takes_what_remains(n, dummies):
    sizes = np.bincount(chunks(n, dummies, 0, 5), minlength=dummies)
    assert sizes[:-1].tolist() == [n // dummies] * (dummies - 1)
    assert sizes[-1] == n // dummies + n % dummies
    assert not np.array_equal(chunks(n, dummies, 0, 5), chunks(n, dummies, 0, 6)) or dummies == 1
