r"""Solving :math:`(G + \lambda I) W = B`, by the cheapest route, with an account of how it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from fedran.core.accounts import Accounts
from fedran.core.arrays import Array, cast, eps, is_numpy_array, like, linalg_errors, namespace
from fedran.core.blas import gram, matmul
from fedran.core.exact_sum import symmetric

BLOCK = 512
"""Rows of a float32 matrix that are lifted to float64 at a time."""
POWER_STEPS = 30


@dataclass(frozen=True, slots=True)
class Ridge:
    r"""The ridge parameter: relative to the features' scale by default.

    :math:`\lambda = (\mathrm{base} + \mathrm{slope} \cdot f) \cdot \mathrm{mean} \|h\|^2`, with f
    the share of the energy that truncation removed; or an absolute value.

    >>> Ridge().value(Accounts(n_rows=10, energy=1000.0, cut=100.0))
    45.0
    >>> Ridge.absolute(1e-3).value(Accounts(n_rows=10, energy=1000.0))
    0.001
    """

    base: float = 0.05
    slope: float = 4.0
    fixed: float | None = None

    def __post_init__(self) -> None:
        for name in ("base", "slope", "fixed"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value >= 0):
                raise ValueError(f"ridge {name} must be finite and at least 0, got {value!r}")
        if (self.base if self.fixed is None else self.fixed) == 0:
            raise ValueError("the ridge must be positive: without it the solve is not defined")

    @classmethod
    def relative(cls, rho: float) -> Ridge:
        """lambda = rho * mean ||h||^2."""
        return cls(base=rho, slope=0.0)

    @classmethod
    def absolute(cls, value: float) -> Ridge:
        """lambda = value, whatever the scale of the features."""
        return cls(fixed=value)

    @classmethod
    def parse(cls, ridge: Ridge | float | None) -> Ridge:
        """A Ridge as it is, a number as an absolute value, None as the default rule."""
        if ridge is None:
            return cls()
        return ridge if isinstance(ridge, Ridge) else cls.absolute(float(ridge))

    def value(self, accounts: Accounts) -> float:
        """lambda for what was absorbed; 1.0 where the features have no energy at all."""
        if self.fixed is not None:
            return self.fixed
        rho = self.base + self.slope * accounts.cut_fraction
        return rho * accounts.mean_row_energy or 1.0


class Solution(NamedTuple):
    """W and how it was found."""

    weights: Array
    route: str
    norm: float
    """||G||_2 (power iteration)."""
    effective_rank: float
    """(tr G)^2 / ||G||_F^2."""
    residual: float
    """||B - (G + lambda I) W||_F, computed in float64."""
    outside: float
    """||(I - VV')B||_F where the complement was dropped, else 0."""


def solve_stack(F: Array, B: Array, lam: float) -> Solution:
    r"""W = (FF' + lambda I)^-1 B = (B - F (F'F + lambda I)^-1 F'B) / lambda, in float64.

    F (M, w), B (M, C): w^2 M + w^3 / 3 + 4 M w C operations; no (M, M) matrix.
    """
    K, FtB = _inner(F, B)
    if F.shape[1] == 0:
        return Solution(B / lam, "no features", 0.0, 0.0, 0.0, 0.0)
    X, route = _cholesky(K, FtB, lam)
    W = (B - times(F, X)) / lam
    residual = B - lam * W - times(F, _transposed_times(F, W))
    spread = _spread(K)
    return Solution(W, f"stack, {route}", _norm(K), spread, _fro(residual), 0.0)


def solve_gram(G: Array, B: Array, lam: float) -> Solution:
    """W = (G + lambda I)^-1 B by a Cholesky factorisation of a copy of G, (M, M).

    M^3 / 3 + 2 M^2 C operations in the dtype of G and one copy of it; the residual in float64.
    Where the factorisation breaks down: float64, then eigenvalues with those below rounding set
    to zero. The route says which.
    """
    W, route = _cholesky(G, B, lam)
    residual = B - lam * W - symmetric_times(G, W)
    return Solution(W, f"gram, {route}", _norm(G), _spread(G), _fro(residual), 0.0)


def solve_subspace(F: Array, B: Array, lam: float) -> Solution:
    r"""The paper's head: W = V (diag(sigma^2) + lambda I)^-1 V'B, zero outside span(V).

    V and sigma come from the eigenvectors of F'F, so F need not have orthogonal columns.
    """
    xp = namespace(B)
    K, FtB = _inner(F, B)
    if F.shape[1] == 0:
        return Solution(B * 0.0, "no features", 0.0, 0.0, 0.0, _fro(B))
    with linalg_errors():
        values, U = xp.linalg.eigh(K)
    keep = values > K.shape[0] * eps(K) * values[-1]
    values, U = values[keep], U[:, keep]
    projected = (U.T @ FtB) / xp.sqrt(values)[:, None]  # V'B
    scaled = U / xp.sqrt(values)  # V = F @ scaled
    W = times(F, scaled @ (projected / (values + lam)[:, None]))
    outside = B - times(F, scaled @ projected)
    return Solution(W, "subspace", float(values[-1]), _spread(K), 0.0, _fro(outside))


def _cholesky(K: Array, B: Array, lam: float) -> tuple[Array, str]:
    """(K + lam I)^-1 B in float64 and the route, K symmetric with a valid lower triangle."""
    tried: list[str] = []
    for dtype in ("float32", "float64"):
        if dtype == "float32" and eps(K) < 1e-10:
            continue
        try:
            return _cholesky_once(cast(K, dtype), B, lam), "; ".join(
                [*tried, f"Cholesky in {dtype}"]
            )
        except np.linalg.LinAlgError as reason:
            tried.append(f"Cholesky in {dtype} failed ({reason})")
    return _eigen_solve(K, B, lam), "; ".join([*tried, "eigenvalues, those below rounding zeroed"])


def _cholesky_once(K: Array, B: Array, lam: float) -> Array:
    if not is_numpy_array(K):
        return _torch_cholesky(K, B, lam)
    shifted = np.array(K, order="F", copy=True)
    shifted[np.diag_indices_from(shifted)] += lam
    single = K.dtype == np.float32
    factorise, solve = (lapack.spotrf, lapack.spotrs) if single else (lapack.dpotrf, lapack.dpotrs)
    L, info = factorise(shifted, lower=1, overwrite_a=1, clean=0)
    if info != 0:
        raise np.linalg.LinAlgError(f"pivot {info} of {len(K)} is not positive")
    # A common scale keeps huge or tiny sums inside the range of float32.
    scale = float(np.max(np.abs(B))) or 1.0
    X, info = solve(L, np.asfortranarray(B / scale, dtype=K.dtype), lower=1)
    if info != 0 or not np.all(np.isfinite(X)):
        raise np.linalg.LinAlgError("triangular solve gave no finite result")
    return X.astype(np.float64) * scale


def _torch_cholesky(K: Array, B: Array, lam: float) -> Array:
    xp = namespace(K)
    shifted = xp.asarray(K, copy=True)
    xp.linalg.diagonal(shifted).add_(lam)
    L, info = xp.linalg.cholesky_ex(shifted)
    if int(info) != 0:
        raise np.linalg.LinAlgError(f"pivot {int(info)} of {len(K)} is not positive")
    scale = float(xp.max(xp.abs(B))) or 1.0
    X = xp.cholesky_solve(xp.astype(B / scale, K.dtype), L)
    if not bool(xp.all(xp.isfinite(X))):
        raise np.linalg.LinAlgError("triangular solve gave no finite result")
    return cast(X, "float64") * scale


def _eigen_solve(K: Array, B: Array, lam: float) -> Array:
    xp = namespace(K)
    with linalg_errors():
        values, U = xp.linalg.eigh(cast(symmetric(K), "float64"))
    floor = K.shape[0] * eps(K) * float(values[-1])
    values = xp.where(values > floor, values, 0.0)
    return U @ ((U.T @ B) / (values + lam)[:, None])


def _inner(F: Array, B: Array) -> tuple[Array, Array]:
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


def _transposed_times(F: Array, X: Array) -> Array:
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
    for rows in _blocks(G.shape[0]):
        left = G[rows, : rows.start].astype(np.float64)
        corner = G[rows, rows].astype(np.float64)
        corner = np.tril(corner) + np.tril(corner, -1).T
        Y[rows] += matmul(left, X[: rows.start]) + matmul(corner, X[rows])
        Y[: rows.start] += matmul(left.T, X[rows])
    return Y


def _blocks(n: int) -> list[slice]:
    return [slice(i, min(i + BLOCK, n)) for i in range(0, n, BLOCK)]


def _norm(G: Array) -> float:
    """||G||_2 by power iteration from a fixed start, with a valid lower triangle."""
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


def _spread(G: Array) -> float:
    """(tr G)^2 / ||G||_F^2: about how many directions share the energy."""
    trace, squares = 0.0, 0.0
    xp = namespace(G)
    for rows in _blocks(G.shape[0]):
        left = xp.astype(G[rows, : rows.start], xp.float64)
        corner = xp.tril(xp.astype(G[rows, rows], xp.float64))
        diagonal = xp.linalg.diagonal(corner)
        trace += float(xp.sum(diagonal))
        off = float(xp.sum(left**2)) + float(xp.sum(corner**2)) - float(xp.sum(diagonal**2))
        squares += 2 * off + float(xp.sum(diagonal**2))
    return trace**2 / squares if squares > 0 else 0.0


def _fro(X: Array) -> float:
    return float(namespace(X).linalg.vector_norm(X)) if X.shape[1] else 0.0


__all__ = ["Ridge", "Solution", "solve_gram", "solve_stack", "solve_subspace"]
