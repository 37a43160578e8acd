"""Kernel ridge on points: beside a dense float64 solve, and leaving points out for real."""

from dataclasses import replace

import numpy as np
import pytest

from fedran.core._linalg.cholesky import cholesky
from fedran.core.kernel import kernel_scale
from fedran.core.solve import kernel_ridge
from fedran.core.solve.kernel_ridge import (
    RIDGES,
    Labelled,
    by_all_points,
    full_matrix,
    others_say,
    solve_all,
    solve_points,
    spread_points,
)
from fedran.core.solve.landmarks import LandmarkSolver, landmarks, on_grid


def made_up(seed, *, counts=True, n=None, weighted=False):
    """Points with norms of 1 where they are single rows, in float64, and a scale for them."""
    rng = np.random.default_rng(seed)
    n, d = n or int(rng.integers(5, 501)), int(rng.integers(5, 60))
    X = rng.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    rows = rng.integers(1, 7, n).astype(float) if counts else np.ones(n)
    X *= np.where(rows > 1, rng.uniform(0.7, 1, n), 1)[:, None]
    C = int(rng.integers(2, 5))
    weights = rng.uniform(0.2, 5, C) if weighted else None
    points = Labelled.of(X, rows, rng.integers(0, C, n), C, weights)
    return points, kernel_scale(X, rows, 0.4)


def dense(points, scale):
    """K and Y in float64, one pair after the other."""
    X, n = np.asarray(points.X, dtype=np.float64), len(points)
    K = np.array([np.exp((X @ b - 1) / scale) for b in X])
    for i in range(n):
        d = np.exp((X[i] @ X[i] - 1) / scale)
        K[i, i] = d + max(0.0, 1 - d) / points.counts[i]
    return K, np.eye(points.n_classes)[points.codes]


def every(points):
    return np.arange(len(points))


@pytest.mark.parametrize("seed", range(10))
def test_the_solve_is_that_of_a_dense_kernel_ridge(seed):
    points, scale = made_up(seed, weighted=seed % 2 == 1)
    ridge = 10.0 ** -(seed % 3)
    K, Y = dense(points, scale)
    A = K + np.diag(ridge / points.weights)
    alpha, _ = solve_all(points, full_matrix(points, scale, "float64"), ridge, every(points))
    np.testing.assert_allclose(alpha, np.linalg.solve(A, Y), atol=1e-8)
    found = solve_points(points, None)
    assert found.residual < 1e-10
    K, Y = dense(replace(points, X=found.support), found.scale)
    left = Y - K @ found.alpha - found.ridge / points.weights[:, None] * found.alpha
    assert np.linalg.norm(left) < 1e-10 * np.linalg.norm(Y)


@pytest.mark.parametrize("seed", range(4))
def test_with_all_rows_as_landmarks_the_scores_are_those_of_the_full_solve(seed):
    points, scale = made_up(seed, counts=False)
    K, Y = dense(points, scale)
    solver = LandmarkSolver.of(points, points.X, scale, 0.03)
    weights, _, _ = solver.solve(0.03, points)
    full = np.linalg.solve(K + 0.03 * np.eye(len(points)), Y)
    np.testing.assert_allclose(K @ weights, K @ full, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_leave_one_out_is_what_a_solve_without_the_point_says(seed):
    points, scale = made_up(seed, n=40, weighted=True)
    K, Y = dense(points, scale)
    for ridge in (0.03, 1.0):
        K64 = full_matrix(points, scale, "float64")
        said = solve_all(points, K64, ridge, every(points))[1].scores
        A = K + np.diag(ridge / points.weights)
        for i in range(40):
            rest = np.arange(40) != i
            alpha = np.linalg.solve(A[np.ix_(rest, rest)], Y[rest])
            np.testing.assert_allclose(said[i], K[i, rest] @ alpha, atol=1e-8)


def refitted(points, support, scale, ridge, kept):
    """Landmark ridge on some of the points, by a dense solve: scores of all points."""
    Q = np.exp((points.X @ support.T - 1) / scale)
    Km = np.exp((support @ support.T - 1) / scale)
    n, Y = points.weights[kept], np.eye(points.n_classes)[points.codes[kept]]
    A = Q[kept].T @ (n[:, None] * Q[kept]) + ridge * Km
    return Q @ np.linalg.lstsq(A, Q[kept].T @ (n[:, None] * Y), rcond=None)[0]


@pytest.mark.parametrize("seed", range(4))
def test_leave_one_out_and_without_a_site_on_landmarks_are_really_leaving_out(seed):
    points, scale = made_up(seed, n=60, weighted=True)
    support = np.asarray(landmarks(points, 12), dtype=np.float64)
    solver = LandmarkSolver.of(points, support, scale, 0.1)
    _, said, residual = solver.solve(0.1, points)
    assert residual < 1e-9
    for i in range(0, 60, 7):
        expected = refitted(points, support, scale, 0.1, every(points) != i)[i]
        np.testing.assert_allclose(said[i], expected, atol=1e-6)
    site = every(points) % 3 == 1
    said = solver.without(points.take(np.flatnonzero(site)), 0.1)
    expected = refitted(points, support, scale, 0.1, ~site)[site]
    np.testing.assert_allclose(said, expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_ridge_is_the_middle_of_those_by_which_spread_points_are_labelled_best(seed):
    points = clusters(seed, 150, noise=1.5)
    found = solve_points(points, None)
    scale = found.scale
    right = {s.ridge: s.left_out.right(points) for s in by_all_points(points, scale, RIDGES, "")}
    top = max(right.values(), key=np.sum)
    equal = [
        ridge
        for ridge, r in right.items()
        if np.sum(top) - np.sum(r)
        <= np.sqrt(np.sum(((top * 1.0 - r) - np.mean(top * 1.0 - r)) ** 2))
    ]
    assert found.ridge == equal[(len(equal) - 1) // 2]
    assert 0 < len(equal) < len(RIDGES)


def test_wrong_labels_ask_for_a_larger_ridge():
    rng = np.random.default_rng(0)
    clean = clusters(0, 600, noise=0.2)
    codes = np.where(rng.random(600) < 0.4, rng.integers(0, 4, 600), clean.codes)
    noisy = Labelled.of(clean.X, clean.counts, codes, 4)
    assert solve_points(noisy, None).ridge > solve_points(clean, None).ridge


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 1.0])
def test_points_of_every_class_are_left_out_in_proportion_and_small_classes_keep_all(share):
    codes = np.array([0] * 50 + [1] * 3 + [2] * 20)[np.random.default_rng(0).permutation(73)]
    points = Labelled.of(np.eye(73), np.ones(73), codes, 3)
    some, every_class = (
        np.bincount(codes[spread_points(points, share, every)], minlength=3)
        for every in (False, True)
    )
    assert some.tolist() == [int(n * share + 1e-9) for n in (50, 3, 20)]
    assert every_class.tolist() == [int(np.ceil(n * share - 1e-9)) for n in (50, 3, 20)]


def test_a_ridge_is_found_for_more_classes_than_points_of_a_search(monkeypatch):
    monkeypatch.setattr(kernel_ridge, "SEARCHED", 50)
    X = np.random.default_rng(0).standard_normal((300, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    points = Labelled.of(X, np.ones(300), np.arange(300), 300)
    found = solve_points(points, 50)
    assert found.ridge in RIDGES
    assert np.isfinite(found.alpha).all()


def clusters(seed, n, d=12, C=4, noise=0.5):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, C, n)
    X = rng.standard_normal((C, d))[codes] + noise * rng.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return Labelled.of(X.astype(np.float32), np.ones(n), codes, C)


def test_leave_one_out_on_landmarks_tells_the_accuracy_on_new_rows():
    points = clusters(0, 4000, noise=1.2)
    head = solve_points(points.take(every(points)[:2000]), 100)
    new = points.take(every(points)[2000:])
    scores = np.exp((new.X @ head.support.T - 1) / head.scale) @ head.alpha
    accuracy = np.mean(np.argmax(scores, axis=1) == new.codes)
    tested = points.take(every(points)[:2000])
    assert abs(np.mean(head.left_out.right(tested)) - accuracy) < 0.04
    assert 0.5 < accuracy < 0.95


def test_a_site_with_wrong_labels_is_contradicted_and_the_others_are_not():
    points = clusters(1, 900)
    sites = every(points) % 5
    codes = np.where(sites == 2, (points.codes + 1) % 4, points.codes)
    lying = Labelled.of(points.X, points.counts, codes, 4)
    for claimed in (1, 100):  # rows per point of the liar
        counts = np.where(sites == 2, float(claimed), 1.0)
        wrong, confirmed = others_say(replace(lying, counts=counts), sites, most=200)
        assert wrong[sites != 2].mean() < 0.2
        assert wrong[sites == 2].mean() > 0.9
        assert confirmed[sites != 2].mean() > 0.8
        assert confirmed[sites == 2].mean() < 0.5
    counted = sites != 2
    wrong, sure = others_say(lying, sites, counted, 200)
    assert not sure[sites == 2].any()
    assert wrong[counted].mean() < 0.1


@pytest.mark.parametrize("step", [0.1, 0.5, 1.0, 2.0, 4.0])
def test_the_kernel_matrix_is_never_indefinite_whatever_was_rounded(step):
    for seed in range(5):
        points, _ = made_up(seed)
        norms = np.linalg.norm(points.X, axis=1, keepdims=True)
        size = step * points.X.std(axis=0)
        rounded = np.rint(points.X / size) * size
        lengths = np.linalg.norm(rounded, axis=1, keepdims=True)
        X = rounded * norms / np.where(lengths > 0, lengths, 1)
        K = full_matrix(Labelled.of(X, points.counts, points.codes, 5), 0.4, "float64")
        assert np.linalg.eigvalsh(K)[0] > -1e-9


def test_landmarks_are_class_wise_means_in_proportion():
    points, _ = made_up(3, n=300)
    assert len(landmarks(points, 40)) <= 40
    np.testing.assert_array_equal(landmarks(points, 300), points.X)


def test_a_support_on_the_grid_stays_there():
    X = np.random.default_rng(0).standard_normal((50, 9)).astype(np.float32)
    rounded = on_grid(X)
    assert np.abs(rounded - X).max() <= 0.125 * X.std() + 1e-6
    scaled = rounded * 2.0**12
    np.testing.assert_array_equal(scaled, np.rint(scaled))


def test_where_float32_fails_the_solve_is_float64_and_says_so():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2100, 3)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    points = Labelled.of(X, np.full(2100, 50.0), rng.integers(0, 2, 2100), 2)
    found = solve_points(points, None, ridge=1e-5)
    assert "failed" in found.route
    assert "float64" in found.route
    assert np.isfinite(found.alpha).all()


@pytest.mark.parametrize("n", [1, 5, 64, 65, 200, 333])
def test_the_factor_of_halves_is_the_factor(n):
    A = np.random.default_rng(n).standard_normal((n, n + 3))
    A = A @ A.T + np.eye(n)
    np.testing.assert_allclose(cholesky(A.copy(), leaf=16), np.linalg.cholesky(A), atol=1e-8)
    np.testing.assert_allclose(cholesky(A.copy()), np.linalg.cholesky(A), atol=1e-8)


def test_a_matrix_that_is_not_definite_has_no_factor():
    with pytest.raises(np.linalg.LinAlgError):
        cholesky(-np.eye(300))


def test_17000_points_can_be_factorised():
    """LAPACK's factorisation of so many rows at once ends the process on some machines."""
    points = clusters(0, 17_000, d=5, noise=0.1)
    found = solve_points(points, None, ridge=1.0)
    assert found.route == "kernel of all points, Cholesky in float32"
    assert found.residual < 1e-2
    assert found.left_out.accuracy(points) > 0.99
