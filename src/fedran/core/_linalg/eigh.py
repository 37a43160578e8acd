"""Eigenpairs of a symmetric matrix, by the fastest driver for the number that is wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import lapack

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float32,
    Float64,
    cast,
    is_numpy_array,
    linalg_errors,
    namespace,
)
from fedran.core._linalg.blas import matmul

MIXED_SIZE = 512
"""From this size on, eigenvectors for a float32 factor are transformed back in float32 ..."""
DOMINANT = 16
"""... but for this many dominant ones."""


def eigh(K: Float[Array, "w w"], first: int) -> tuple[Float64[Array, " k"], Float[Array, "w k"]]:
    """Eigenpairs ``first`` .. end of K, ascending, accurate to float64."""
    if not is_numpy_array(K):
        with linalg_errors():
            values, U = namespace(K).linalg.eigh(cast(K, "float64"))
        return values[first:], U[:, first:]
    n = K.shape[0]
    if n - first <= n / 6:
        return eigh_some(K.astype(np.float64), first)
    if K.dtype == np.float32 and n >= MIXED_SIZE:
        values, U = _eigh_mixed(K)
    else:
        values, U = scipy.linalg.eigh(cast(K, "float64"), driver="evd", check_finite=False)
    return values[first:], U[:, first:]


def eigh_some(
    K: Float[NDArray[Any], "w w"], first: int
) -> tuple[Float[NDArray[Any], " k"], Float[NDArray[Any], "w k"]]:
    """Eigenpairs ``first`` .. end of K in its own precision, by LAPACK's evr."""
    span = [first, K.shape[0] - 1]
    return scipy.linalg.eigh(K, driver="evr", subset_by_index=span, check_finite=False)


def _eigh_mixed(
    K: Float32[NDArray[Any], "w w"],
) -> tuple[Float64[NDArray[Any], " w"], Float32[NDArray[Any], "w w"]]:
    """All eigenpairs of K, ascending: values in float64, vectors as accurate as rounded float64.

    K = Q T Q' and T = S diag(l) S' are computed in float64, U = Q S in float32, which the caller
    wants and which is half the work. The harmful part of the rounding of U is its overlap with
    the few dominant directions. Those are computed in float64 and projected out of the rest.
    """
    n = K.shape[0]
    C, d, e, tau, _ = lapack.dsytrd(
        np.array(K, dtype=np.float64, order="F"), lower=1, lwork=64 * n, overwrite_a=1
    )
    values, S = scipy.linalg.eigh_tridiagonal(d, e, check_finite=False)
    reflectors = np.asfortranarray(C[1:, :-1])
    U = _apply_reflectors(lapack.sormqr, reflectors, tau, S, np.float32)
    top = _apply_reflectors(lapack.dormqr, reflectors, tau, S[:, -DOMINANT:], np.float64)
    rest = U[:, :-DOMINANT]
    rest -= matmul(top, matmul(top.T, rest.astype(np.float64)))
    U[:, -DOMINANT:] = top
    return values, U


def _apply_reflectors(
    ormqr: Any,
    reflectors: Float64[NDArray[Any], "v v"],
    tau: Float64[NDArray[Any], " v"],
    S: Float64[NDArray[Any], "w k"],
    dtype: type,
) -> Float[NDArray[Any], "w k"]:
    """Q S, the first row of which is that of S (the shape of LAPACK's tridiagonal Q)."""
    U: NDArray[Any] = np.array(S, dtype=dtype, order="F")
    a: NDArray[Any] = reflectors.astype(dtype, copy=False)
    U[1:], _, info = ormqr(
        "L", "N", a, tau.astype(dtype), np.asfortranarray(U[1:]), lwork=64 * U.shape[1]
    )
    if info != 0:
        raise np.linalg.LinAlgError(f"ormqr returned {info}")
    return U
