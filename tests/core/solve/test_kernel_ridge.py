"""Kernel ridge on points: beside a dense float64 solve, and leaving points out for real."""

import numpy as np
import pytest

from fedran.core.kernel import kernel_scale
from fedran.core.solve.kernel_ridge import (
    Labelled,
    LandmarkSolver,
    cholesky,
    full_matrix,
    landmarks,
    solve_all,
)


def made_up(seed, *, counts=True, n=None):
    rng = np.random.default_rng(seed)
    n, d = n or int(rng.integers(5, 400)), int(rng.integers(5, 60))
    X = rng.standard_normal((n, d)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    rows = rng.integers(1, 7, n).astype(float) if counts else np.ones(n)
    X *= np.where(rows > 1, rng.uniform(0.7, 1, n), 1)[:, None].astype(np.float32)
    n_classes = int(rng.integers(1, 5))
    return Labelled(X, rows, rng.integers(0, n_classes, n), n_classes)


def wide(points):
    """The same points in float64, where single rows have exactly norm 1."""
    X = points.X.astype(np.float64)
    X[points.counts == 1] /= np.linalg.norm(X[points.counts == 1], axis=1, keepdims=True)
    return Labelled(X, points.counts, points.codes, points.n_classes)


def dense(points, scale):
    """K and Y in float64, one pair after the other."""
    X, n = points.X.astype(np.float64), len(points.counts)
    K = np.array([np.exp((X @ b - 1) / scale) for b in X])
    for i in range(n):
        d = np.exp((X[i] @ X[i] - 1) / scale)
        K[i, i] = d + max(0.0, 1 - d) / points.counts[i]
    return K, np.eye(points.n_classes)[points.codes]


@pytest.mark.parametrize("seed", range(8))
def test_the_solve_is_that_of_a_dense_kernel_ridge(seed):
    points, ridge = wide(made_up(seed)), 10.0 ** -(seed % 3)
    scale = kernel_scale(points.X, points.counts, 0.4)
    K, Y = dense(points, scale)
    expected = np.linalg.solve(K + np.diag(ridge / points.counts), Y)
    np.testing.assert_allclose(solve_all(points, scale, ridge), expected, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_with_all_rows_as_landmarks_the_scores_are_those_of_the_full_solve(seed):
    points = wide(made_up(seed, counts=False))
    scale = kernel_scale(points.X, points.counts, 0.4)
    K, _ = dense(points, scale)
    by_landmarks = K @ LandmarkSolver.of(points, points.X, scale).solve(0.03)
    np.testing.assert_allclose(by_landmarks, K @ solve_all(points, scale, 0.03), atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_leave_one_out_is_what_a_solve_without_the_point_says(seed):
    points = wide(made_up(seed, counts=False, n=40))
    scale = kernel_scale(points.X, points.counts, 0.4)
    K, Y = dense(points, scale)
    ridges = (0.03, 1.0)
    found = LandmarkSolver.of(points, points.X, scale).leave_one_out(points, ridges)
    for ridge, scores in zip(ridges, found, strict=True):
        for i in range(40):
            rest = np.arange(40) != i
            alpha = np.linalg.solve(K[np.ix_(rest, rest)] + ridge * np.eye(39), Y[rest])
            np.testing.assert_allclose(scores[i], K[i, rest] @ alpha, atol=1e-6)


@pytest.mark.parametrize("step", [0.1, 0.5, 1.0, 2.0, 4.0])
def test_the_kernel_matrix_is_never_indefinite_whatever_was_rounded(step):
    for seed in range(5):
        points = made_up(seed)
        norms = np.linalg.norm(points.X, axis=1, keepdims=True)
        size = step * points.X.std(axis=0)
        rounded = np.rint(points.X / size) * size
        lengths = np.linalg.norm(rounded, axis=1, keepdims=True)
        X = (rounded * norms / np.where(lengths > 0, lengths, 1)).astype(np.float64)
        K = full_matrix(Labelled(X, points.counts, points.codes, points.n_classes), 0.4, "float64")
        assert np.linalg.eigvalsh(K)[0] > -1e-9


def test_landmarks_are_class_wise_means_in_proportion():
    points = made_up(3, n=300)
    found = landmarks(points, 40)
    assert len(found) <= 40
    np.testing.assert_array_equal(landmarks(points, 300), points.X)


@pytest.mark.parametrize("n", [1, 5, 64, 65, 200])
def test_the_blocked_factor_is_the_factor(n):
    A = np.random.default_rng(n).standard_normal((n, n + 3))
    A = A @ A.T + np.eye(n)
    np.testing.assert_allclose(cholesky(A.copy(), block=64), np.linalg.cholesky(A), atol=1e-8)
