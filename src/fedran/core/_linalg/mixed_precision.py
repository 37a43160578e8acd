"""Float64 products and norms of float32 matrices, lifting one block at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from fedran.core._linalg.arrays import Array, cast, is_numpy_array, like, namespace
from fedran.core._linalg.blas import gram, matmul

BLOCK = 512
"""Rows or columns of a matrix that are lifted to float64 at a time."""
POWER_STEPS = 30


def inner(F: Array, B: Array) -> tuple[Array, Array]:
    """F'F and F'B in float64, lifting a block of rows of F at a time."""
    xp, w = namespace(F), F.shape[1]
    K = like(np.zeros((w, w)), F)
    FtB = like(np.zeros((w, B.shape[1])), F)
    for rows in _blocks(F.shape[0]):
        part = xp.astype(F[rows], xp.float64)
        K += gram(part)
        FtB += matmul(part.T, B[rows])
    return K, FtB


def times(F: Array, X: Array) -> Array:
    """F X in float64, lifting a block of rows of F at a time."""
    xp = namespace(F)
    blocks = _blocks(F.shape[0])
    return xp.concat([matmul(xp.astype(F[rows], xp.float64), X) for rows in blocks], axis=0)


def transposed_times(F: Array, X: Array) -> Array:
    """F' X in float64."""
    xp = namespace(F)
    total = like(np.zeros((F.shape[1], X.shape[1])), F)
    for rows in _blocks(F.shape[0]):
        total += matmul(xp.astype(F[rows], xp.float64).T, X[rows])
    return total


def symmetric_times(G: Array, X: Array) -> Array:
    """G X in float64 for a symmetric G of which (in NumPy) the lower triangle is valid."""
    if not is_numpy_array(G):
        return times(G, X)
    Y = np.zeros_like(X)
    for cols in _blocks(G.shape[0]):  # by columns, as they lie in memory
        corner, below = _lower_part(G, cols)
        below_X = X[cols.stop :]
        Y[cols] += matmul(corner + np.tril(corner, -1).T, X[cols]) + matmul(below.T, below_X)
        Y[cols.stop :] += matmul(below, X[cols])
    return Y


def _lower_part(G: Array, cols: slice) -> tuple[Array, Array]:
    """The lower triangle of some columns in float64: the corner and what is below it."""
    xp = namespace(G)
    corner = xp.tril(cast(G[cols, cols], "float64"))
    return corner, cast(G[cols.stop :, cols], "float64")


def _blocks(n: int) -> list[slice]:
    return [slice(i, min(i + BLOCK, n)) for i in range(0, n, BLOCK)]


def spectral_norm(G: Array) -> float:
    """||G||_2 by power iteration from a fixed start; reads the lower triangle."""
    xp = namespace(G)
    x = like(_start_vector(G.shape[0]), G)
    x = xp.astype(x, G.dtype)
    value = 0.0
    for _ in range(POWER_STEPS):
        y = _matvec(G, x)
        previous, value = value, float(xp.linalg.vector_norm(y))
        if value == 0.0 or abs(value - previous) <= 1e-6 * value:
            break
        x = y / value
    return value


def _start_vector(n: int) -> NDArray[np.float64]:
    x = np.random.RandomState(0).standard_normal(n)
    return x / np.linalg.norm(x)


def _matvec(G: Array, x: Array) -> Array:
    if not is_numpy_array(G):
        return G @ x
    symv = blas.ssymv if G.dtype == np.float32 else blas.dsymv
    return symv(1.0, G, x, lower=1) if G.flags.f_contiguous else symv(1.0, G.T, x, lower=0)


def effective_rank(G: Array) -> float:
    """(tr G)^2 / ||G||_F^2: about how many directions share the energy. Reads the lower half."""
    xp = namespace(G)
    trace, squares = 0.0, 0.0
    for cols in _blocks(G.shape[0]):
        corner, below = _lower_part(G, cols)
        diagonal = xp.linalg.diagonal(corner)
        trace += float(xp.sum(diagonal))
        lower = float(xp.sum(corner * corner)) + float(xp.sum(below * below))
        squares += 2 * lower - float(xp.sum(diagonal * diagonal))
    return trace**2 / squares if squares > 0 else 0.0


def frobenius(X: Array) -> float:
    """||X||_F, 0 for a matrix without columns."""
    return float(namespace(X).linalg.vector_norm(X)) if X.shape[1] else 0.0
