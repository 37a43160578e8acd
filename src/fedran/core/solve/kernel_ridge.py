"""Kernel ridge on points: all of them as support, or class-wise means of them as landmarks.

With the kernel K of all points, their weights w (rows, times class weights) and the indicators Y of
their classes, the weights of the support are alpha = (K + ridge diag(1 / w))^-1 Y. What all other
points say about a point, or all other sites about a site, follows from the same factorisation
(leave-one-out in closed form). So the ridge needs no constant: it is the best one of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float64,
    Int64,
    cast,
    like,
    namespace,
    to_numpy,
)
from fedran.core._linalg.blas import matmul, symmetric
from fedran.core._linalg.cholesky import cholesky, solve_lower
from fedran.core.kernel import blocks, diagonal, kernel, kernel_scale
from fedran.core.solve.landmarks import LandmarkSolver, landmarks, on_grid
from fedran.core.solve.ridge import effective_rank, frobenius, spectral_norm

RIDGES: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Where leave-one-out is computed. Accuracy is flat between neighbours."""
SCALE_FACTOR = 0.4
"""Scale of the kernel over the mean squared distance of two rows (results/points_constants.md)."""
SEARCHED = 2048
"""Points that the ridge is chosen with: a part of each class where there are more. It is the ridge
per row, which hardly depends on the number of points (results/points_constants.md)."""
LEFT_OUT = 5000
"""Most points that are left out: the standard error of an accuracy is then below 0.7 points."""
ASKED, ASKED_RIDGE = 1024, 0.1
"""Landmarks and ridge per row where sites are compared, which needs less than the best head."""
VOTE = 20
"""Rows of a class from which on a site has a full vote about it, and can vouch for it."""
CLEARLY = 2.0
"""Other sites contradict a point if they give another class a score this many times that of its own
(results/gate_constants.md)."""


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

    def accuracy(self, points: Labelled) -> float:
        """The share of the weight that is right; 0 where nothing is left out."""
        weights = points.weights[self.points]
        return float(self.right(points) @ weights / weights.sum()) if len(weights) else 0.0

    def is_clearly_worse(self, other: LeftOut, points: Labelled) -> bool:
        """Whether it is less accurate by more than a standard error, point by point."""
        share = points.weights[self.points] / max(points.weights[self.points].sum(), 1e-300)
        lost = other.right(points).astype(float) - self.right(points)
        mean = float(share @ lost)
        return mean > float(np.sqrt(np.sum((share * (lost - mean)) ** 2)))


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
    residual: float = math.nan
    """Of the linear system that was solved, over the norm of its right-hand side."""


def solve_points(
    points: Labelled, most: int | None, ridge: float | None = None, dtype: str = "float32"
) -> KernelSolution:
    """Kernel ridge with at most ``most`` points or landmarks as support; None: every point.

    The support is rounded to a grid (``on_grid``). Without a ridge it is the one of ``RIDGES`` by
    which most of the weight of the points that are left out gets its own class (``best``).

    N points, m landmarks, d features: 2 N m d + N m^2 operations, and about 3 m^3. All N points:
    N^3 / 3 in ``dtype``, and N^2 numbers in memory.
    """
    scale = kernel_scale(points.X, like(points.counts, points.X), SCALE_FACTOR)
    with_landmarks = most is not None and len(points) > most
    if ridge is None and (with_landmarks or len(points) > SEARCHED):
        some = points.take(
            spread_points(points, min(1.0, SEARCHED / len(points)), every_class=True)
        )
        ridge = best(some, by_all_points(some, scale, RIDGES, "float64")).ridge
    if with_landmarks:
        assert most is not None
        assert ridge is not None
        return by_landmarks(points, most, scale, ridge)
    ridges = RIDGES if ridge is None else (ridge,)
    found = best(points, by_all_points(points, scale, ridges, dtype))
    return replace(found, residual=residual_of(points, found))


def best(points: Labelled, found: Iterable[KernelSolution]) -> KernelSolution:
    """The middle one of the solutions whose left-out points are labelled best, by their ridge.

    Accuracy is flat over wide ranges of the ridge, and the largest of several equal figures is a
    matter of chance. So all that are within a standard error of the best one count as equal.
    """
    solutions = sorted(found, key=lambda s: s.ridge)
    top = max(solutions, key=lambda s: s.left_out.accuracy(points)).left_out
    equal = [s for s in solutions if not s.left_out.is_clearly_worse(top, points)]
    return equal[(len(equal) - 1) // 2]


def spread_points(
    points: Labelled, share: float, every_class: bool = False
) -> Int64[NDArray[Any], " k"]:
    """A share of the points of each class, spread over them: at least one with ``every_class``.

    Otherwise classes with fewer than 1 / share points have none.
    """
    order = np.argsort(points.codes, kind="stable")
    per_class = np.bincount(points.codes, minlength=points.n_classes)
    place = np.arange(len(order)) - np.repeat(np.cumsum(per_class) - per_class, per_class)
    whole = np.ceil if every_class else np.floor
    return np.sort(order[whole((place + 1) * share) > whole(place * share)])


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
    tested = spread_points(points, min(1.0, LEFT_OUT / n))
    K = full_matrix(points, scale, dtype)
    norm, spread = spectral_norm(K), effective_rank(K)
    for ridge in ridges:
        route = f"kernel of all points, Cholesky in {dtype}"
        try:
            once = ridge == ridges[-1]  # all N^2 numbers of a large kernel are needed once only
            alpha, left_out = solve_all(points, K if once else symmetric(K), ridge, tested)
        except np.linalg.LinAlgError:
            if dtype == "float64":
                raise
            wide = full_matrix(points, scale, "float64")
            alpha, left_out = solve_all(points, wide, ridge, tested)
            route = f"Cholesky in {dtype} failed; kernel of all points, Cholesky in float64"
        yield KernelSolution(points.X, alpha, scale, ridge, left_out, route, norm, spread)


def solve_all(
    points: Labelled, K: Float[Array, "n n"], ridge: float, tested: NDArray[Any]
) -> tuple[Float64[Array, "n C"], LeftOut]:
    """The weights for one ridge, in place of K; ``tested`` are left out one by one."""
    xp, n = namespace(K), len(points)
    K[xp.arange(n), xp.arange(n)] += xp.astype(like(ridge / points.weights, K), K.dtype)
    L = cholesky(K)
    Y = xp.astype(points.indicators(K), K.dtype)
    alpha = solve_lower(L, solve_lower(L, Y), transposed=True)
    diagonals = np.empty(len(tested))
    for part in blocks(len(tested), n, 8):
        unit = np.zeros((n, len(tested[part])), dtype=np.float32)
        unit[tested[part], np.arange(unit.shape[1])] = 1.0
        columns = solve_lower(L, xp.astype(like(unit, K), K.dtype))
        diagonals[part] = to_numpy(xp.sum(columns * columns, axis=0))
    said = np.eye(points.n_classes)[points.codes[tested]]
    said -= to_numpy(alpha)[tested] / diagonals[:, None]
    return cast(alpha, "float64"), LeftOut(tested, said)


def residual_of(points: Labelled, found: KernelSolution) -> float:
    """||Y - (K + ridge diag(1 / w)) alpha|| / ||Y||, one block of K at a time."""
    dtype = "float64" if found.route.endswith("float64") else "float32"
    X, alpha = cast(found.support, dtype), cast(found.alpha, dtype)
    xp, Y, total = namespace(X), cast(points.indicators(X), dtype), 0.0
    squares, counts = xp.sum(X * X, axis=1), cast(like(points.counts, X), dtype)
    inverse = cast(like(found.ridge / points.weights, X), dtype)
    exact = diagonal(squares, counts, found.scale) - xp.exp((squares - 1) / found.scale) + inverse
    for rows in blocks(len(points), len(points), 8):
        K = kernel(X[rows], X, found.scale)
        total += frobenius(Y[rows] - matmul(K, alpha) - exact[rows, None] * alpha[rows]) ** 2
    return float(total**0.5 / max(frobenius(Y), 1e-30))


def by_landmarks(points: Labelled, most: int, scale: float, ridge: float) -> KernelSolution:
    """The solution with class-wise means of the points that are not left out as support.

    A mean that contains a point would tell something about it, and its leave-one-out score would
    be too good. In the solve every point counts.
    """
    tested = spread_points(points, min(0.2, LEFT_OUT / len(points)))
    others = np.setdiff1d(np.arange(len(points)), tested, assume_unique=True)
    support = on_grid(landmarks(points.take(others), most))
    solver = LandmarkSolver.of(points, support, scale, ridge)
    weights, said, residual = solver.solve(ridge, points.take(tested))
    return KernelSolution(
        solver.support,
        weights,
        scale,
        ridge,
        LeftOut(tested, said),
        "kernel of landmarks, Cholesky in float64",
        spectral_norm(solver.gram),
        effective_rank(solver.gram),
        residual,
    )


def others_say(
    points: Labelled,
    sites: Int64[NDArray[Any], " n"],
    counted: NDArray[np.bool_] | None = None,
    most: int = ASKED,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether all other sites contradict each point, and whether all other points confirm it.

    ``sites`` numbers the site of each point. Points that are not ``counted`` are asked about, and
    say nothing. At most ``most`` landmarks, which are held fixed, as are scale and ridge. Each site
    has one vote per class: as many rows as it likes have the weight of ``VOTE`` rows, and all
    classes have the same weight. So nobody is heard more by sending more, and a class that is rare
    elsewhere is not called wrong for that.
    """
    counted = np.ones(len(points), dtype=bool) if counted is None else counted
    scale = kernel_scale(points.X, like(points.counts, points.X), SCALE_FACTOR)
    votes = replace(points, weights=_votes(points, sites, counted))
    solver = LandmarkSolver.of(votes, landmarks(points, most), scale, ASKED_RIDGE)
    contradicted, confirmed = np.zeros((2, len(points)), dtype=bool)
    for rows in blocks(len(points), solver.gram.shape[0], 8):
        part = votes.take(rows)
        scores = solver.solve(ASKED_RIDGE, part)[1]
        confirmed[rows] = (np.argmax(scores, axis=1) == part.codes) & counted[rows]
    for site in np.unique(sites):
        mine = sites == site
        known = np.bincount(points.codes[counted & ~mine], minlength=points.n_classes) > 0
        scores = solver.without(votes.take(np.flatnonzero(mine)), ASKED_RIDGE)
        own = np.arange(points.n_classes) == points.codes[mine, None]
        other = np.max(np.where(known & ~own, scores, -np.inf), axis=1)
        contradicted[mine] = other > CLEARLY * np.maximum(scores[own], 0)
    return contradicted, confirmed


def _votes(
    points: Labelled, sites: Int64[NDArray[Any], " n"], counted: NDArray[np.bool_]
) -> Float64[NDArray[Any], " n"]:
    """The weight of each point where every site has one vote per class."""
    rows = np.zeros((int(sites.max(initial=0)) + 1, points.n_classes))
    np.add.at(rows, (sites, points.codes), points.counts * counted)
    votes = np.minimum(rows, VOTE)
    total = votes.sum(axis=0)
    heard = np.minimum(rows, 10 * VOTE).sum()  # nobody makes all others too light for the ridge
    of_class = heard / max(1, np.count_nonzero(total)) * np.minimum(1, total / VOTE)
    shares = of_class * votes / np.maximum(total, 1) / np.maximum(rows, 1)
    return points.counts * counted * shares[sites, points.codes]
