"""RanPAC against a dense grid search, LoRanPAC against dense SVDs, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from fedran_bench.methods.analytic import ranpac
from fedran_bench.methods.analytic.ranpac import LoRanPAC, RanPAC, search
from helpers.bench.loranpac_reference import pipeline, truncated
from helpers.bench.toy_federation import (
    distance,
    gram_and_sums,
    in_order,
    make_toy,
    relu_features,
    ridge,
)


def grid_errors(H, codes, n_classes, lowest=-8):
    """Mean squared error on the last fifth of each lambda fitted on the first four fifths."""
    n = int(0.8 * len(H))
    errors = {}
    for k in range(lowest, 9):
        W = ridge(H[:n], list(codes[:n]), list(range(n_classes)), 10.0**k)
        squares = 0.0
        for h, c in zip(H[n:], codes[n:], strict=True):
            squares += np.sum((h @ W - np.eye(n_classes)[c]) ** 2)
        errors[10.0**k] = squares / ((len(H) - n) * n_classes)
    return errors


def clear_minimum(errors):
    """The best lambda, where it leads the next by more than rounding."""
    best, second = sorted(errors.values())[:2]
    assert second - best > 1e-5 * best
    return min(errors, key=errors.get)


def rows(seed, n, M, noise, scale=1.0):
    rng = np.random.default_rng(seed)
    H = rng.standard_normal((n, M)) / np.sqrt(1 + np.arange(M) // 3)
    scores = H[:, :3] + noise * rng.standard_normal((n, 3))
    return scale * H, scores.argmax(axis=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("noise", "scale"), [(0.3, 1.0), (1.0, 1.0), (1.0, 30.0), (0.3, 0.1)])
@pytest.mark.parametrize(("n", "M"), [(300, 40), (60, 300)], ids=["many rows", "few rows"])
def test_search_equals_a_dense_grid_search(seed, noise, scale, n, M):
    H, codes = rows(seed, n, M, noise, scale)
    wanted = clear_minimum(grid_errors(H, codes, 3))
    assert search(H.astype(np.float32), codes, 3) == wanted


def test_a_singular_gram_still_gives_a_lambda():
    H, codes = rows(1, 300, 20, 1.0, scale=1e3)
    H = np.concatenate([H, H, H], axis=1)
    lam = search(H.astype(np.float32), codes, 3)
    errors = grid_errors(H, codes, 3, lowest=2)
    assert errors[lam] < 1.001 * min(errors.values())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("M", [24, 200], ids=["many rows", "few rows"])
def test_every_task_solves_all_rows_at_the_lambda_of_its_own(seed, M):
    toy = make_toy(seed, rows=20, noise=2.0)
    state = RanPAC(M).init(toy.spec, seed)
    for t in range(3):
        state = RanPAC(M).aggregate(state, t, 0, toy.uploads(RanPAC(M), t, seed))
        X, y = (
            np.concatenate([X for X, _ in toy.tasks[t]]),
            [c for _, y in toy.tasks[t] for c in y],
        )
        order = np.random.default_rng(t).permutation(len(X))
        codes = np.array([in_order(y).index(y[i]) for i in order])
        errors = grid_errors(relu_features(X[order], M, seed), codes, len(set(y)))
        assert state.lam == clear_minimum(errors)
        X, y = toy.pooled(t + 1)
        W = ridge(relu_features(X, M, seed), y, in_order(y), state.lam)
        assert state.head.diagnosis.lam == state.lam
        assert distance(state.head.weights, W) < 1e-3


def test_a_task_of_one_row_keeps_the_lambda_it_had():
    toy = make_toy(0)
    X, y = toy.tasks[1][0]
    toy.tasks[1] = [(X[:1], y[:1]), (X[:0], []), (X[:0], [])]
    before, after = toy.play(RanPAC(24), upto=1), toy.play(RanPAC(24), upto=2)
    assert before.lam == after.lam
    assert len(after.head.classes) == 4


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("M", [24, 60, 400])
@pytest.mark.parametrize("upto", [1, 2, 3])
def test_equals_the_dense_pipeline_after_every_task(seed, M, upto):
    toy = make_toy(seed)
    state = toy.play(LoRanPAC(M), seed, upto)
    wanted, factor = pipeline(toy, M, seed, upto)
    assert state.factor.shape == factor.shape
    assert distance(state.factor @ state.factor.T, factor @ factor.T) < 1e-5
    assert distance(state.head.weights, wanted) < 2e-2  # float32, (sigma_1 / sigma_r)^2 = 1e4


def test_the_accounts_know_what_was_cut():
    toy = make_toy(1)
    state = toy.play(LoRanPAC(60))
    H = relu_features(toy.pooled()[0], 60, 0)
    assert np.isclose(state.accounts.energy, np.sum(H * H), rtol=1e-4)
    kept = np.sum(pipeline(toy, 60, 0)[1] ** 2)
    assert np.isclose(state.accounts.energy - state.accounts.cut, kept, rtol=1e-4)
    assert state.accounts.n_rows == len(H)


def test_rows_beyond_a_block_are_taken_in_block_by_block(monkeypatch):
    monkeypatch.setattr(ranpac, "SVD_ROWS", 16)
    toy = make_toy(2)
    toy.tasks = toy.tasks[:1]
    H = relu_features(toy.pooled()[0], 200, 0)
    *_, (U, sigma) = truncated([H[i : i + 16] for i in range(0, len(H), 16)], 200)
    state = toy.play(LoRanPAC(200))
    assert distance(state.factor @ state.factor.T, (U * sigma**2) @ U.T) < 1e-5
    _, B = gram_and_sums(H, toy.pooled()[1], in_order(toy.pooled()[1]))
    wanted = U @ ((U.T @ B) / (sigma**2)[:, None])
    assert distance(state.head.weights, wanted) < 2e-2  # float32, (sigma_1 / sigma_r)^2 = 1e4


@pytest.mark.parametrize(("d", "rows", "M"), [(32, 60, 400), (64, 100, 700)])
def test_loranpac_weights_equal_the_float64_pipeline(d, rows, M):
    toy = make_toy(0, d=d, rows=rows)
    assert distance(toy.play(LoRanPAC(M)).head.weights, pipeline(toy, M, 0)[0]) < 1e-4


@pytest.mark.parametrize("lam", [1e-2, 1e-4, 1e-6])
def test_ranpac_weights_are_right_at_a_small_lambda_and_fewer_rows_than_M(lam, monkeypatch):
    monkeypatch.setattr(ranpac, "search", lambda *_: lam)
    toy = make_toy(0, d=64)
    X, y = toy.pooled()
    P = np.random.RandomState(0).standard_normal((64, 300)).astype(np.float32)
    H = np.maximum(X.astype(np.float32) @ P, 0).astype(float)
    W = ridge(H, y, in_order(y), lam)
    assert distance(toy.play(ranpac.RanPAC(300)).head.weights, W) < 1e-2
