"""Solve (K + lambda I) X = B for a positive semidefinite K; factors of definite matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack, solve_triangular

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float64,
    cast,
    eps,
    is_numpy_array,
    linalg_errors,
    namespace,
)
from fedran.core._linalg.blas import index_blocks, matmul, mirror, symmetric

FLOAT32_LAMBDA = 1e38
"""A larger ridge overflows in float32 on the diagonal."""


def solve_definite(
    K: Float[Array, "w w"],
    B: Float64[Array, "w C"],
    lam: float,
    H: Float[Array, "n w"] | None = None,
    *,
    fallbacks: bool = True,
) -> tuple[Float64[Array, "w C"], Float64[Array, " n"] | None, str]:
    """(K + lam I)^-1 B in float64, h' (K + lam I)^-1 h of the rows H, and the method that worked.

    In NumPy the lower triangle of K is read. A column-major K is factorised in its own upper
    triangle, so that no second matrix is needed; its lower triangle and diagonal are unchanged
    afterwards. Tried in order: Cholesky in the dtype of K (if it can hold lam), Cholesky in
    float64, eigenvalues with those below rounding set to zero. Without ``fallbacks`` the first
    failure is a LinAlgError, for searches over lambda that skip values that do not work.
    """
    tried: list[str] = []
    single = eps(K) > 1e-10 and lam < FLOAT32_LAMBDA
    for dtype in dict.fromkeys(("float32" if single else "float64", "float64")):
        try:
            X, leverages = _cholesky(cast(K, dtype), B, H, lam)
        except np.linalg.LinAlgError as reason:
            if not fallbacks:
                raise
            tried.append(f"Cholesky in {dtype} failed ({reason})")
        else:
            return X, leverages, "; ".join([*tried, f"Cholesky in {dtype}"])
    X, leverages = _eigen(K, B, H, lam)
    return X, leverages, "; ".join([*tried, "eigenvalues, those below rounding zeroed"])


def _cholesky(
    K: Float[Array, "w w"], B: Float64[Array, "w C"], H: Float[Array, "n w"] | None, lam: float
) -> tuple[Float64[Array, "w C"], Float64[Array, " n"] | None]:
    # A common scale keeps huge or tiny sums inside the range of float32.
    xp = namespace(B)
    scale = float(xp.max(xp.abs(B))) or 1.0
    cholesky = _numpy_cholesky if is_numpy_array(K) else _torch_cholesky
    X, whitened = cholesky(K, B / scale, H, lam)
    if not bool(xp.all(xp.isfinite(X))):
        raise np.linalg.LinAlgError("triangular solve gave no finite result")
    leverages = None
    if whitened is not None:
        wide = cast(whitened, "float64")  # squares of small entries are below float32
        leverages = xp.sum(wide * wide, axis=0)
        if not bool(xp.all(xp.isfinite(leverages))):
            raise np.linalg.LinAlgError("triangular solve of the rows gave no finite result")
    return cast(X, "float64") * scale, leverages


def _numpy_cholesky(
    K: Float[NDArray[Any], "w w"],
    B: Float64[NDArray[Any], "w C"],
    H: Float[NDArray[Any], "n w"] | None,
    lam: float,
) -> tuple[Float[NDArray[Any], "w C"], Float[NDArray[Any], "w n"] | None]:
    """X, and R'^-1 H' of the factor K + lam I = R'R, whose columns have the leverages as norms."""
    single = K.dtype == np.float32
    factorise, solve = (lapack.spotrf, lapack.spotrs) if single else (lapack.dpotrf, lapack.dpotrs)
    substitute = blas.strsm if single else blas.dtrsm
    K = mirror(K if K.flags.f_contiguous else np.array(K, order="F"))
    diagonal = np.diagonal(K).copy()
    where = np.diag_indices_from(K)
    K[where] += lam
    try:
        R, info = factorise(K, lower=0, overwrite_a=1, clean=0)
        if info != 0:
            raise np.linalg.LinAlgError(f"pivot {info} of {len(K)} is not positive")
        X, _ = solve(R, np.asfortranarray(B, dtype=K.dtype), lower=0)
        whitened = None
        if H is not None:
            rows = np.array(H.T, dtype=K.dtype, order="F")
            whitened = substitute(1.0, R, rows, lower=0, trans_a=1, overwrite_b=1)
    finally:
        K[where] = diagonal
    return X, whitened


def _torch_cholesky(
    K: Float[Array, "w w"], B: Float64[Array, "w C"], H: Float[Array, "n w"] | None, lam: float
) -> tuple[Float[Array, "w C"], Float[Array, "w n"] | None]:
    xp = namespace(K)
    shifted = xp.asarray(K, copy=True)
    xp.linalg.diagonal(shifted).add_(lam)
    L, info = xp.linalg.cholesky_ex(shifted)
    if int(info) != 0:
        raise np.linalg.LinAlgError(f"pivot {int(info)} of {len(K)} is not positive")
    X = xp.cholesky_solve(xp.astype(B, K.dtype), L)
    if H is None:
        return X, None
    return X, xp.linalg.solve_triangular(L, xp.astype(H.T, K.dtype), upper=False)


def _eigen(
    K: Float[Array, "w w"], B: Float64[Array, "w C"], H: Float[Array, "n w"] | None, lam: float
) -> tuple[Float64[Array, "w C"], Float64[Array, " n"] | None]:
    xp = namespace(K)
    with linalg_errors():
        values, U = xp.linalg.eigh(cast(symmetric(K), "float64"))
    floor = K.shape[0] * eps(K) * float(values[-1])
    shifted = (xp.where(values > floor, values, 0.0) + lam)[:, None]
    X = U @ ((U.T @ B) / shifted)
    return X, None if H is None else xp.sum((U.T @ cast(H.T, "float64")) ** 2 / shifted, axis=0)


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


def congruent(A: Float[Array, "n n"], L: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """L^-1 A L'^-1 of a symmetric A, in place, half by half: n^3 operations, mostly products."""
    n = A.shape[0]
    if n <= 512:
        found = solve_lower(L, solve_lower(L, A).T)
        A[...] = (found + found.T) / 2
        return A
    half = n // 2
    A11, A21, A22 = A[:half, :half], A[half:, :half], A[half:, half:]
    L11, L21, L22 = L[:half, :half], L[half:, :half], L[half:, half:]
    congruent(A11, L11)
    change = matmul(L21, A11) / 2
    A21[...] = solve_lower(L11, A21.T).T - change
    outer = matmul(L21, A21.T)
    A22 -= outer + outer.T
    A21[...] = solve_lower(L22, A21 - change)
    congruent(A22, L22)
    A[:half, half:] = A21.T
    return A


def lower_product(L: Float[Array, "n n"], R: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """L R of two lower factors."""
    product = L * 0
    for rows in index_blocks(L.shape[0]):
        product[rows, : rows.stop] = matmul(L[rows, : rows.stop], R[: rows.stop, : rows.stop])
    return product
