"""Kernel ridge on points: all of them as support, or class-wise means of them as landmarks.

With the kernel K of all points, their rows n and the indicators Y of their classes the weights of
the points are alpha = (K + ridge diag(1 / n))^-1 Y. What all other points say about a point, or all
other sites about a site, follows from the same factorisation (leave-one-out in closed form), so the
ridge needs no constant: it is the best one of a grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, Float, Float64, Int64, cast, like, namespace, to_numpy
from fedran.core._linalg.blas import matmul
from fedran.core._linalg.ward import group_rows
from fedran.core.kernel import blocks, diagonal, kernel

RIDGES: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Where leave-one-out is computed. Accuracy is flat between neighbours."""
JITTER = 1e-10
"""Added to the diagonal of the kernel of the landmarks, so that equal ones can be factorised."""


@dataclass(frozen=True)
class Labelled:
    """Points as the solver sees them."""

    X: Float[Array, "n d"]
    counts: Float64[NDArray[Any], " n"]
    codes: Int64[NDArray[Any], " n"]
    n_classes: int

    def take(self, rows: NDArray[Any]) -> Labelled:
        """Some of the points."""
        index = like(rows, self.X)
        return Labelled(self.X[index], self.counts[rows], self.codes[rows], self.n_classes)


def landmarks(points: Labelled, most: int) -> Float[Array, "m d"]:
    """At most ``most`` class-wise means of points, in proportion to the points of each class."""
    X, n = to_numpy(points.X), len(points.counts)
    if n <= most:
        return points.X
    per_class = np.bincount(points.codes, minlength=points.n_classes)
    share = np.maximum(1, np.floor(per_class * most / n)).astype(int) * (per_class > 0)
    found = []
    for c in np.flatnonzero(per_class):
        rows = np.flatnonzero(points.codes == c)
        found.append(_class_means(X[rows], points.counts[rows], int(share[c])))
    return like(np.concatenate(found), points.X)


def _class_means(X: NDArray[Any], counts: NDArray[Any], k: int) -> NDArray[np.float32]:
    """About k means of groups of the points of one class, weighted by their rows."""
    if len(X) <= k:
        return X
    groups = group_rows(X, len(X) / k)
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(groups.max() + 1))
    weighted = (X * counts[:, None])[order]
    sums = np.add.reduceat(weighted, starts, axis=0)
    return (sums / np.add.reduceat(counts[order], starts)[:, None]).astype(np.float32)


def cholesky(A: Float[Array, "n n"], block: int = 4096) -> Float[Array, "n n"]:
    """The lower factor of a positive definite matrix, in place, block by block.

    LAPACK's own routine fails above about 16,000 rows where it counts bytes in 32 bits.
    """
    xp = namespace(A)
    n = A.shape[0]
    for i in range(0, n, block):
        now, below = slice(i, min(i + block, n)), slice(min(i + block, n), n)
        A[now, now] = xp.linalg.cholesky(A[now, now])
        if below.start < n:
            A[below, now] = solve_lower(A[now, now], A[below, now].T).T
            for j in range(below.start, n, block):
                column = slice(j, min(j + block, n))
                A[j:, column] -= matmul(A[j:, now], A[column, now].T)
        A[now, below] = 0
    return A


def solve_lower(L: Array, B: Array, transposed: bool = False) -> Array:
    """L^-1 B, or L'^-1 B."""
    if isinstance(L, np.ndarray):
        from scipy.linalg import solve_triangular

        return solve_triangular(L, B, lower=True, trans=int(transposed), check_finite=False)
    xp = namespace(L)
    return xp.linalg.solve_triangular(L.T if transposed else L, B, upper=transposed)


def indicators(codes: Int64[NDArray[Any], " n"], n_classes: int, reference: Array) -> Array:
    """One row per point, 1 in the column of its class, in float64."""
    Y = np.zeros((len(codes), n_classes))
    Y[np.arange(len(codes)), codes] = 1.0
    return like(Y, reference)


def full_matrix(points: Labelled, scale: float, dtype: str) -> Float[Array, "n n"]:
    """The kernel of all pairs of points, with the diagonal of groups."""
    xp = namespace(points.X)
    n = len(points.counts)
    X = cast(points.X, dtype)
    K = xp.empty((n, n), dtype=X.dtype, device=X.device)
    for rows in blocks(n, n, 8):
        K[rows] = kernel(X[rows], X, scale)
    squares = xp.sum(X * X, axis=1)
    K[xp.arange(n), xp.arange(n)] = diagonal(squares, cast(like(points.counts, X), dtype), scale)
    return K


def solve_all(points: Labelled, scale: float, ridge: float, dtype: str = "float64") -> Array:
    """alpha = (K + ridge diag(1 / n))^-1 Y with all points as support."""
    xp = namespace(points.X)
    K = full_matrix(points, scale, dtype)
    n = len(points.counts)
    weights = cast(like(ridge / points.counts, K), dtype)
    K[xp.arange(n), xp.arange(n)] += weights
    L = cholesky(K)
    Y = cast(indicators(points.codes, points.n_classes, K), dtype)
    return solve_lower(L, solve_lower(L, Y), transposed=True)


def landmark_sums(
    points: Labelled, support: Float[Array, "m d"], scale: float
) -> tuple[Array, Array]:
    """Q' diag(n) Q and Q' diag(n) Y with Q = k(points, support), in float64."""
    xp = namespace(points.X)
    m = support.shape[0]
    G = xp.zeros((m, m), dtype=xp.float64, device=support.device)
    B = xp.zeros((m, points.n_classes), dtype=xp.float64, device=support.device)
    for rows in blocks(len(points.counts), m, 8):
        Q = cast(kernel(points.X[rows], support, scale), "float64")
        weighted = Q * like(points.counts[rows], Q)[:, None]
        G += matmul(Q.T, weighted)
        B += matmul(weighted.T, indicators(points.codes[rows], points.n_classes, Q))
    return G, B


@dataclass(frozen=True)
class LandmarkSolver:
    """Kernel ridge on landmarks as a ridge regression on whitened features R'^-1 k(landmarks, x).

    K_mm = R R' for the landmarks. Solving for the whitened weights keeps the precision that the
    normal equations of k(landmarks, x) lose where landmarks are close to each other.
    """

    support: Float[Array, "m d"]
    scale: float
    R: Float64[Array, "m m"]
    gram: Float64[Array, "m m"]
    targets: Float64[Array, "m C"]

    @classmethod
    def of(cls, points: Labelled, support: Float[Array, "m d"], scale: float) -> LandmarkSolver:
        """The sums over points that every ridge needs."""
        xp = namespace(support)
        wide, m = cast(support, "float64"), support.shape[0]
        K = kernel(wide, wide, scale)
        K[xp.arange(m), xp.arange(m)] += JITTER
        R = cholesky(K)
        G, B = landmark_sums(points, support, scale)
        whitened = solve_lower(R, solve_lower(R, G).T)
        return cls(support, scale, R, (whitened + whitened.T) / 2, solve_lower(R, B))

    def solve(self, ridge: float) -> Float64[Array, "m C"]:
        """The weights of the landmarks."""
        xp = namespace(self.gram)
        M = xp.asarray(self.gram, copy=True)
        m = M.shape[0]
        M[xp.arange(m), xp.arange(m)] += ridge
        L = cholesky(M)
        whitened = solve_lower(L, solve_lower(L, self.targets), transposed=True)
        return solve_lower(self.R, whitened, transposed=True)

    def leave_one_out(
        self, points: Labelled, ridges: tuple[float, ...]
    ) -> list[Float64[NDArray[Any], "n C"]]:
        """Per ridge: what all other points say about each of these points, landmarks held fixed."""
        xp = namespace(self.gram)
        values, U = xp.linalg.eigh(self.gram)
        values = xp.clip(values, min=0.0)
        rotation = solve_lower(self.R, U, transposed=True)
        projected = matmul(U.T, self.targets)
        F = matmul(cast(kernel(points.X, self.support, self.scale), "float64"), rotation)
        counts, Y = like(points.counts, F), indicators(points.codes, points.n_classes, F)
        squares, found = F * F, []
        for ridge in ridges:
            shrink = 1 / (values + ridge)
            leverage = xp.clip(counts * (squares @ shrink), max=1 - 1e-9)[:, None]
            scores = matmul(F, shrink[:, None] * projected)
            found.append(to_numpy((scores - leverage * Y) / (1 - leverage)))
        return found
