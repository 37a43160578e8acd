"""RanPAC's search and solve against a dense grid search in float64."""

import numpy as np
import pytest

from fedran_bench.methods.analytic import ranpac
from fedran_bench.methods.analytic.ranpac import RanPAC, search
from helpers.toy_federation import distance, in_order, make_toy, relu_features, ridge


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


def test_the_search_finds_more_than_one_lambda():
    problems = [rows(0, 300, 40, 1.0, scale) for scale in (0.1, 1.0, 30.0)]
    assert len({search(H.astype(np.float32), codes, 3) for H, codes in problems}) == 3


def test_candidates_that_fail_are_passed_over(monkeypatch):
    H, codes = rows(0, 300, 40, 1.0)
    errors = grid_errors(H, codes, 3)
    best = clear_minimum(errors)
    solve = ranpac.solve_definite

    def fails_at_the_best(G, B, lam, fallbacks):
        if lam == best:
            raise np.linalg.LinAlgError("not positive")
        return solve(G, B, lam, fallbacks=fallbacks)

    monkeypatch.setattr(ranpac, "solve_definite", fails_at_the_best)
    del errors[best]
    assert search(H.astype(np.float32), codes, 3) == clear_minimum(errors)


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
