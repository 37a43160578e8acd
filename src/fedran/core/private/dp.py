"""Differential privacy of rows: budgets, the exact accountant of Gaussian noise, noisy sums.

One row is protected: adding or removing it changes the distribution of everything that is released
by at most (epsilon, delta). The noise is a discrete Gaussian, so that it can be added to integers
inside a secure sum, one share per site. The page on mathematics shows why its guarantee is that of
the continuous Gaussian.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from fedran.core._linalg.arrays import Float64, Int64, as_matrix, require_finite, to_numpy
from fedran.core.errors import positive_integer
from fedran.core.labels import Label, encode_labels, ordered
from fedran.core.private.discrete_gaussian import RandomBytes, discrete_gaussian
from fedran.core.private.noisy_sums import NoisySums

SMOOTHING_VARIANCE = 25
"""Added to the integer variance of every site.

A discrete Gaussian of variance v + 25 is a randomised rounding of a Gaussian of variance v, up to a
relative error of 2 exp(-50 pi^2) per coordinate, which is below 1e-213.
"""
CENTRED_NORM = 0.8
"""The norm to which rows are shortened that are measured from a released mean."""
SUM_RANGE = 2**30
"""Largest sum of squares of integer rows, and largest noise, where sums are modulo 2^32."""
DEVIATIONS = 8.0
"""Standard deviations within which all noise lies: one value of 10^15 is outside."""


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
        return _boundary(lambda mu: gaussian_delta(mu, self.epsilon) <= self.delta)[0]


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
    return _boundary(lambda epsilon: gaussian_delta(mu, epsilon) > delta)[1]


def _boundary(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Two neighbouring numbers from 0 on: the last for which ``holds``, and the first after it."""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def composed(mus: Sequence[float]) -> float:
    """The mu of several Gaussian releases that may all depend on the same row."""
    return math.sqrt(sum(mu * mu for mu in mus))


@dataclass(frozen=True)
class Shares:
    """How the squared sensitivity is divided among Gram, class sums and class counts."""

    gram: float = 0.35
    sums: float = 0.64
    counts: float = 0.01

    def __post_init__(self) -> None:
        parts = (self.gram, self.sums, self.counts)
        if min(parts) <= 0 or abs(sum(parts) - 1) > 1e-9:
            raise ValueError(f"shares must be positive and add up to 1, got {parts}")


@dataclass(frozen=True, eq=False)
class Mechanism:
    """Noisy sums of rows: the Gram, the class sums and the class counts, as integers.

    Rows become integers of norm at most ``levels`` first. Sums of integers need no rounding, so the
    sensitivities hold exactly: levels^2 for the Gram (with off-diagonal entries weighted by
    sqrt 2), ``levels`` for the class sums, and ``levels`` for the counts, which have this unit.

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
    levels: int = 1024
    """The norm of the longest integer row: the resolution."""
    norm: float = 1.0
    """The norm of the longest row, which belongs to the feature map and must never be computed from
    the rows. Longer rows are shortened."""
    center: Float64[NDArray[Any], " d"] | None = None
    """A public vector that is subtracted from every row before it is shortened."""
    shares: Shares = Shares()

    def __post_init__(self) -> None:
        positive_integer(self.in_features, "in_features")
        positive_integer(self.honest, "honest")
        if positive_integer(self.levels, "levels") ** 2 < 4 * self.in_features + 100:
            least = math.isqrt(4 * self.in_features + 100) + 1
            raise ValueError(
                f"levels must be at least {least} for {self.in_features} features, "
                f"got {self.levels}"
            )
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise ValueError(f"norm must be a finite, positive number, got {self.norm!r}")
        if self.center is not None and self.center.shape != (self.in_features,):
            raise ValueError(f"center must have {self.in_features} values, got {len(self.center)}")

    def centred(self, center: Float64[NDArray[Any], " d"]) -> Mechanism:
        """For rows of later tasks: measured from ``center``, the mean that was released before.

        A large part of a row is the mean of all rows, which is public by then. What remains is
        shorter, so the same budget needs less noise.
        """
        return replace(self, center=center, norm=CENTRED_NORM * self.norm)

    @property
    def scale(self) -> float:
        """Integers per unit of a row.

        Rounding adds d / 12 to the squared norm of a row on average, and varies by sqrt(levels^2
        / 3), so that a row of the largest norm rarely exceeds ``levels``.
        """
        m2 = self.levels**2
        return math.sqrt(m2 - self.in_features / 12 - self.levels) / self.norm

    @property
    def site_variances(self) -> tuple[int, int, int, int]:
        """The integer variances of one site's noise: off the diagonal, on it, sums, counts."""
        mu2, m2 = self.budget.mu**2, self.levels**2
        total = (
            m2 * m2 / (2 * self.shares.gram * mu2),
            m2 * m2 / (self.shares.gram * mu2),
            m2 / (self.shares.sums * mu2),
            m2 / (self.shares.counts * mu2),
        )
        off, diagonal, sums, counts = (
            math.ceil(v * (1 + 1e-9) / self.honest) + SMOOTHING_VARIANCE for v in total
        )
        return off, diagonal, sums, counts

    def size(self, n_classes: int) -> int:
        """The number of integers: d (d + 1) / 2 + (d + 1) C."""
        d = self.in_features
        return d * (d + 1) // 2 + (d + 1) * n_classes

    def quantised(self, H: Any) -> Float64[NDArray[Any], "n d"]:
        """The rows as integers (in float64) of norm at most ``levels``, exactly."""
        rows = np.array(to_numpy(as_matrix(H, "H", self.in_features)), dtype=np.float64)
        require_finite(rows, "H")
        if self.center is not None:
            rows -= self.center
        sizes = np.linalg.norm(rows, axis=1, keepdims=True)
        rows *= self.scale * self.norm / np.maximum(sizes, self.norm)
        integers = np.rint(rows)
        # Towards zero no row gets longer.
        long = np.sum(integers * integers, axis=1) > self.levels**2
        integers[long] = np.trunc(rows[long])
        return integers

    def sums(self, H: Any, y: Any, classes: Sequence[Label]) -> Int64[NDArray[Any], " k"]:
        """The integers before the noise: upper triangle of the Gram by rows, sums, counts.

        Rows without a label are left out. A label that is not in ``classes`` is a ValueError.
        """
        listed = ordered(tuple(classes))
        found, codes = encode_labels(y, len(H))
        unknown = [c for c in found if c not in listed]
        if unknown:
            raise ValueError(f"labels must be among the {len(listed)} classes, got {unknown[0]!r}")
        rows, codes = self.quantised(H)[codes >= 0], codes[codes >= 0]
        if len(rows) * self.levels**2 > 2**53:  # float64 adds integers exactly up to there
            raise ValueError(f"{len(rows)} rows at {self.levels} levels exceed 2**53; use fewer")
        position = np.array([listed.index(c) for c in found], dtype=np.int64)
        onehot = np.zeros((len(rows), len(listed)))
        onehot[np.arange(len(rows)), position[codes]] = 1.0
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
        others = [(d * n_classes, sums), (n_classes, counts)]
        return np.concatenate([triangle, *(discrete_gaussian(n, v, random) for n, v in others)])

    def noisy_sums(
        self, vector: Int64[NDArray[Any], " k"], classes: Sequence[Label], sites: int = 1
    ) -> NoisySums:
        """What the sum of the noisy vectors of ``sites`` sites says, in units of the rows."""
        listed = ordered(tuple(classes))
        d, C = self.in_features, len(listed)
        if vector.shape != (self.size(C),):
            raise ValueError(f"expected {self.size(C)} integers, got shape {vector.shape}")
        triangle, flat, counts = np.split(vector / 1.0, [d * (d + 1) // 2, len(vector) - C])
        gram = np.zeros((d, d))
        gram[np.triu_indices(d)] = triangle / self.scale**2
        gram += np.triu(gram, 1).T
        sums, counts = flat.reshape(C, d).T / self.scale, counts / self.levels
        if self.center is not None:
            cross = np.outer(self.center, sums.sum(axis=1))
            gram += cross + cross.T + counts.sum() * np.outer(self.center, self.center)
            sums = sums + np.outer(self.center, counts)
        _, diagonal, v_sums, v_counts = self.site_variances
        return NoisySums(
            classes=listed,
            gram=gram,
            sums=sums,
            counts=counts,
            norm=self.norm if self.center is None else self.norm / CENTRED_NORM,
            gram_variance=sites * diagonal / self.scale**4,
            sums_variance=sites * v_sums / self.scale**2,
            counts_variance=sites * v_counts / self.levels**2,
        )

    def privatise(
        self, H: Any, y: Any, classes: Sequence[Label], random: RandomBytes = secrets.token_bytes
    ) -> NoisySums:
        """The noisy sums of all rows, where one party holds them and adds all of the noise.

        ``classes`` lists all classes that rows may have. The list must be public: taken from the
        rows, it would reveal a class with a single row.
        """
        if self.honest != 1:
            raise ValueError(f"one party adds all noise, so honest must be 1, got {self.honest}")
        listed = ordered(tuple(classes))
        return self.noisy_sums(self.sums(H, y, listed) + self.noise(len(listed), random), listed)


def levels_for(max_rows: int, budget: Budget, excess: float = 1.0) -> int:
    """The finest resolution at which noisy sums over ``max_rows`` rows can be added modulo 2^32.

    ``excess`` is the number of sites per honest one: how much more noise there may be.

    >>> levels_for(10_000, Budget(1.0)), levels_for(10, Budget(1.0))
    (327, 4613)
    """
    noise = DEVIATIONS * math.sqrt(excess / Shares().gram) / budget.mu
    return math.isqrt(int(SUM_RANGE / max(positive_integer(max_rows, "max_rows"), noise)))
