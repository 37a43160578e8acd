"""Matrix products through one BLAS, symmetric matrices stored as one triangle, float64 products.

NumPy and SciPy each ship a BLAS with its own threads. After a product, its idle threads keep
spinning for a while, and a LAPACK call of the other library then shares the cores with them. Where
products and LAPACK alternate, using SciPy for both saves a fifth of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float64,
    cast,
    is_numpy_array,
    like,
    namespace,
    to_numpy,
)

BLOCK = 512
"""Rows or columns that are mirrored, or converted to float64, at a time."""


def matmul(
    A: Float[Array, "m k"], B: Float[Array, "k n"], out: Float[Array, "m n"] | None = None
) -> Float[Array, "m n"]:
    """A @ B, row-major; ``out`` is filled when it is given, and must be row-major too."""
    if not _fit_for_blas(A, B):
        product = A @ B
        if out is None:
            return product
        out[...] = product
        return out
    # BLAS is column-major: the memory of its (AB)' = B'A' is that of a row-major AB.
    left, flip_left = _column_major(B.T)
    right, flip_right = _column_major(A.T)
    options: dict[str, Any] = {"trans_a": flip_left, "trans_b": flip_right}
    if out is not None:
        options |= {"c": out.T, "overwrite_c": 1}
    gemm = blas.sgemm if A.dtype == np.float32 else blas.dgemm
    return gemm(1.0, left, right, **options).T


def gram(A: Float[Array, "m w"]) -> Float[Array, "w w"]:
    """A'A, (w, w), both triangles filled."""
    if not _fit_for_blas(A, A):
        return A.T @ A
    a, flip = _column_major(A)
    syrk = blas.ssyrk if A.dtype == np.float32 else blas.dsyrk
    return mirror(syrk(1.0, a, trans=1 - flip, lower=1))


def mirror(K: Float[NDArray[Any], "w w"]) -> Float[NDArray[Any], "w w"]:
    """Copy the lower triangle to the upper one, in place."""
    n = len(K)
    for i in range(0, n, BLOCK):
        rows = slice(i, min(i + BLOCK, n))
        K[:i, rows] = K[rows, :i].T
        corner = np.tril(K[rows, rows])
        K[rows, rows] = corner + np.tril(corner, -1).T
    return K


def add_outer(
    G: Float[Array, "M M"], factor: Float[Array, "M r"], sign: float = 1.0
) -> Float[Array, "M M"]:
    """G + sign F F', in place where possible; in NumPy only the lower triangle."""
    if not is_numpy_array(G):
        G += sign * (factor @ factor.T)
        return G
    a, flip = _column_major(factor)
    syrk = blas.ssyrk if G.dtype == np.float32 else blas.dsyrk
    return syrk(sign, a, beta=1.0, c=G, trans=flip, lower=1, overwrite_c=1)


def symmetric(G: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """A symmetric copy of a matrix; in NumPy its lower triangle is read."""
    copy = namespace(G).asarray(G, copy=True)
    return mirror(copy) if is_numpy_array(G) else copy


def pack_lower(G: Float[Array, "M M"]) -> Float[NDArray[Any], " packed"]:
    """The lower triangle column by column, (M (M + 1) / 2,)."""
    # On a device both triangles are valid; the transpose makes the reads contiguous.
    matrix = G if is_numpy_array(G) else to_numpy(G).T
    m = matrix.shape[0]
    packed = np.empty(m * (m + 1) // 2, dtype=matrix.dtype)
    start = 0
    for j in range(m):
        packed[start : start + m - j] = matrix[j:, j]
        start += m - j
    return packed


def unpack_lower(packed: Float[NDArray[Any], " packed"], m: int) -> Float[NDArray[Any], "M M"]:
    """Inverse of ``pack_lower``: Fortran order, lower triangle filled, zeros above."""
    matrix = np.zeros((m, m), dtype=packed.dtype, order="F")
    start = 0
    for j in range(m):
        matrix[j:, j] = packed[start : start + m - j]
        start += m - j
    return matrix


def inner(
    F: Float[Array, "M w"], B: Float64[Array, "M C"]
) -> tuple[Float64[Array, "w w"], Float64[Array, "w C"]]:
    """F'F and F'B in float64, converting one block of rows of F at a time."""
    xp, w = namespace(F), F.shape[1]
    K = like(np.zeros((w, w)), F)
    FtB = like(np.zeros((w, B.shape[1])), F)
    for rows in index_blocks(F.shape[0]):
        part = xp.astype(F[rows], xp.float64)
        K += gram(part)
        FtB += matmul(part.T, B[rows])
    return K, FtB


def times(F: Float[Array, "M w"], X: Float64[Array, "w C"]) -> Float64[Array, "M C"]:
    """F X in float64, converting one block of rows of F at a time."""
    xp = namespace(F)
    blocks = index_blocks(F.shape[0])
    return xp.concat([matmul(xp.astype(F[rows], xp.float64), X) for rows in blocks], axis=0)


def transposed_times(F: Float[Array, "M w"], X: Float64[Array, "M C"]) -> Float64[Array, "w C"]:
    """F' X in float64."""
    xp = namespace(F)
    total = like(np.zeros((F.shape[1], X.shape[1])), F)
    for rows in index_blocks(F.shape[0]):
        total += matmul(xp.astype(F[rows], xp.float64).T, X[rows])
    return total


def symmetric_times(G: Float[Array, "M M"], X: Float64[Array, "M C"]) -> Float64[Array, "M C"]:
    """G X in float64 for a symmetric G of which (in NumPy) the lower triangle is valid."""
    if not is_numpy_array(G):
        return times(G, X)
    Y = np.zeros_like(X)
    for cols in index_blocks(G.shape[0]):  # by columns, as they lie in memory
        corner, below = lower_part(G, cols)
        below_X = X[cols.stop :]
        Y[cols] += matmul(corner + np.tril(corner, -1).T, X[cols]) + matmul(below.T, below_X)
        Y[cols.stop :] += matmul(below, X[cols])
    return Y


def lower_part(
    G: Float[Array, "M M"], cols: slice
) -> tuple[Float64[Array, "b b"], Float64[Array, "below b"]]:
    """Some columns of the lower triangle in float64: the square on the diagonal, the rows below."""
    xp = namespace(G)
    corner = xp.tril(cast(G[cols, cols], "float64"))
    return corner, cast(G[cols.stop :, cols], "float64")


def index_blocks(n: int) -> list[slice]:
    """Slices of BLOCK indices that cover 0 .. n."""
    return [slice(i, min(i + BLOCK, n)) for i in range(0, n, BLOCK)]


def _fit_for_blas(A: Array, B: Array) -> bool:
    """Whether BLAS accepts both without conversion: NumPy, one float dtype, not empty."""
    return (
        is_numpy_array(A)
        and is_numpy_array(B)
        and A.dtype == B.dtype
        and A.dtype in (np.float32, np.float64)
        and min(*A.shape, *B.shape) > 0
    )


def _column_major(X: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """X in column-major memory and 0, or its transpose and 1: whichever needs no copy."""
    if X.flags.f_contiguous:
        return X, 0
    return (X.T, 1) if X.flags.c_contiguous else (np.asfortranarray(X), 0)
