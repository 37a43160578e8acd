"""Differential privacy of rows: budgets, the exact accountant of Gaussian noise, integer noise.

One row is protected: adding or removing it changes the distribution of everything that is released
by at most (epsilon, delta). The noise is a discrete Gaussian, so that it can be added to integers
inside a secure sum, one share per site. Why its guarantee equals that of the continuous Gaussian is
shown in the documentation (explanation, mathematics).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from fedran.core._linalg.arrays import Float64, Int64, as_matrix, require_finite, to_numpy
from fedran.core.errors import positive_integer
from fedran.core.labels import Label, encode_labels, ordered

RandomBytes = Callable[[int], bytes]
"""A source of random bytes. Outside of benchmarks and tests: the operating system's generator."""

SMOOTHING_VARIANCE = 25
"""Added to the integer variance of every site, in units of the grid.

A discrete Gaussian of variance v + 25 is a randomised rounding of a Gaussian of variance v, up to a
relative error of 2 exp(-50 pi^2) per coordinate, which is below 1e-213.
"""
LARGEST_VARIANCE = 2**50
"""Of the integer noise of one site, so that the sampler's products fit into 64 bits."""


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta): what one row may spend.

    >>> Budget(epsilon=3.0, delta=1e-5)
    Budget(epsilon=3.0, delta=1e-05)
    """

    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"epsilon must be a finite, positive number, got {self.epsilon!r}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie between 0 and 1, got {self.delta!r}")

    @property
    def mu(self) -> float:
        """The largest sensitivity / standard deviation of Gaussian noise within this budget.

        >>> round(1 / Budget(1.0, 1e-5).mu, 2)
        3.73
        """
        low, high = 0.0, 1.0
        while gaussian_delta(high, self.epsilon) <= self.delta:
            low, high = high, 2 * high
        for _ in range(100):
            middle = (low + high) / 2
            if gaussian_delta(middle, self.epsilon) <= self.delta:
                low = middle
            else:
                high = middle
        return low


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta of a release with Gaussian noise at this epsilon; exact.

    ``mu`` is the Euclidean sensitivity divided by the standard deviation. Releases that all depend
    on the same row compose exactly: their mu is the root of the sum of squares
    (Balle and Wang 2018; Dong, Roth and Su 2022).
    """
    if mu == 0:
        return 0.0
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(first) * -math.expm1(min(0.0, second - first)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon of a release with Gaussian noise at this delta; exact.

    >>> round(gaussian_epsilon(1 / 3.7306, 1e-5), 3)
    1.0
    """
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if gaussian_delta(mu, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def composed(mus: Sequence[float]) -> float:
    """The mu of several Gaussian releases that may all depend on the same row."""
    return math.sqrt(sum(mu * mu for mu in mus))


def zcdp_epsilon(mu: float, delta: float) -> float:
    """The epsilon that zero-concentrated differential privacy states: larger than the exact one.

    rho = mu^2 / 2 and epsilon = rho + 2 sqrt(rho ln(1 / delta)) (Bun and Steinke 2016).
    """
    rho = mu * mu / 2
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def discrete_gaussian(
    shape: int | tuple[int, ...], variance: int, random: RandomBytes = secrets.token_bytes
) -> Int64[NDArray[Any], ...]:
    """Independent integers k with probability proportional to exp(-k^2 / (2 variance)), exactly.

    The rejection sampler of Canonne, Kamath and Steinke (2020) on uniform integers of ``random``.
    A comparison of a uniform number with a probability is decided in float64 only where rounding
    cannot change it, otherwise (about once in 10^12) by decimal numbers of as many digits as it
    takes. The running time depends on the values drawn.
    """
    if isinstance(variance, bool) or not 1 <= variance <= LARGEST_VARIANCE:
        raise ValueError(f"variance must be an integer in 1 .. 2**50, got {variance!r}")
    v = int(variance)
    t = math.isqrt(v) + 1
    wanted = math.prod(shape) if isinstance(shape, tuple) else shape
    found = np.empty(wanted, dtype=np.int64)
    filled = 0
    while filled < wanted:
        n = 2 * (wanted - filled) + 16
        # |Y| = low + t * high is geometric with parameter exp(-1 / t); -0 is dropped.
        low = _uniform(n, t, random)
        low = low[_accepted(low, 1, t, random)]
        high = _unit_geometric(len(low), random)
        size = low + t * high
        negative = (np.frombuffer(random(len(size)), dtype=np.uint8) & 1).astype(bool)
        size, negative = size[(size > 0) | ~negative], negative[(size > 0) | ~negative]
        # exp(-(|Y| - v / t)^2 / (2 v)) = exp(-(t |Y| - v)^2 / (2 v t^2))
        kept = _accepted(size * t - v, 2, 2 * v * t * t, random)
        values = np.where(negative, -size, size)[kept][: wanted - filled]
        found[filled : filled + len(values)] = values
        filled += len(values)
    return found.reshape(shape)


def _uniform(n: int, below: int, random: RandomBytes) -> Int64[NDArray[Any], " n"]:
    """n uniform integers in 0 .. below - 1, exactly."""
    words = np.frombuffer(random(8 * n), dtype=np.uint64)
    largest = np.uint64(2**64 - 2**64 % below - 1)
    while np.any(words > largest):
        again = words > largest
        words = words.copy()
        words[again] = np.frombuffer(random(8 * int(again.sum())), dtype=np.uint64)
    return (words % np.uint64(below)).astype(np.int64)


def _unit_geometric(n: int, random: RandomBytes) -> Int64[NDArray[Any], " n"]:
    """n numbers of successes before the first failure of trials with probability exp(-1)."""
    count = np.zeros(n, dtype=np.int64)
    running = np.arange(n)
    while len(running):
        running = running[_accepted(np.ones(len(running), dtype=np.int64), 1, 1, random)]
        count[running] += 1
    return count


UNDECIDED = 2.0**-40
"""Float64 decides comparisons of numbers in [0, 1] that are further apart than this."""


def _accepted(
    base: Int64[NDArray[Any], " n"], power: int, divisor: int, random: RandomBytes
) -> NDArray[np.bool_]:
    """True with probability exp(-base^power / divisor), exactly."""
    words = np.frombuffer(random(8 * len(base)), dtype=np.uint64)
    ratio = (base / math.sqrt(divisor)) ** 2 if power == 2 else base / divisor
    gap = np.exp(-ratio) - words * 2.0**-64
    result = gap > 0
    for i in np.flatnonzero(np.abs(gap) < UNDECIDED):
        result[i] = _accepted_exactly(int(base[i]) ** power, divisor, int(words[i]), random)
    return result


def _accepted_exactly(numerator: int, divisor: int, word: int, random: RandomBytes) -> bool:
    """Whether a uniform number whose first 64 bits are ``word`` is below exp(-ratio)."""
    bits, uniform = 64, word
    while True:
        bits, uniform = bits + 64, (uniform << 64) + int.from_bytes(random(8), "little")
        with localcontext(prec=bits // 2) as context:
            context.Emin = -(10**9)
            low = Decimal(uniform) / Decimal(2**bits)
            p = (-Decimal(numerator) / Decimal(divisor)).exp()
            # The bits not drawn yet, and 1 % of slack in the digits for the three roundings.
            slack = Decimal(2) ** (1 - bits) + Decimal(10) ** (5 - context.prec)
            if low > p + slack:
                return False
            if low < p - slack:
                return True


@dataclass(frozen=True)
class Shares:
    """How the squared sensitivity is divided among Gram, class sums and class counts."""

    gram: float = 0.3
    sums: float = 0.69
    counts: float = 0.01

    def __post_init__(self) -> None:
        parts = (self.gram, self.sums, self.counts)
        if min(parts) <= 0 or abs(sum(parts) - 1) > 1e-9:
            raise ValueError(f"shares must be positive and add up to 1, got {parts}")


@dataclass(frozen=True)
class Mechanism:
    """The noisy sums of integer rows: packed Gram, class sums and class counts.

    Rows become integers of norm at most ``levels`` first. Sums of integers need no rounding, so the
    sensitivity holds exactly: levels^2 for the Gram (off-diagonal entries weighted by sqrt 2),
    ``levels`` for the class sums, and ``levels`` for the counts, which are sent in that unit.

    >>> mechanism = Mechanism(in_features=2, budget=Budget(epsilon=8.0), levels=64)
    >>> rows = np.array([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]])
    >>> release = mechanism.privatise(rows, ["cat", "dog", "dog"], classes=["cat", "dog"])
    >>> release.classes, release.gram.shape, release.sums.shape
    (('cat', 'dog'), (2, 2), (2, 2))
    """

    in_features: int
    """d, the width of the rows."""
    budget: Budget
    honest: int = 1
    """The least number of sites that add their share of the noise and keep it to themselves."""
    levels: int = 4096
    """The norm of the longest integer row: the resolution."""
    norm: float = 1.0
    """The norm of the longest row, from the feature map, never from the data. Longer ones are
    shortened."""
    shares: Shares = Shares()

    def __post_init__(self) -> None:
        positive_integer(self.in_features, "in_features")
        positive_integer(self.honest, "honest")
        if positive_integer(self.levels, "levels") ** 2 < 4 * self.in_features:
            least = math.isqrt(4 * self.in_features) + 1
            raise ValueError(f"levels must be at least {least} for {self.in_features} features")
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise ValueError(f"norm must be a finite, positive number, got {self.norm!r}")

    @property
    def site_variances(self) -> tuple[int, int, int, int]:
        """The integer variances of one site: off-diagonal, diagonal, class sums, counts."""
        mu2, m2 = self.budget.mu**2, self.levels**2
        exact = (
            m2 * m2 / (2 * self.shares.gram * mu2),
            m2 * m2 / (self.shares.gram * mu2),
            m2 / (self.shares.sums * mu2),
            m2 / (self.shares.counts * mu2),
        )
        off, diagonal, sums, counts = (
            math.ceil(v * (1 + 1e-9) / self.honest) + SMOOTHING_VARIANCE for v in exact
        )
        return off, diagonal, sums, counts

    def size(self, n_classes: int) -> int:
        """The number of integers: d (d + 1) / 2 + (d + 1) C."""
        d = self.in_features
        return d * (d + 1) // 2 + (d + 1) * n_classes

    def quantised(self, H: Any) -> Float64[NDArray[Any], "n d"]:
        """The rows as integers (in float64) of norm at most ``levels``, exactly."""
        rows = np.asarray(to_numpy(as_matrix(H, "H", self.in_features)), dtype=np.float64)
        require_finite(rows, "H")
        sizes = np.linalg.norm(rows, axis=1, keepdims=True)
        # Rounding moves a row by at most sqrt(d) / 2, so the scale leaves that room.
        room = self.levels * (1 - 1e-9) - math.sqrt(self.in_features) / 2
        integers = np.rint(rows * (room / np.maximum(sizes, self.norm)))
        if np.any(np.sum(integers * integers, axis=1) > self.levels**2):
            raise AssertionError("an integer row is longer than its bound")
        return integers

    def sums(self, H: Any, y: Any, classes: Sequence[Label]) -> Int64[NDArray[Any], " k"]:
        """The integers before the noise: upper triangle of the Gram by rows, sums, counts.

        Rows without a label are left out; a label that is not in ``classes`` is a ValueError.
        """
        listed = ordered(tuple(classes))
        found, codes = encode_labels(y, len(H))
        unknown = [c for c in found if c not in listed]
        if unknown:
            raise ValueError(f"labels must be among the {len(listed)} classes, got {unknown[0]!r}")
        known = codes >= 0
        rows = self.quantised(H)[known]
        if len(rows) * self.levels**2 > 2**53:
            raise ValueError(f"{len(rows)} rows with {self.levels} levels exceed 2**53; use fewer")
        position = np.array([listed.index(c) for c in found], dtype=np.int64)
        onehot = np.zeros((len(rows), len(listed)))
        onehot[np.arange(len(rows)), position[codes[known]] if len(rows) else []] = 1.0
        parts = [
            (rows.T @ rows)[np.triu_indices(self.in_features)],
            (onehot.T @ rows).ravel(),
            self.levels * onehot.sum(axis=0),
        ]
        return np.concatenate(parts).astype(np.int64)

    def noise(
        self, n_classes: int, random: RandomBytes = secrets.token_bytes
    ) -> Int64[NDArray[Any], " k"]:
        """One site's share of the noise for the vector of ``sums``."""
        d = self.in_features
        off, diagonal, sums, counts = self.site_variances
        triangle = discrete_gaussian(d * (d + 1) // 2, off, random)
        triangle[np.cumsum([0, *range(d, 1, -1)])] = discrete_gaussian(d, diagonal, random)
        parts = [
            triangle,
            discrete_gaussian(d * n_classes, sums, random),
            discrete_gaussian(n_classes, counts, random),
        ]
        return np.concatenate(parts)

    def release(
        self, vector: Int64[NDArray[Any], " k"], classes: Sequence[Label], sites: int = 1
    ) -> Release:
        """The sum of the vectors of ``sites`` sites, each with its noise, in units of the rows."""
        listed = ordered(tuple(classes))
        d, C = self.in_features, len(listed)
        if vector.shape != (self.size(C),):
            raise ValueError(f"expected {self.size(C)} integers, got shape {vector.shape}")
        unit = self.norm / (self.levels * (1 - 1e-9) - math.sqrt(d) / 2)
        triangle, sums, counts = np.split(vector.astype(np.float64), [d * (d + 1) // 2, -C])
        gram = np.zeros((d, d))
        gram[np.triu_indices(d)] = triangle * unit**2
        gram += np.triu(gram, 1).T
        _, diagonal, v_sums, v_counts = self.site_variances
        return Release(
            classes=listed,
            gram=gram,
            sums=sums.reshape(C, d).T * unit,
            counts=counts / self.levels,
            gram_variance=sites * diagonal * unit**4,
            sums_variance=np.full(C, sites * v_sums * unit**2),
            counts_variance=np.full(C, sites * v_counts / self.levels**2),
        )

    def privatise(
        self, H: Any, y: Any, classes: Sequence[Label], random: RandomBytes = secrets.token_bytes
    ) -> Release:
        """The noisy sums of all rows, where one party holds them and adds all of the noise.

        ``classes`` is the list of all classes that rows may have. It must be public: taken from the
        rows, it would reveal a class with a single row.
        """
        if self.honest != 1:
            raise ValueError(f"one party adds all noise, so honest must be 1, got {self.honest}")
        listed = ordered(tuple(classes))
        return self.release(self.sums(H, y, listed) + self.noise(len(listed), random), listed)


@dataclass(frozen=True, eq=False)
class Release:
    """Noisy sums over rows, and the variances of their noise. Public from now on.

    ``a + b`` describes the rows of both. Where no row is in both, the guarantee of the sum is the
    weaker of the two; a row in both spends both (``composed``).
    """

    classes: tuple[Label, ...]
    gram: Float64[NDArray[Any], "d d"]
    sums: Float64[NDArray[Any], "d C"]
    counts: Float64[NDArray[Any], " C"]
    gram_variance: float
    """Of the diagonal of the Gram; half of it off the diagonal."""
    sums_variance: Float64[NDArray[Any], " C"]
    counts_variance: Float64[NDArray[Any], " C"]

    def __add__(self, other: object) -> Release:
        if not isinstance(other, Release):
            return NotImplemented
        if self.gram.shape != other.gram.shape:
            raise ValueError(f"expected {len(self.gram)} features, got {len(other.gram)}")
        classes = ordered(self.classes + other.classes)
        position = {c: i for i, c in enumerate(classes)}
        d, C = len(self.gram), len(classes)
        sums, counts = np.zeros((d, C)), np.zeros(C)
        sums_variance, counts_variance = np.zeros(C), np.zeros(C)
        for part in (self, other):
            where = [position[c] for c in part.classes]
            sums[:, where] += part.sums
            counts[where] += part.counts
            sums_variance[where] += part.sums_variance
            counts_variance[where] += part.counts_variance
        variance = self.gram_variance + other.gram_variance
        gram = self.gram + other.gram
        return Release(classes, gram, sums, counts, variance, sums_variance, counts_variance)
