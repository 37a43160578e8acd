"""Landmarks: a support of bounded size for kernel ridge, and the ridge regression on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float32,
    Float64,
    cast,
    eps,
    like,
    namespace,
    to_numpy,
)
from fedran.core._linalg.blas import add_outer, matmul, symmetric
from fedran.core._linalg.cholesky import cholesky, congruent, lower_product, solve_lower
from fedran.core._linalg.ward import group_means, group_rows
from fedran.core.kernel import blocks, kernel
from fedran.core.solve.ridge import frobenius, spectral_norm

if TYPE_CHECKING:
    from fedran.core.solve.kernel_ridge import Labelled

GRID = 0.25
"""Step to which the support is rounded before the solve, over the mean deviation of its columns.
The head on the wire is then the head that was solved. Rounding it afterwards changes labels."""


def landmarks(points: Labelled, most: int) -> Float[Array, "m d"]:
    """``most`` class-wise means of points, in proportion to the points of each class, or fewer.

    Every class has one, also where there are more than ``most`` classes.
    """
    n, found = len(points), []
    if n <= most:
        return points.X
    X = to_numpy(cast(points.X, "float32"))
    for c in np.unique(points.codes):
        rows = np.flatnonzero(points.codes == c)
        groups = group_rows(X[rows], len(rows) / max(1, len(rows) * most // n))
        found.append(group_means(X[rows], groups, points.counts[rows])[0])
    return like(np.concatenate(found), points.X)


def on_grid(X: Float[Array, "n d"]) -> Float32[Array, "n d"]:
    """Rows rounded to multiples of a power of two, about ``GRID`` deviations of a column."""
    xp = namespace(X)
    deviation = math.sqrt(float(xp.mean(xp.var(cast(X, "float64"), axis=0))))
    step = 2.0 ** math.floor(math.log2(GRID * deviation)) if deviation > 0 else 2.0**-8
    return cast(xp.round(X / step) * step, "float32")


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
        cls, points: Labelled, support: Float[Array, "m d"], scale: float, ridge: float
    ) -> LandmarkSolver:
        """The sums over points, whitened for a ridge of about this size.

        Where landmarks are close to each other, whitening multiplies rounding errors. A small
        number on the diagonal of K_mm bounds that: errors of the sums stay below a hundredth of
        the ridge, those of float32 kernel values below a thousandth of a feature.
        """
        xp = namespace(support)
        G, B = landmark_sums(points, support, scale)
        wide, m = cast(support, "float64"), support.shape[0]
        K = kernel(wide, wide, scale)
        jitter = max(1e-10, eps(support), 100 * eps(wide) * spectral_norm(G) / ridge)
        K[xp.arange(m), xp.arange(m)] += jitter
        R = cholesky(K)
        return cls(support, scale, R, congruent(G, R), solve_lower(R, B))

    def features(self, X: Float[Array, "n d"]) -> Float64[Array, "m n"]:
        """The whitened features of points, one column each."""
        return solve_lower(self.R, cast(kernel(X, self.support, self.scale), "float64").T)

    def solve(
        self, ridge: float, tested: Labelled
    ) -> tuple[Float64[Array, "m C"], Float64[NDArray[Any], "k C"], float]:
        """The weights of the landmarks, what all other points say about the tested ones, residual.

        A point with weight w has the leverage l = w f' (gram + ridge)^-1 f, and the others say
        (scores - l y) / (1 - l), with the landmarks held fixed.
        """
        xp, K = namespace(self.gram), cast(kernel(tested.X, self.support, self.scale), "float64")
        L = self._factor(self.gram, ridge)
        whitened = solve_lower(L, solve_lower(L, self.targets), transposed=True)
        weights = solve_lower(self.R, whitened, transposed=True)
        half = solve_lower(lower_product(self.R, L), K.T)  # of one factor, not of two in turn
        leverage = like(tested.weights, K) * xp.linalg.vecdot(half, half, axis=0)
        leverage = xp.clip(leverage, max=1 - 1e-9)[:, None]
        said = (matmul(K, weights) - leverage * tested.indicators(K)) / (1 - leverage)
        left = self.targets - matmul(self.gram, whitened) - ridge * whitened
        residual = frobenius(left) / max(frobenius(self.targets), 1e-30)
        return weights, to_numpy(said), residual

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
    xp, n, m = namespace(support), len(points), support.shape[0]
    G = like(np.zeros((m, m), order="F"), support)
    B = like(np.zeros((m, points.n_classes)), support)
    parts = list(blocks(n, m, 8))
    held = like(np.empty((min(n, parts[0].stop), m)), support)  # new memory takes time
    for rows in parts:
        part = points.take(rows)
        roots = like(np.sqrt(part.weights), support)[:, None]
        Q = held[: len(part)]
        xp.multiply(kernel(part.X, support, scale), roots, out=Q)
        G = add_outer(G, Q.T)
        present = slice(int(part.codes.min()), int(part.codes.max()) + 1)
        B[:, present] += matmul(Q.T, roots * part.indicators(Q)[:, present])
    return symmetric(G), B
