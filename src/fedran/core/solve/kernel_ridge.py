"""Kernel ridge on points: all of them as support, or class-wise means of them as landmarks.

With the kernel K of all points, their weights w (rows, times class weights) and the indicators Y of
their classes, the weights of the support are alpha = (K + ridge diag(1 / w))^-1 Y. What all other
points say about a point, or all other sites about a site, follows from the same factorisation
(leave-one-out in closed form). So the ridge needs no constant: it is the best one of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float32,
    Float64,
    Int64,
    cast,
    is_numpy_array,
    like,
    linalg_errors,
    namespace,
    to_numpy,
)
from fedran.core._linalg.blas import add_outer, matmul, symmetric
from fedran.core._linalg.ward import group_rows
from fedran.core.kernel import blocks, diagonal, kernel, kernel_scale
from fedran.core.solve.ridge import effective_rank, frobenius, spectral_norm

RIDGES: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Where leave-one-out is computed. Accuracy is flat between neighbours."""
SCALE_FACTOR = 0.4
"""Scale of the kernel over the mean squared distance of two rows (results/points_constants.md)."""
SEARCHED = 2048
"""Most points that are the support of a search for the ridge. More are searched on as many
landmarks: one factorisation of all points takes long enough."""
LEFT_OUT = 5000
"""Most points that are left out: the standard error of an accuracy is then below 0.7 points."""
GRID = 0.25
"""Step to which the support is rounded before the solve, over the mean deviation of its columns.
The head on the wire is then the head that was solved. Rounding it afterwards changes labels."""
JITTER = 1e-10
"""Added to the diagonal of the kernel of the landmarks, so that equal ones can be factorised."""


@dataclass(frozen=True)
class Labelled:
    """Points as the solver sees them."""

    X: Float[Array, "n d"]
    counts: Float64[NDArray[Any], " n"]
    """Rows per point."""
    codes: Int64[NDArray[Any], " n"]
    n_classes: int
    weights: Float64[NDArray[Any], " n"]
    """Of the points in the solve: the rows, times the weight of the class."""

    @classmethod
    def of(
        cls,
        X: Float[Array, "n d"],
        counts: NDArray[Any],
        codes: Int64[NDArray[Any], " n"],
        n_classes: int,
        class_weights: NDArray[Any] | None = None,
    ) -> Labelled:
        """Points with the weight of their class, by default 1."""
        counts = np.asarray(counts, dtype=np.float64)
        factors = np.ones(n_classes) if class_weights is None else class_weights
        return cls(X, counts, codes, n_classes, counts * factors[codes])

    def take(self, rows: NDArray[Any] | slice) -> Labelled:
        """Some of the points."""
        index = rows if isinstance(rows, slice) else like(rows, self.X)
        parts = self.counts[rows], self.codes[rows], self.n_classes, self.weights[rows]
        return Labelled(self.X[index], *parts)

    def indicators(self, reference: Array) -> Array:
        """One row per point, 1 in the column of its class, in float64."""
        Y = np.zeros((len(self), self.n_classes))
        Y[np.arange(len(self)), self.codes] = 1.0
        return like(Y, reference)

    def __len__(self) -> int:
        return len(self.counts)


class LeftOut(NamedTuple):
    """What all other points say about some of the points."""

    points: Int64[NDArray[Any], " k"]
    scores: Float64[NDArray[Any], "k C"]

    def right(self, points: Labelled) -> NDArray[np.bool_]:
        """Whether the class of each point that is left out has the best score."""
        return np.argmax(self.scores, axis=1) == points.codes[self.points]

    def quality(self, points: Labelled) -> tuple[float, float]:
        """The share of the weight that is right, and minus the mean squared error of the scores."""
        if not len(self.points):
            return 0.0, 0.0
        weights = points.weights[self.points]
        squares = np.sum(
            (self.scores - np.eye(points.n_classes)[points.codes[self.points]]) ** 2, 1
        )
        return (
            float(np.average(self.right(points), weights=weights)),
            -float(np.average(squares, weights=weights)),
        )


@dataclass(frozen=True)
class KernelSolution:
    """The weights of the support, and how they were found."""

    support: Float[Array, "m d"]
    alpha: Float64[Array, "m C"]
    scale: float
    ridge: float
    left_out: LeftOut
    route: str
    norm: float
    """Largest eigenvalue of the matrix that was factorised, without the ridge."""
    effective_rank: float
    residual: float
    """Of the linear system that was solved, over the norm of its right-hand side."""


def solve_points(
    points: Labelled, most: int | None, ridge: float | None = None, dtype: str = "float32"
) -> KernelSolution:
    """Kernel ridge with at most ``most`` points or landmarks as support; None: every point.

    The support is rounded to a grid (``on_grid``). Without a ridge it is the one of ``RIDGES`` by
    which most of the weight of the points that are left out gets its own class. Equal ones: the
    one with the smaller squared error.

    N points, m landmarks, d features: 2 N m d + N m^2 operations, and about 3 m^3. All N points:
    N^3 / 3 in ``dtype``, and N^2 numbers in memory.
    """
    scale = kernel_scale(points.X, like(points.counts, points.X), SCALE_FACTOR)
    if most is not None and len(points) > most:
        return by_landmarks(points, most, scale, ridge)
    if len(points) > SEARCHED and ridge is None:
        ridge = by_landmarks(points, SEARCHED, scale, None).ridge
    ridges = RIDGES if ridge is None else (ridge,)
    return best(points, by_all_points(points, scale, ridges, dtype))


def best(points: Labelled, found: Iterator[KernelSolution]) -> KernelSolution:
    """The solution whose left-out points are labelled best."""
    return max(found, key=lambda solution: solution.left_out.quality(points))


def left_out_points(points: Labelled, share: float) -> Int64[NDArray[Any], " k"]:
    """The points that are left out: this share of each class, spread over its points."""
    order = np.argsort(points.codes, kind="stable")
    per_class = np.bincount(points.codes, minlength=points.n_classes)
    place = np.arange(len(order)) - np.repeat(np.cumsum(per_class) - per_class, per_class)
    chosen = np.floor((place + 1) * share) > np.floor(place * share)
    return np.sort(order[chosen])


def landmarks(points: Labelled, most: int) -> Float[Array, "m d"]:
    """At most ``most`` class-wise means of points, in proportion to the points of each class."""
    n = len(points)
    if n <= most:
        return points.X
    X = to_numpy(cast(points.X, "float32"))
    per_class = np.bincount(points.codes, minlength=points.n_classes)
    share = np.maximum(1, np.floor(per_class * most / n)).astype(int)
    found = [
        _class_means(X[rows], points.counts[rows], int(share[c]))
        for c in np.flatnonzero(per_class)
        if len(rows := np.flatnonzero(points.codes == c))
    ]
    return like(np.concatenate(found), points.X)


def _class_means(X: NDArray[Any], counts: NDArray[Any], k: int) -> NDArray[np.float32]:
    """About k means of groups of the points of one class, weighted by their rows."""
    if len(X) <= k:
        return X
    groups = group_rows(X, len(X) / k)
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(groups.max() + 1))
    sums = np.add.reduceat((X * counts[:, None])[order], starts, axis=0)
    return (sums / np.add.reduceat(counts[order], starts)[:, None]).astype(np.float32)


def on_grid(X: Float[Array, "n d"]) -> Float32[Array, "n d"]:
    """Rows rounded to multiples of a power of two, about ``GRID`` deviations of a column."""
    xp = namespace(X)
    deviation = math.sqrt(float(xp.mean(xp.var(cast(X, "float64"), axis=0))))
    step = 2.0 ** math.floor(math.log2(GRID * deviation)) if deviation > 0 else 2.0**-8
    return cast(xp.round(X / step) * step, "float32")


def cholesky(A: Float[Array, "n n"], leaf: int | None = None) -> Float[Array, "n n"]:
    """The lower factor of a positive definite matrix, in place, half by half.

    LAPACK's own routine fails above about 16,000 rows where it counts bytes in 32 bits. Its threads
    also wait for each other so often that it took 20 times as long beside another program.
    """
    n = A.shape[0]
    leaf = leaf or (128 if is_numpy_array(A) else 8192)
    if n > leaf:
        half = n // 2
        first, corner = A[:half, :half], A[half:, half:]
        cholesky(first, leaf)
        A[half:, :half] = solve_lower(first, A[half:, :half].T).T
        corner -= matmul(A[half:, :half], A[half:, :half].T)
        cholesky(corner, leaf)
        A[:half, half:] = 0
    elif not is_numpy_array(A):
        with linalg_errors():
            A[...] = namespace(A).linalg.cholesky(A)
    else:
        for j in range(n):
            column = A[j:, j] - A[j:, :j] @ A[j, :j]
            if not column[0] > 0:
                raise np.linalg.LinAlgError(f"row {j} depends on those before it")
            A[j:, j] = column / np.sqrt(column[0])
            A[j, j + 1 :] = 0
    return A


def solve_lower(L: Array, B: Array, transposed: bool = False) -> Array:
    """L^-1 B, or L'^-1 B."""
    if is_numpy_array(L):
        return solve_triangular(L, B, lower=True, trans=int(transposed), check_finite=False)
    xp = namespace(L)
    return xp.linalg.solve_triangular(L.T if transposed else L, B, upper=transposed)


def full_matrix(points: Labelled, scale: float, dtype: str) -> Float[Array, "n n"]:
    """The kernel of all pairs of points, with the diagonal of groups."""
    xp = namespace(points.X)
    n, X = len(points), cast(points.X, dtype)
    K = xp.empty((n, n), dtype=X.dtype, device=X.device)
    for rows in blocks(n, n, 8):
        K[rows] = kernel(X[rows], X, scale)
    squares = xp.sum(X * X, axis=1)
    K[xp.arange(n), xp.arange(n)] = diagonal(squares, cast(like(points.counts, X), dtype), scale)
    return K


def by_all_points(
    points: Labelled, scale: float, ridges: Sequence[float], dtype: str
) -> Iterator[KernelSolution]:
    """A solution per ridge, with every point as support.

    Of a point i that is left out, the others say y_i - alpha_i / (A^-1)_ii.
    """
    points, n = replace(points, X=on_grid(points.X)), len(points)
    dtype = "float64" if n <= SEARCHED else dtype
    tested = left_out_points(points, min(1.0, LEFT_OUT / n))
    for ridge in ridges:
        try:
            found, used = solve_all(points, scale, ridge, dtype, tested), dtype
        except np.linalg.LinAlgError:
            if dtype == "float64":
                raise
            found, used = solve_all(points, scale, ridge, "float64", tested), "float64"
        tried = "" if used == dtype else f"Cholesky in {dtype} failed; "
        yield replace(found, route=f"{tried}kernel of all points, Cholesky in {used}")


def solve_all(
    points: Labelled, scale: float, ridge: float, dtype: str, tested: NDArray[Any]
) -> KernelSolution:
    """One ridge, with every point as support; ``tested`` are left out one by one."""
    xp = namespace(points.X)
    K, n = full_matrix(points, scale, dtype), len(points)
    norm, spread = spectral_norm(K), effective_rank(K)
    every, inverse = xp.arange(n), cast(like(ridge / points.weights, K), dtype)
    K[every, every] += inverse
    L = cholesky(K)
    Y = cast(points.indicators(K), dtype)
    alpha = solve_lower(L, solve_lower(L, Y), transposed=True)
    diagonals = np.empty(len(tested))
    for part in blocks(len(tested), n, 8):
        unit = np.zeros((n, len(tested[part])), dtype=dtype)
        unit[tested[part], np.arange(unit.shape[1])] = 1.0
        columns = solve_lower(L, like(unit, K))
        diagonals[part] = to_numpy(xp.sum(columns * columns, axis=0))
    said = np.eye(points.n_classes)[points.codes[tested]]
    said -= to_numpy(alpha)[tested] / diagonals[:, None]
    residual = _residual(points, scale, alpha, inverse, Y)
    return KernelSolution(
        points.X, cast(alpha, "float64"), scale, ridge, LeftOut(tested, said),
        "", norm, spread, residual,
    )  # fmt: skip


def _residual(points: Labelled, scale: float, alpha: Array, inverse: Array, Y: Array) -> float:
    """||Y - (K + diag(inverse)) alpha|| / ||Y||, one block of K at a time."""
    X, total = cast(points.X, str(alpha.dtype).rpartition(".")[2]), 0.0
    xp = namespace(X)
    squares, counts = xp.sum(X * X, axis=1), xp.astype(like(points.counts, X), X.dtype)
    exact = diagonal(squares, counts, scale) - xp.exp((squares - 1) / scale) + inverse
    for rows in blocks(len(points), len(points), 8):
        left = Y[rows] - matmul(kernel(X[rows], X, scale), alpha) - exact[rows, None] * alpha[rows]
        total += frobenius(left) ** 2
    return float(total**0.5 / max(frobenius(Y), 1e-30))


def by_landmarks(points: Labelled, most: int, scale: float, ridge: float | None) -> KernelSolution:
    """The solution with class-wise means of the points that are not left out as support.

    A mean that contains a point would tell something about it, and its leave-one-out score would
    be too good. In the solve every point counts. The ridge is searched with at most ``SEARCHED`` of
    the landmarks, whose sums are a part of those of all.
    """
    tested = left_out_points(points, min(0.2, LEFT_OUT / len(points)))
    others = np.setdiff1d(np.arange(len(points)), tested, assume_unique=True)
    support = on_grid(landmarks(points.take(others), most))
    G, B = landmark_sums(points, support, scale)
    left_out = points.take(tested)

    def solutions(part: slice, ridges: Sequence[float]) -> Iterator[KernelSolution]:
        solver = LandmarkSolver.of(support[part], scale, G[part, part], B[part])
        norm, spread = spectral_norm(solver.gram), effective_rank(solver.gram)
        F = solver.features(left_out.X)
        for ridge in ridges:
            whitened, said, residual = solver.solve(ridge, left_out, F)
            yield KernelSolution(
                solver.support, solver.weights(whitened), scale, ridge, LeftOut(tested, said),
                "kernel of landmarks, Cholesky in float64", norm, spread, residual,
            )  # fmt: skip

    if ridge is None:
        some = slice(None, None, -(-support.shape[0] // SEARCHED))
        ridge = best(points, solutions(some, RIDGES)).ridge
    return next(solutions(slice(None), (ridge,)))


@dataclass(frozen=True)
class LandmarkSolver:
    """Kernel ridge on landmarks as a ridge regression on features f = R^-1 k(landmarks, x).

    K_mm = R R' for the landmarks. Solving for the whitened weights keeps the precision that the
    normal equations of k(landmarks, x) lose where landmarks are close to each other.
    """

    support: Float[Array, "m d"]
    scale: float
    R: Float64[Array, "m m"]
    gram: Float64[Array, "m m"]
    """Sum of w f f' over the points."""
    targets: Float64[Array, "m C"]
    """Sum of w f y' over the points."""

    @classmethod
    def of(
        cls,
        support: Float[Array, "m d"],
        scale: float,
        G: Float64[Array, "m m"],
        B: Float64[Array, "m C"],
    ) -> LandmarkSolver:
        """From the sums over points that every ridge needs (``landmark_sums``)."""
        xp = namespace(support)
        wide, m = cast(support, "float64"), support.shape[0]
        K = kernel(wide, wide, scale)
        K[xp.arange(m), xp.arange(m)] += JITTER
        R = cholesky(K)
        whitened = solve_lower(R, solve_lower(R, G).T)
        return cls(support, scale, R, (whitened + whitened.T) / 2, solve_lower(R, B))

    def features(self, X: Float[Array, "n d"]) -> Float64[Array, "m n"]:
        """The whitened features of points, one column each."""
        return solve_lower(self.R, cast(kernel(X, self.support, self.scale), "float64").T)

    def weights(self, whitened: Float64[Array, "m C"]) -> Float64[Array, "m C"]:
        """The weights of the landmarks."""
        return solve_lower(self.R, whitened, transposed=True)

    def solve(
        self, ridge: float, tested: Labelled, F: Float64[Array, "m k"]
    ) -> tuple[Float64[Array, "m C"], Float64[NDArray[Any], "k C"], float]:
        """The whitened weights, what all other points say about the tested ones, the residual.

        F are the whitened features of the tested points. A point with weight w has the leverage
        l = w f' (gram + ridge)^-1 f, and the others say (scores - l y) / (1 - l), with the
        landmarks held fixed.
        """
        xp = namespace(self.gram)
        L = self._factor(self.gram, ridge)
        whitened = solve_lower(L, solve_lower(L, self.targets), transposed=True)
        half = solve_lower(L, F)
        leverage = like(tested.weights, F) * xp.sum(half * half, axis=0)
        leverage = xp.clip(leverage, max=1 - 1e-9)[:, None]
        said = (matmul(F.T, whitened) - leverage * tested.indicators(F)) / (1 - leverage)
        left = self.targets - matmul(self.gram, whitened) - ridge * whitened
        residual = frobenius(left) / max(frobenius(self.targets), 1e-30)
        return whitened, to_numpy(said), residual

    def without(self, points: Labelled, ridge: float) -> Float64[NDArray[Any], "n C"]:
        """What all other points say about these points, which are left out together."""
        gram = symmetric(self.gram)
        targets = namespace(self.targets).asarray(self.targets, copy=True)
        for rows in blocks(len(points), gram.shape[0], 8):
            part = points.take(rows)
            F = self.features(part.X)
            weighted = F * like(part.weights, F)
            gram -= matmul(weighted, F.T)
            targets -= matmul(weighted, part.indicators(F))
        L = self._factor(gram, ridge)
        whitened = solve_lower(L, solve_lower(L, targets), transposed=True)
        scores = np.empty((len(points), points.n_classes))
        for rows in blocks(len(points), gram.shape[0], 8):
            scores[rows] = to_numpy(matmul(self.features(points.X[rows]).T, whitened))
        return scores

    @staticmethod
    def _factor(gram: Float64[Array, "m m"], ridge: float) -> Float64[Array, "m m"]:
        xp, m = namespace(gram), gram.shape[0]
        M = xp.asarray(gram, copy=True)
        M[xp.arange(m), xp.arange(m)] += ridge
        return cholesky(M)


def landmark_sums(
    points: Labelled, support: Float[Array, "m d"], scale: float
) -> tuple[Float64[Array, "m m"], Float64[Array, "m C"]]:
    """Q' diag(w) Q and Q' diag(w) Y with Q = k(points, support), in float64."""
    m = support.shape[0]
    G = like(np.zeros((m, m), order="F"), support)
    B = like(np.zeros((m, points.n_classes)), support)
    for rows in blocks(len(points), m, 8):
        part = points.take(rows)
        Q = cast(kernel(part.X, support, scale), "float64")
        roots = like(np.sqrt(part.weights), Q)[:, None]
        Q *= roots
        G = add_outer(G, Q.T)
        B += matmul(Q.T, roots * part.indicators(Q))
    return symmetric(G), B


def others_say(
    points: Labelled, sites: Int64[NDArray[Any], " n"], ridge: float, most: int
) -> LeftOut:
    """What the points of all other sites say about every point, on at most ``most`` landmarks.

    ``sites`` numbers the site of each point. Landmarks, scale and ridge are held fixed.
    """
    scale = kernel_scale(points.X, like(points.counts, points.X), SCALE_FACTOR)
    support = landmarks(points, most)
    solver = LandmarkSolver.of(support, scale, *landmark_sums(points, support, scale))
    scores = np.empty((len(points), points.n_classes))
    for site in np.unique(sites):
        rows = np.flatnonzero(sites == site)
        scores[rows] = solver.without(points.take(rows), ridge)
    return LeftOut(np.arange(len(points)), scores)
