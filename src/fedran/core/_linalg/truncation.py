r"""The leading factor of A A', for summaries, truncation and merges.

Given A (M, w), whose columns may be rows of H or factors side by side, find F (M, k) with
F F' = T_k(A A'), the best approximation of rank k. The smaller Gram is used:

* w <= M: K = A'A (w, w) = U diag(l) U', and F = A U_k. F's columns are orthogonal with norms
  sqrt(l), so no division is needed and F F' <= A A' holds to rounding.
* w > M: K = A A' (M, M) = V diag(l) V', and F = V_k sqrt(l_k).

Cost: w^2 M for K, about 4/3 w^3 for the eigenvectors, 2 w M k for F (w <= M).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float64,
    cast,
    eps,
    is_numpy_array,
    linalg_errors,
    namespace,
    require_finite,
)
from fedran.core._linalg.blas import gram, matmul
from fedran.core.errors import positive_integer
from fedran.core.sums.accounts import Loss

RESOLVED = 8.0
"""Eigenvalues below RESOLVED * eps * l_1 cannot be trusted in a Gram computed in that precision."""
RITZ_SHARE = 3
"""Eigenvectors are sought in float32 when at most 1/RITZ_SHARE of them are wanted ..."""
RITZ_RESOLVED = 1000.0
"""... and the smallest of them is at least RITZ_RESOLVED * eps * l_1."""


@dataclass(frozen=True)
class Leading:
    """A leading factor, what was discarded, and how it was computed."""

    factor: Float[Array, "M k"]
    loss: Loss
    energy: float
    """||A||_F^2 in float64."""
    route: str


def leading(A: Float[Array, "M w"], rank: int | None, name: str = "the matrix") -> Leading:
    """The leading factor of A A' by eigenvectors of the smaller Gram.

    Keeps ``rank`` columns, or all with None. Columns that are zero to rounding are dropped. Tried
    in order: float32 eigenvectors with a float64 Rayleigh-Ritz step, float64 eigenvectors of the
    Gram in the dtype of A, the same with the Gram in float64, a thin SVD. ``route`` names the one
    that succeeded and those that failed before it.
    """
    xp = namespace(A)
    K = _small_gram(A)
    energy = _trace(K)
    tried: list[str] = []
    finfo = xp.finfo(A.dtype)
    subnormal = float(finfo.smallest_normal) / float(finfo.eps) * (A.shape[1] + 1)
    if not (np.isfinite(energy) and energy > subnormal):
        require_finite(A.T, name)
        if not bool(xp.any(A != 0)):
            return Leading(A[:, :0], Loss(), 0.0, "empty")
        tried.append(f"{A.dtype} (squares out of its range)")
        K = _small_gram(cast(A, "float64"))
        energy = _trace(K)
        if not (np.isfinite(energy) and energy > np.finfo(np.float64).tiny):
            raise ValueError(
                f"{name} has values between {float(xp.min(A)):g} and {float(xp.max(A)):g}, whose "
                "squares are out of the range of float64; rescale the features"
            )
    attempts: list[tuple[str, _Attempt]] = [("gram in float64", _by_gram64), ("svd", _by_svd)]
    if eps(K) > 1e-10:
        attempts.insert(0, ("gram", partial(_by_gram, untrusted=RESOLVED * eps(K))))
        few = isinstance(rank, int) and RITZ_SHARE * (rank + 1) <= A.shape[1] <= A.shape[0]
        if few and is_numpy_array(A):
            attempts.insert(0, ("ritz", _by_ritz))
    for route, attempt in attempts:
        try:
            factor, loss = attempt(A, K, rank, energy)
        except (_Unresolved, np.linalg.LinAlgError) as reason:
            tried.append(f"{route} ({reason})")
            continue
        note = f", after {' and '.join(tried)}" if tried else ""
        if tried and not bool(xp.all(xp.isfinite(factor))):
            raise ValueError(
                f"{name} has norms out of the range of {A.dtype}; rescale the features"
            )
        return Leading(factor, loss, energy, route + note)
    raise np.linalg.LinAlgError(f"no factorisation of {name} succeeded: " + "; ".join(tried))


def leading_of_gram(G: Float[Array, "M M"], rank: int | None) -> Leading:
    """The leading factor of a given symmetric (M, M) matrix: F = V_k sqrt(l_k)."""
    energy = _trace(G)
    if energy == 0.0:
        return Leading(G[:, :0], Loss(), 0.0, "empty")
    factor, loss = _by_gram(None, G, rank, energy, negligible=RESOLVED * eps(G))
    return Leading(factor, loss, energy, "gram")


def square_factor(A: Float[Array, "M w"]) -> Float[Array, "M M"]:
    """An (M, M) factor with the same A A' as a wider A: R' of the QR of A'. Lossless."""
    if is_numpy_array(A):
        (R,) = scipy.linalg.qr(A.T, mode="r", check_finite=False)
        return np.ascontiguousarray(R[: A.shape[0]].T)
    return namespace(A).linalg.qr(A.T, mode="reduced")[1].T


def check_rank(rank: int | None) -> int | None:
    """``rank`` if it is a positive integer or None, which keeps everything."""
    return None if rank is None else positive_integer(rank, "rank", or_none=" or None")


class _Unresolved(Exception):
    """The wanted eigenvalues are too small for the precision that was tried."""


_Attempt = Callable[[Array, Array, Any, float], tuple[Array, Loss]]


def _by_ritz(
    A: Float[Array, "M w"], K: Float[Array, "w w"], rank: int, energy: float
) -> tuple[Float[Array, "M k"], Loss]:
    w = K.shape[0]
    values, U = eigh_some(K, first=w - rank - 1)
    floor = RITZ_RESOLVED * eps(A) * float(values[-1])
    if values[0] < floor:
        raise _Unresolved("spectrum too steep")
    U, kept = U[:, 1:], values[1:]
    rough = matmul(A, U)
    ritz, Q = scipy.linalg.eigh(gram(rough.astype(np.float64)), check_finite=False)
    factor = matmul(rough, Q[:, ::-1].astype(np.float32))
    rest = K - matmul(U * kept, U.T)
    return factor, Loss(
        spectral=float(values[0]),
        # In float64: squares of float32 values can be out of the range of float32.
        frobenius=float(np.sqrt(np.einsum("ij,ij->", rest, rest, dtype=np.float64))),
        trace=max(0.0, energy - float(ritz.sum())),
    )


def _by_gram64(
    A: Float[Array, "M w"], K: Float[Array, "s s"], rank: int | None, energy: float
) -> tuple[Float[Array, "M k"], Loss]:
    A64 = cast(A, "float64")
    K64 = K if K.dtype == A64.dtype else _small_gram(A64)
    factor, loss = _by_gram(A64, K64, rank, energy)
    with np.errstate(over="ignore"):
        return namespace(A).astype(factor, A.dtype), loss


def _by_svd(
    A: Float[Array, "M w"], _K: Array, rank: int | None, _energy: float
) -> tuple[Float[Array, "M k"], Loss]:
    xp = namespace(A)
    with linalg_errors():
        U, s, _ = xp.linalg.svd(cast(A, "float64"), full_matrices=False)
    values = s**2
    k = min(rank or len(values), resolved(values, eps(values) ** 2))
    return xp.astype(U[:, :k] * s[:k], A.dtype), loss_beyond(values, k)


def _by_gram(
    A: Float[Array, "M w"] | None,
    K: Float[Array, "s s"],
    rank: int | None,
    energy: float,
    untrusted: float = 0.0,
    negligible: float = 0.0,
) -> tuple[Float[Array, "M k"], Loss]:
    """Factor and loss from the eigenvectors U and eigenvalues l of K in float64.

    The factor is A U where K is A'A, and U sqrt(l) where K is A A' or no A is given. A wanted
    eigenvalue below ``untrusted`` l_1 raises _Unresolved: K should be computed in a higher
    precision. One below ``negligible`` l_1, or float64 rounding, counts as zero.
    """
    xp, w = namespace(K), K.shape[0]
    first = 0 if rank is None else max(0, w - rank - 1)
    values, U = eigh(K, first)
    values, U = xp.flip(values, axis=0), xp.flip(U, axis=1)
    k = w if rank is None else min(w, rank)
    if untrusted and values[k - 1] < untrusted * values[0]:
        raise _Unresolved("spectrum too steep for its precision")
    k = min(k, resolved(values, max(negligible, w * eps(values))))
    kept, U = values[:k], U[:, :k]
    if A is None or A.shape[1] > A.shape[0]:
        factor = xp.astype(U * xp.sqrt(xp.clip(kept, min=0)), K.dtype)
    else:
        factor = matmul(A, xp.astype(U, A.dtype))
    if first == 0:
        return factor, loss_beyond(values, k)
    return factor, Loss(
        spectral=max(0.0, float(values[k])),
        frobenius=float(xp.linalg.vector_norm(cast(K, "float64") - matmul(U * kept, U.T))),
        trace=max(0.0, energy - float(xp.sum(kept))),
    )


def _small_gram(A: Float[Array, "M w"]) -> Float[Array, "s s"]:
    with np.errstate(over="ignore", invalid="ignore"):  # the trace tells
        return gram(A if A.shape[1] <= A.shape[0] else A.T)


def _trace(K: Float[Array, "s s"]) -> float:
    xp = namespace(K)
    return float(xp.sum(xp.linalg.diagonal(K), dtype=xp.float64))


def resolved(values: Float64[Array, " s"], precision: float) -> int:
    """How many of the descending eigenvalues are larger than rounding errors (at least one)."""
    floor = precision * float(values[0])
    return max(1, int(namespace(values).count_nonzero(values > floor)))


def loss_beyond(values: Float64[Array, " s"], k: int) -> Loss:
    """Loss when the full descending spectrum is known."""
    rest = np.maximum(np.asarray(values[k:].tolist()), 0.0)
    if rest.size == 0:
        return Loss()
    return Loss(float(rest[0]), float(np.linalg.norm(rest)), float(rest.sum()))


def eigh(K: Float[Array, "w w"], first: int) -> tuple[Float64[Array, " k"], Float64[Array, "w k"]]:
    """Eigenpairs ``first`` .. end of K, ascending, in float64."""
    if not is_numpy_array(K):
        with linalg_errors():
            values, U = namespace(K).linalg.eigh(cast(K, "float64"))
    elif K.shape[0] - first <= K.shape[0] / 6:
        return eigh_some(K.astype(np.float64), first)
    else:
        values, U = scipy.linalg.eigh(cast(K, "float64"), driver="evd", check_finite=False)
    return values[first:], U[:, first:]


def eigh_some(
    K: Float[NDArray[Any], "w w"], first: int
) -> tuple[Float[NDArray[Any], " k"], Float[NDArray[Any], "w k"]]:
    """Eigenpairs ``first`` .. end of K in its own precision, by LAPACK's evr."""
    span = [first, K.shape[0] - 1]
    return scipy.linalg.eigh(K, driver="evr", subset_by_index=span, check_finite=False)
