"""How far scores can be trusted: a temperature for probabilities, a threshold for "don't know".

Both follow from the scores of rows that the head did not learn from. Only sums over such rows are
kept, so calibrations of several sites or batches add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import Array, Float, Float64, Int64, cast, to_numpy
from fedran.core.errors import Refused, real_number
from fedran.core.labels import MISSING

TEMPERATURES: Float64[NDArray[Any], " K"] = np.geomspace(0.005, 5.0, 37)
"""Where the log loss is recorded. Scores of a ridge on indicators lie mostly between 0 and 1."""
SCORE_RANGE = (-1.0, 2.0)
"""Scores are cut to this range before they are recorded, so that one row has a bounded effect."""
EDGES: Float64[NDArray[Any], " bins"] = np.linspace(0.0, SCORE_RANGE[1] - SCORE_RANGE[0], 301)
"""Upper edges of the bins of gaps: one for 0, where the true class is the best, then width 0.01."""
BINS = len(EDGES)
MOST_CLASSES = 10**7
"""For bounds on the numbers of one row."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Sums over rows that the head had not learned when it scored them.

    ``a + b`` describes the rows of both.

    >>> scores = np.array([[0.9, 0.1], [0.2, 0.6], [0.6, 0.5]])
    >>> calibration = Calibration.of_scores(scores, np.array([0, 1, 1]))
    >>> calibration.total, 0.1 < calibration.temperature < 1
    (3.0, True)
    """

    losses: Float64[NDArray[Any], " K"]
    """Sum of -log softmax(scores / T) of the true class, for every T of ``TEMPERATURES``."""
    histogram: Float64[NDArray[Any], " bins"]
    """Rows (or their weights) per bin of the gap between the best score and that of the true
    class."""
    compared: float
    """Sum over these rows of the number of classes whose scores were known."""

    def __post_init__(self) -> None:
        found = (self.losses.shape, self.histogram.shape)
        if found != ((len(TEMPERATURES),), (BINS,)):
            expected = f"{len(TEMPERATURES)} losses and {BINS} bins"
            raise Refused("histograms", expected, found)

    @classmethod
    def empty(cls) -> Calibration:
        """A calibration of no rows: the neutral element of ``+``."""
        return cls(np.zeros(len(TEMPERATURES)), np.zeros(BINS), 0.0)

    @classmethod
    def of_scores(
        cls,
        scores: Float[Array, "n C"],
        codes: Int64[NDArray[Any], " n"] | Float64[NDArray[Any], "n C"],
        weights: ArrayLike | None = None,
    ) -> Calibration:
        """The calibration of rows whose true class is ``codes[i]``, or unknown where MISSING.

        Indicators (n, C), of which a row may have several, are one decision per label, between the
        scores 1 - s and s.
        """
        if codes.ndim == 2:
            S, labels = to_numpy(cast(scores, "float64")).ravel(), codes.shape[1]
            w = None if weights is None else np.repeat(weights, labels)
            return cls.of_scores(np.stack([1 - S, S], axis=1), codes.ravel().astype(np.int64), w)
        known = codes != MISSING
        if not known.any():
            return cls.empty()
        S = np.clip(to_numpy(cast(scores, "float64"))[known], *SCORE_RANGE)
        rows, of_row = np.arange(len(S)), codes[known]
        w = np.ones(len(S)) if weights is None else np.asarray(weights, dtype=np.float64)[known]
        losses = [-(w @ log_softmax(S / T)[rows, of_row]) for T in TEMPERATURES]
        bins = np.searchsorted(EDGES, np.max(S, axis=1) - S[rows, of_row] - 1e-12)
        compared = float(np.sum(w)) * S.shape[1]
        return cls(np.maximum(losses, 0.0), np.bincount(bins, w, BINS), compared)

    @property
    def total(self) -> float:
        """The number of rows, or the sum of their weights."""
        return float(np.sum(self.histogram))

    @property
    def temperature(self) -> float:
        """The T at which softmax(scores / T) has the least log loss.

        One imaginary row is added, whose label is a coin toss between scores 0 and 1, so that few
        rows without any error do not give probabilities of 0 and 1. Between the recorded
        temperatures the loss is a parabola in log T.
        """
        gap = 1 / TEMPERATURES
        curve = self.losses + np.logaddexp(0.0, gap) - gap / 2
        best = int(np.clip(np.argmin(curve), 1, len(curve) - 2))
        a, b, c = curve[best - 1 : best + 2]
        bend = a - 2 * b + c
        shift = float(np.clip((a - c) / (2 * bend), -1, 1)) if bend > 0 else float(np.sign(a - c))
        step = math.log(TEMPERATURES[1] / TEMPERATURES[0])
        found = float(TEMPERATURES[best]) * math.exp(step * shift)
        return float(f"{found:.4g}")  # more digits would only be rounding

    def missing(self, n_classes: int) -> float:
        """The share of ``n_classes`` with which a recorded row was not compared, on average.

        It is above 0 where sites or batches had different classes: each row was compared with the
        classes of one site, and the head has those of all.
        """
        return max(0.0, 1 - self.compared / (self.total * n_classes)) if self.total else 0.0

    def threshold(self, alpha: float, n_classes: int) -> float:
        """The gap that true classes of new rows do not exceed with probability 1 - alpha or more.

        The k-th smallest recorded gap with k = ceil((1 - alpha) (n + 1)), as in split conformal
        prediction, rounded up to the edge of its bin; infinity where k exceeds n. The gap of a row
        is larger than recorded if its best class is one with which it was not compared. If a head
        of ``n_classes`` predicts all of them equally often, this happens for at most a share
        ``missing`` of the rows, which is subtracted from alpha. ValueError if nothing is left.
        """
        if not 0 < real_number(alpha, "alpha") < 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {alpha!r}")
        missing = self.missing(n_classes)
        if missing >= alpha:
            raise ValueError(
                f"the scores behind reject={alpha:g} were compared with {1 - missing:.0%} of the "
                f"{n_classes} classes on average, because sites or batches had different classes; "
                "call calibrate() first, with rows of all classes"
            )
        alpha -= missing
        k = math.ceil((1 - alpha) * (self.total + 1) - 1e-9)
        bin_of_k = int(np.searchsorted(np.cumsum(self.histogram), k - 1e-9))
        return math.inf if k > self.total + 1e-9 else float(EDGES[min(bin_of_k, BINS - 1)])

    def validate(self, weight: float) -> Calibration:
        """Refuse numbers that rows of this total weight cannot have; returns self."""
        values = np.concatenate([self.losses, self.histogram, [self.compared]])
        if not np.all(np.isfinite(values)) or np.any(values < 0):
            raise Refused("histograms", "finite values, at least 0", "others")
        if self.total > weight * (1 + 1e-9):
            raise Refused("histograms", f"at most the rows described, {weight:g}", self.total)
        low, high = SCORE_RANGE
        most = self.total * ((high - low) / TEMPERATURES + math.log(MOST_CLASSES))
        if np.any(self.losses > most * (1 + 1e-9)):
            raise Refused("histograms", "losses of scores between -1 and 2", "larger ones")
        if self.compared > self.total * MOST_CLASSES:
            expected = f"at most {MOST_CLASSES} classes compared per row"
            raise Refused("histograms", expected, f"{self.compared:g} for {self.total:g} rows")
        return self

    def scaled(self, share: float) -> Calibration:
        """The same with a share of the weight."""
        return Calibration(self.losses * share, self.histogram * share, self.compared * share)

    def __add__(self, other: object) -> Calibration:
        if not isinstance(other, Calibration):
            return NotImplemented
        losses, histogram = self.losses + other.losses, self.histogram + other.histogram
        return Calibration(losses, histogram, self.compared + other.compared)


def log_softmax(X: Float64[NDArray[Any], "n C"]) -> Float64[NDArray[Any], "n C"]:
    """Logarithms of the softmax of each row."""
    X = X - np.max(X, axis=1, keepdims=True)
    return X - np.log(np.sum(np.exp(X), axis=1, keepdims=True))


def leave_one_out(
    scores: Float[Array, "n C"],
    codes: Int64[NDArray[Any], " n"] | Float64[NDArray[Any], "n C"],
    leverages: Float64[NDArray[Any], " n"],
) -> Float64[NDArray[Any], "n C"]:
    """The scores of each training row by the ridge that is solved without it, at the same lambda.

    ``(s - l y) / (1 - l)`` with the row's scores s, its targets y (or the indicator of its code)
    and its leverage ``l = h' (G + lambda I)^-1 h``: the Sherman-Morrison formula.
    """
    S = to_numpy(cast(scores, "float64"))
    l = np.minimum(leverages, 1 - 1e-6)[:, None]  # noqa: E741
    Y = codes if codes.ndim == 2 else codes[:, None] == np.arange(S.shape[1])
    return (S - l * Y) / (1 - l)
