"""The ridge parameter, and solving (G + lambda I) W = B by the cheapest route."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack
from threadpoolctl import ThreadpoolController

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float64,
    cast,
    eps,
    is_numpy_array,
    like,
    namespace,
    to_numpy,
)
from fedran.core._linalg.blas import (
    BLOCK,
    index_blocks,
    inner,
    lower_part,
    symmetric,
    symmetric_times,
    times,
    transposed_times,
)
from fedran.core._linalg.cholesky import solve_definite
from fedran.core._linalg.truncation import leading_of_gram
from fedran.core.errors import real_number
from fedran.core.sums.accounts import Accounts

POWER_STEPS = 30
"""Most steps of the power iteration for ||G||_2."""


@dataclass(frozen=True, slots=True)
class Ridge:
    r"""The ridge parameter: relative to the features' scale by default.

    ``lambda = (base + slope f n^power) mean ||h||^2``, where f is the share of the energy that
    truncation removed and n the mean number of rows per summary; or an absolute value. The
    power is 1/2 for truncated summaries and 1 for sketches (``sketch_ridge``). The constants
    were chosen on held-out training rows (results/constants.md): the best ridge grows with f, and
    for the same f it is smaller where many small clients contribute.

    Wherever a ridge is asked for, a plain number means a multiple of this rule: 1.0 is the rule
    itself and 10 gives ten times its lambda.

    >>> accounts = Accounts(n_rows=100, parts=1, energy=1000.0, cut=100.0)
    >>> Ridge().value(accounts), Ridge.parse(10).value(accounts)
    (1.0, 10.0)
    >>> Ridge.absolute(1e-3).value(accounts)
    0.001
    """

    SEARCHED: ClassVar[tuple[float, ...]] = tuple(
        float(f"{10 ** (k / 4):.3g}") for k in range(-8, 17)
    )
    """Multiples among which ``ridge="cv"`` of the estimators chooses."""

    base: float = 0.03
    slope: float = 0.07
    fixed: float | None = None
    power: float = 0.5

    def __post_init__(self) -> None:
        for name in ("base", "slope", "fixed", "power"):
            value = getattr(self, name)
            if name == "fixed" and value is None:
                continue
            what = "the ridge" if name == "fixed" else f"the ridge's {name}"
            if not 0 <= real_number(value, what) < math.inf:
                raise ValueError(f"{what} must be a finite, positive number, got {value!r}")
        if (self.base if self.fixed is None else self.fixed) == 0:
            raise ValueError("the ridge must be positive: without it the solve is not defined")

    @classmethod
    def relative(cls, rho: float) -> Ridge:
        """lambda = rho * mean ||h||^2."""
        return cls(base=rho, slope=0.0)

    @classmethod
    def absolute(cls, value: float) -> Ridge:
        """lambda = value, independent of the scale of the features."""
        return cls(fixed=real_number(value, "the ridge"))

    @classmethod
    def parse(cls, ridge: Ridge | float | None) -> Ridge:
        """A Ridge unchanged, a number as that multiple of the default rule, None as the rule."""
        if ridge is None:
            return cls()
        if isinstance(ridge, Ridge):
            return ridge
        if isinstance(ridge, bool) or not isinstance(ridge, (int, float, np.number)):
            raise TypeError(f"ridge must be a number, a Ridge or None, got {ridge!r}")
        rule, times = cls(), float(ridge)
        if not (math.isfinite(times) and times > 0):
            raise ValueError(f"ridge must be a finite, positive number, got {ridge!r}")
        return cls(base=times * rule.base, slope=times * rule.slope)

    def value(self, accounts: Accounts) -> float:
        """lambda for these accounts; 1.0 where the features have no energy at all."""
        if self.fixed is not None:
            return self.fixed
        growth = accounts.cut_fraction * accounts.rows_per_part**self.power
        rho = self.base + self.slope * growth
        return rho * accounts.mean_row_energy or 1.0


class Solution(NamedTuple):
    """W and how it was found."""

    weights: Float64[Array, "M C"]
    route: str
    norm: float
    """||G||_2 (power iteration)."""
    effective_rank: float
    """(tr G)^2 / ||G||_F^2."""
    residual: float
    """||B - (G + lambda I) W||_F, computed in float64."""
    outside: float
    """||(I - VV')B||_F where the head is zero outside a subspace, else 0."""
    leverages: Float64[NDArray[Any], " n"] | None = None
    """h' (G + lambda I)^-1 h of the rows that were asked for."""


def solve_stack(
    F: Float[Array, "M w"],
    B: Float64[Array, "M C"],
    lam: float,
    H: Float[Array, "n M"] | None = None,
) -> Solution:
    r"""W = (FF' + lambda I)^-1 B = (B - F (F'F + lambda I)^-1 F'B) / lambda, in float64.

    Leverages of the rows H are (h'h - h'F (F'F + lambda I)^-1 F'h) / lambda.

    F (M, w), B (M, C): w^2 M + w^3 / 3 + 4 M w C operations; no (M, M) matrix.
    """
    K, FtB = inner(F, B)
    if F.shape[1] == 0:
        return Solution(B / lam, "no features", 0.0, 0.0, 0.0, 0.0)
    HF = None if H is None else transposed_times(F, cast(H.T, "float64")).T
    X, leverages, route = solve_definite(K, FtB, lam, HF)
    if H is not None and leverages is not None:
        xp = namespace(H)
        leverages = to_numpy((xp.sum(cast(H, "float64") ** 2, axis=1) - leverages) / lam)
    W = (B - times(F, X)) / lam
    residual = B - lam * W - times(F, transposed_times(F, W))
    spread = effective_rank(K)
    norms = spectral_norm(K), spread, frobenius(residual)
    return Solution(W, f"stack, {route}", *norms, 0.0, leverages)


def solve_gram(
    G: Float[Array, "M M"],
    B: Float64[Array, "M C"],
    lam: float,
    H: Float[Array, "n M"] | None = None,
) -> Solution:
    """W = (G + lambda I)^-1 B by a Cholesky factorisation, G (M, M); leverages of the rows H.

    M^3 / 3 + 2 M^2 C + M^2 n operations in the dtype of G. In NumPy the factorisation overwrites
    the upper triangle of a column-major G, so that no second (M, M) matrix is needed; while it
    runs, no other thread may read G. The residual is computed in float64.
    """
    W, found, route = solve_definite(G, B, lam, H)
    leverages = None if found is None else to_numpy(found)
    residual = frobenius(B - lam * W - symmetric_times(G, W))
    spread = effective_rank(G)
    return Solution(W, f"gram, {route}", spectral_norm(G), spread, residual, 0.0, leverages)


def log_evidence(
    G: Float[NDArray[Any], "r r"],
    B: Float64[NDArray[Any], "r C"],
    squares: Float64[NDArray[Any], " C"],
    n: float,
    lams: Sequence[float],
) -> list[float]:
    r"""The log marginal likelihood of each ridge, from sums alone and up to a constant.

    Column c of Y is Gaussian with covariance proportional to K = H H' + lambda I of its n rows,
    at the variance that suits it best: ``-(n/2) sum_c log(y_c' K^-1 y_c) - (C/2) log det K``.
    With G = H'H, B = H'Y and ``squares`` = diag(Y'Y) both terms need no row. The predictive
    scores of all orders in which rows can be left out add up to it (Fong and Holmes, "On the
    marginal likelihood and cross-validation", Biometrika 2020), so it is a cross-validation over
    all sizes of the part that is left out.

    G is made a band once, 4/3 r^3 operations in its dtype; every ridge then takes 64 r (64 + 4 C).
    """
    band, Y = to_band(G, B)
    r, used = len(G), squares > 0
    found, floor = [], r * eps(G) * squares[used]  # below it is rounding
    for lam in lams:
        shifted = band.copy()
        shifted[0] += lam
        L, failed = lapack.dpbtrf(shifted, lower=1, overwrite_ab=1)
        if failed:
            found.append(-math.inf)
            continue
        explained = np.sum(Y * lapack.dpbtrs(L, Y, lower=1)[0], axis=0)[used]
        left = np.log(np.maximum(squares[used] - explained, floor)) - math.log(lam)
        log_det = 2 * np.sum(np.log(L[0])) + (n - r) * math.log(lam)
        found.append(-0.5 * float(n * np.sum(left) + len(left) * log_det))
    return found


def to_band(
    G: Float[NDArray[Any], "r r"], B: Float64[NDArray[Any], "r C"], width: int = 64
) -> tuple[Float64[NDArray[Any], "b r"], Float64[NDArray[Any], "r C"]]:
    """Q'GQ for an orthogonal Q, as LAPACK stores the diagonals of a lower band, and Q'B.

    The lower triangle of G is read. Blocked Householder transformations (Dongarra, Sorensen and
    Hammarling 1989) are products of matrices, which are several times as fast as LAPACK's way to a
    tridiagonal matrix (``sytrd``), half of which is limited by the memory.
    """
    r, A, Y = len(G), symmetric(G).T, np.array(B, dtype=np.float64)
    (factorise,) = lapack.get_lapack_funcs(("geqrf",), (A,))
    threads = ThreadpoolController()
    for start in range(0, r - width - 1, width):
        below, own = slice(start + width, r), slice(start, start + width)
        with threads.limit(limits=1):  # threads would wait for each other at every column
            packed, tau, _, _ = factorise(A[below, own])
        A[below, own] = np.triu(packed)
        V = np.tril(packed[:, : len(tau)], -1) + np.eye(len(packed), len(tau), dtype=A.dtype)
        V = V[:, tau != 0]  # I - V T'V' does to the rows what all reflections do
        T = np.linalg.inv(np.triu(V.T @ V, 1) + np.diag(1 / tau[tau != 0]))
        Y[below] -= V @ (T.T @ (V.T @ Y[below]))
        VT, P = V @ T, np.zeros_like(V)
        ends = range(len(V), 0, -BLOCK)  # counted from the last column, which is always the same
        blocks = [slice(max(0, end - BLOCK), end) for end in ends]
        inside = A[below, below]
        for i in blocks:  # whose squares on the diagonal are whole, but nothing above them
            P[i.start :] += inside[i.start :, i] @ VT[i]
            P[i] += inside[i.stop :, i].T @ VT[i.stop :]
        W = P - V @ (T.T @ (V.T @ P)) / 2
        VW, WV = np.hstack([V, W]), np.hstack([W, V]).T
        for i in blocks:
            inside[i.start :, i] -= VW[i.start :] @ WV[:, i]
    diagonals = [np.pad(np.diagonal(A, -k), (0, min(k, r))) for k in range(min(width + 1, r))]
    return np.array(diagonals, dtype=np.float64, order="F"), Y


def seen_directions(G: Float[Array, "M M"], rank: int, lam: float) -> Float[Array, "M q"]:
    """V_q diag(sqrt(s / (s + lambda))) of the q leading eigenpairs of a symmetric G.

    ``(I - D D') / lambda`` is then (G + lambda I)^-1 for all M of them, and more for fewer.
    """
    factor = cast(leading_of_gram(G, rank).factor, "float64")  # V diag(sqrt(s))
    xp = namespace(factor)
    return cast(factor / xp.sqrt(xp.sum(factor * factor, axis=0) + lam), "float32")


def spectral_norm(G: Float[Array, "M M"]) -> float:
    """||G||_2 by power iteration from a fixed start; reads the lower triangle."""
    xp = namespace(G)
    start = np.random.RandomState(0).standard_normal((G.shape[0],))
    start /= np.linalg.norm(start)
    x = xp.astype(like(start, G), G.dtype)
    value = 0.0
    for _ in range(POWER_STEPS):
        if is_numpy_array(G):
            symv = blas.ssymv if G.dtype == np.float32 else blas.dsymv
            row_major = not G.flags.f_contiguous  # BLAS then sees the transpose
            y = symv(1.0, G.T if row_major else G, x, lower=0 if row_major else 1)
        else:
            y = G @ x
        # In float64, because squares of large entries are beyond float32.
        previous, value = value, float(xp.linalg.vector_norm(cast(y, "float64")))
        if value == 0.0 or abs(value - previous) <= 1e-6 * value:
            break
        x = y / value
    return value


def effective_rank(G: Float[Array, "M M"]) -> float:
    """(tr G)^2 / ||G||_F^2: about how many directions share the energy. Lower triangle only."""
    xp = namespace(G)
    trace, squares = 0.0, 0.0
    for cols in index_blocks(G.shape[0]):
        corner, below = lower_part(G, cols)
        diagonal = xp.linalg.diagonal(corner)
        trace += float(xp.sum(diagonal))
        lower = float(xp.sum(corner * corner)) + float(xp.sum(below * below))
        squares += 2 * lower - float(xp.sum(diagonal * diagonal))
    return trace**2 / squares if squares > 0 else 0.0


def frobenius(X: Float[Array, "M C"]) -> float:
    """||X||_F, 0 for a matrix without columns."""
    return float(namespace(X).linalg.vector_norm(X)) if X.shape[1] else 0.0
