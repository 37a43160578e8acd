"""Matrix products through one BLAS.

NumPy and SciPy each ship a BLAS with threads of its own. After a product, its idle threads keep
spinning for a while; a LAPACK call of the other library then shares the cores with them. Where
products and LAPACK alternate, going through SciPy for both saves a fifth of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from fedran.core._linalg.arrays import Array, is_numpy_array

_BLOCK = 512


def matmul(A: Array, B: Array, out: NDArray[Any] | None = None) -> Array:
    """A @ B, row-major; ``out`` is filled when it is given (row-major, NumPy only)."""
    if not _plain(A, B):
        product = A @ B
        if out is None:
            return product
        out[...] = product
        return out
    # B'A' = (AB)' in BLAS's column-major eyes is AB in row-major ones.
    left, flip_left = _column_major(B.T)
    right, flip_right = _column_major(A.T)
    options: dict[str, Any] = {"trans_a": flip_left, "trans_b": flip_right}
    if out is not None:
        options |= {"c": out.T, "overwrite_c": 1}
    gemm = blas.sgemm if A.dtype == np.float32 else blas.dgemm
    return gemm(1.0, left, right, **options).T


def gram(A: Array) -> Array:
    """A'A, (w, w), both triangles filled."""
    if not _plain(A, A):
        return A.T @ A
    a, flip = _column_major(A)
    syrk = blas.ssyrk if A.dtype == np.float32 else blas.dsyrk
    return mirror(syrk(1.0, a, trans=1 - flip, lower=1))


def mirror(K: NDArray[Any]) -> NDArray[Any]:
    """Copy the lower triangle to the upper one, in place."""
    n = len(K)
    for i in range(0, n, _BLOCK):
        rows = slice(i, min(i + _BLOCK, n))
        K[:i, rows] = K[rows, :i].T
        corner = np.tril(K[rows, rows])
        K[rows, rows] = corner + np.tril(corner, -1).T
    return K


def add_outer(gram_: Array, factor: Array, sign: float = 1.0) -> Array:
    """gram + sign F F', in place where possible; in NumPy only the lower triangle."""
    if not is_numpy_array(gram_):
        gram_ += sign * (factor @ factor.T)
        return gram_
    a, flip = _column_major(factor)
    syrk = blas.ssyrk if gram_.dtype == np.float32 else blas.dsyrk
    return syrk(sign, a, beta=1.0, c=gram_, trans=flip, lower=1, overwrite_c=1)


def _plain(A: Array, B: Array) -> bool:
    """Whether BLAS can take both as they are: NumPy, one float dtype, not empty."""
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
