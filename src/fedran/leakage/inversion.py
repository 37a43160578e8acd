"""Inversion attacks: features of single rows and of classes from a message or a head.

Points of one row and landmarks are rows as they are. The projection P of random features is public:
a class sum over one row is phi(x), and M equations determine the d values of x. A class mean gives
the mean feature in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fedran.core._linalg.arrays import Float64
from fedran.core.features import FeatureMap, RandomFeatures
from fedran.core.kernel import blocks
from fedran.core.points import Points
from fedran.core.solve.head import Head
from fedran.core.summary import Summary
from fedran.leakage.evidence import Message, class_means

STEPS, INNER_STEPS = 10, 8
"""Gauss-Newton steps, and steps of conjugate gradients in each."""
DAMPING = 1e-2

Matrix: TypeAlias = NDArray[np.float32]
"""Points (k, d), one row per class, or their random features (k, M). P has float32 too."""


def invert_means(message: Message, phi: FeatureMap) -> NDArray[Any]:
    """The mean feature of each class (C, prepared d), as far as the message gives it."""
    means = class_means(message)
    if not isinstance(message, Summary) or not isinstance(phi, RandomFeatures) or not phi.projected:
        return means
    energy = message.accounts.mean_row_energy
    return recover_means(phi, means.astype(np.float32), message.sums.totals, energy)


def single_rows(message: Message | Head, means: NDArray[Any]) -> NDArray[Any]:
    """What may be a row itself: points of one row, means of classes with one row, landmarks."""
    if isinstance(message, Head):
        return means[:0] if message.landmarks is None else message.landmarks
    if isinstance(message, Points):
        return message.means[message.counts == 1]
    return means[message.sums.totals == 1]


def identified(
    points: NDArray[Any], members: NDArray[np.float32], others: NDArray[np.float32]
) -> int:
    """How many points identify a member: they are less than half as far from it as any other row.

    A copy of the row elsewhere does not make the point a worse guess.
    """
    rows, found = np.concatenate([members, others]), 0
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)

    def distances(A: NDArray[Any]) -> NDArray[np.float64]:
        own = np.einsum("ij,ij->i", A, A, dtype=np.float64)[:, None]
        return np.maximum(own + squares - 2 * (A @ rows.T).astype(np.float64), 0.0)

    for part in blocks(len(points), len(rows), 32):
        near = distances(points[part].astype(np.float32))
        row = np.argmin(near[:, : len(members)], axis=1)
        between = distances(members[row])
        between[between <= 1e-6 * squares[row, None]] = np.inf
        found += int(np.sum(4 * near[np.arange(len(row)), row] < between.min(axis=1)))
    return found


def recover_means(
    phi: RandomFeatures, means: Matrix, counts: Float64[NDArray[Any], " k"], row_energy: float
) -> Matrix:
    """Mean features (k, prepared d) from the means (k, M) of random features of ``counts`` rows.

    Over a class, x P varies about its mean with variance s^2 = E||x||^2 - ||mean x||^2 per value,
    so the class mean is the expectation of the activation at a normal variable. ``row_energy``,
    the mean ||h||^2, gives E||x||^2 where prepared rows have no fixed norm.

    Minimises ||E activation(x P + noise) - mean||^2 for each class by Gauss-Newton. Linear systems
    are solved by conjugate gradients, all classes at once. A step that does not reduce the distance
    is not taken, and its class is damped more.
    """
    P, single = phi.projection, (counts == 1)[:, None]
    squared_norm = 1.0 if phi.kind != "relu" else 2 * row_energy / phi.out_features

    def error(x: Matrix) -> tuple[Matrix, Matrix]:
        left = np.maximum(squared_norm - np.sum(x**2, axis=1, keepdims=True), 0.0)
        variance = np.where(single, 0.0, left).astype(np.float32)
        value, slope = _activation(phi.kind, x @ P, variance)
        return value - means, slope

    x = 2.0 / phi.out_features * ((means - means.mean(axis=1, keepdims=True)) @ P.T)
    damping = np.full((len(x), 1), DAMPING * phi.out_features, dtype=np.float32)
    rest, slope = error(x)
    for _ in range(STEPS):

        def normal(v: Matrix, slope: Matrix = slope, damping: Matrix = damping) -> Matrix:
            return ((v @ P) * slope**2) @ P.T + damping * v

        tried = x + _conjugate_gradients(normal, -(rest * slope) @ P.T)
        if phi.kind != "relu":  # the nearest points that phi.prepare can give
            near = np.maximum(tried, 0.0) if phi.kind == "hellinger" else tried
            near = near / np.maximum(np.linalg.norm(near, axis=1, keepdims=True), 1e-12)
            tried = np.where(single, near, tried)
        new, new_slope = error(tried)
        better = (np.sum(new**2, axis=1) < np.sum(rest**2, axis=1))[:, None]
        x, rest = np.where(better, tried, x), np.where(better, new, rest)
        slope = np.where(better, new_slope, slope)
        damping = damping * np.where(better, np.float32(0.5), np.float32(4.0))
    return x


def _conjugate_gradients(normal: Callable[[Matrix], Matrix], right: Matrix) -> Matrix:
    x, rest = np.zeros_like(right), right
    direction, squares = right, np.sum(right**2, axis=1, keepdims=True)
    for _ in range(INNER_STEPS):
        image = normal(direction)
        curvature = np.sum(direction * image, axis=1, keepdims=True)
        step = squares / np.maximum(curvature, 1e-30)
        x, rest = x + step * direction, rest - step * image
        before, squares = squares, np.sum(rest**2, axis=1, keepdims=True)
        direction = rest + squares / np.maximum(before, 1e-30) * direction
    return x


def _activation(kind: str, u: Matrix, variance: Matrix) -> tuple[Matrix, Matrix]:
    """E a(u + e) for e from N(0, variance), and its derivative in u."""
    scale = np.sqrt(variance + (1e-12 if kind == "relu" else 1.0))
    a = u / scale
    below, density = ndtr(a), np.exp(-0.5 * a**2) / np.sqrt(2 * np.pi)
    if kind == "relu":
        return u * below + scale * density, below
    return u * below + variance / scale * density, below + a * density / scale**2
