"""Pseudo-labels: labels for unlabelled rows, predicted from the client's own labelled rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import (
    Array,
    Bool,
    Float,
    Float64,
    Int64,
    as_matrix,
    cast,
    like,
    namespace,
    require_finite,
    to_numpy,
)
from fedran.core.errors import real_number
from fedran.core.labels import MISSING, Label, encode_labels

MARGIN_RHO = 0.1
"""Ridge of the margin rule, relative to the mean row energy."""
LONE_CLASS_BONUS = 0.3
"""With one class there is no second score: the score must exceed margin + this."""


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """The labels after a rule was applied, and the decision for each row."""

    labels: list[Label | None]
    """One per row: given, accepted, or None where the rule did not accept one."""
    accepted: Bool[NDArray[Any], " n"]
    """Rows that had no label and received one."""
    confidence: Float64[NDArray[Any], " n"]
    """The cosine or margin that was compared with the threshold; NaN for labelled rows, -inf where
    the rule could not run."""
    threshold: float
    reason: str
    """One sentence: the rule and how many rows it accepted, or why it could not run."""
    expected_wrong: float = math.nan
    """The margin rule's estimate of the share of wrong labels among those accepted: that of the
    labelled rows, each predicted from the others. NaN where the rule would accept none of them.
    Somewhat too low where few rows of each class are labelled."""

    @property
    def n_candidates(self) -> int:
        """Rows that had no label."""
        return int(np.sum(~np.isnan(self.confidence)))

    @property
    def acceptance(self) -> float:
        """Share of the unlabelled rows that received a label; 0 when there were none."""
        return float(self.accepted.sum() / self.n_candidates) if self.n_candidates else 0.0


def margin_labels(
    H: ArrayLike | Array, y: Any, margin: float = 0.1, refit: bool = True
) -> PseudoLabels:
    r"""Our rule: a ridge on the client's own labelled rows, accepted by the margin.

    ``H`` (n, M) random features. One-hot targets over the client's own classes,
    ``lambda = 0.1 mean ||h||^2``; a row is accepted when its best score leads the
    second by more than ``margin`` (with a single class: when its score exceeds margin + 0.3).
    With ``refit`` the ridge is fitted once more, with the accepted rows, and decides again.

    The labels help where clearly fewer of them are wrong (``expected_wrong``) than predictions of
    the head that the labelled rows of all clients would give: where each client and task has few
    of all classes. Otherwise they do harm.

    l^2 M + 2 l^3 operations for l labelled rows (with refit: l^2 M + l^3 more, accepted included).

    >>> import numpy as np
    >>> H = np.array([[4.0, 0.0], [0.0, 4.0], [3.0, 0.5], [2.0, 2.0]])
    >>> margin_labels(H, [0, 1, None, None], refit=False).labels
    [0, 1, 0, None]
    """
    if not 0 <= real_number(margin, "margin") < math.inf:
        raise ValueError(f"margin must be finite and at least 0, got {margin!r}")
    rows = SomeLabelled.split(H, y, "H")
    name = "margin rule" + (" with refit" if refit else "")
    if rows.cannot_run:
        return rows.untouched(margin, f"{name}, margin {margin:g}: {rows.cannot_run}")
    best, lead = _ridge_margins(rows, rows.codes)
    if refit:
        codes = rows.codes.copy()
        codes[np.flatnonzero(~rows.has)[lead > margin]] = best[lead > margin]
        best, lead = _ridge_margins(rows, codes)
    found = rows.decide(best, lead, lead > margin, margin, f"{name}, margin")
    wrong = _expected_wrong(rows, margin)
    if math.isnan(wrong):
        return found
    reason = f"{found.reason}, of which about {wrong:.0%} are expected to be wrong"
    return replace(found, reason=reason, expected_wrong=wrong)


def _ridge_margins(
    rows: SomeLabelled, codes: Int64[NDArray[Any], " n"]
) -> tuple[Int64[NDArray[Any], " u"], Float64[NDArray[Any], " u"]]:
    """Best class and lead of each unlabelled row, from a ridge on the rows that have codes."""
    X, K, targets = _dual_ridge(rows, codes)
    dual = namespace(K).linalg.solve(K, targets)
    return _best_and_lead(to_numpy(cast(rows.unlabelled() @ X.T, "float64") @ dual))


def _expected_wrong(rows: SomeLabelled, margin: float) -> float:
    """The share of wrong labels among the labelled rows that the rule accepts when left out.

    Without a row that is alone in its class, that class is unknown, so the label is wrong.
    """
    _, K, targets = _dual_ridge(rows, rows.codes)
    xp = namespace(K)
    inverse = xp.linalg.inv(K)
    left_out = targets - (inverse @ targets) / xp.linalg.diagonal(inverse)[:, None]
    best, lead = _best_and_lead(to_numpy(left_out))
    codes = rows.codes[rows.has]
    wrong = ((best != codes) | (np.bincount(codes)[codes] == 1))[lead > margin]
    return float(np.mean(wrong)) if len(wrong) else math.nan


def _dual_ridge(
    rows: SomeLabelled, codes: Int64[NDArray[Any], " n"]
) -> tuple[Float[Array, "l d"], Float64[Array, "l l"], Float64[Array, "l C"]]:
    """The rows X that have codes, X X' + lambda I, and one-hot targets."""
    known = np.flatnonzero(codes != MISSING)
    X = rows.take(known)
    xp = namespace(X)
    K = cast(X @ X.T, "float64")
    lam = MARGIN_RHO * float(xp.sum(xp.linalg.diagonal(K))) / len(known)
    targets = like(np.eye(len(rows.classes))[codes[known]], X)
    return X, K + like((lam or 1.0) * np.eye(len(known)), X), targets


def _best_and_lead(
    scores: Float64[NDArray[Any], "n C"],
) -> tuple[Int64[NDArray[Any], " n"], Float64[NDArray[Any], " n"]]:
    best = scores.argmax(axis=1)
    if scores.shape[1] == 1:
        return best, scores[:, 0] - LONE_CLASS_BONUS
    top = np.partition(scores, -2, axis=1)
    return best, top[:, -1] - top[:, -2]


class LabelNoise(NamedTuple):
    """Bounds on what wrong pseudo-labels change, where G does not depend on labels."""

    weights: float
    """On ||W_pseudo - W_true||_F."""
    scores: Float64[NDArray[Any], " n"]
    """On the norm of the change of each row's scores."""
    shrink: float = math.nan
    """The share of the pseudo-labelled rows' part of the scores that independent errors cost."""
    spread: Float64[NDArray[Any], " n"] | None = None
    """On the root mean square of the rest of the change by independent errors."""


def noise_bound(
    lam: float, leverages: Float64[NDArray[Any], " n"], difference: float
) -> LabelNoise:
    r"""The change of W = (G + lambda I)^-1 B and of scores if ||B_pseudo - B_true||_F is known.

    ``||W_pseudo - W_true|| <= difference / lambda``, and by Cauchy and Schwarz the scores of a row
    h with the leverage ``l = h' (G + lambda I)^-1 h`` change by ``sqrt(l / lambda) difference``.
    """
    return LabelNoise(difference / lam, np.sqrt(leverages / lam) * difference)


def expected_noise(
    lam: float, leverages: Float64[NDArray[Any], " n"], n_pseudo: int, share: float, n_classes: int
) -> LabelNoise:
    r"""The same, in expectation, if a share of the pseudo-labels is wrong (``expected_wrong``).

    With k wrong labels ``||Y_pseudo - Y_true||^2 = 2k``, and H_p'H_p <= G for the rows H_p that
    have them. So scores change by at most ``sqrt(2 k l)`` and W by ``sqrt(k / (2 lambda))``,
    however the errors depend on each other. If they are independent, and each wrong label is any
    other one alike, the part of the scores that comes from these rows loses the share
    ``shrink = share C / (C - 1)`` of its deviation from the mean over the classes, and the rest of
    the change is at most ``sqrt(2 share l)`` in root mean square.

    >>> found = expected_noise(4.0, np.array([0.25]), 100, 0.02, 3)
    >>> found.weights, found.scores, round(found.shrink, 3), found.spread
    (0.5, array([1.]), 0.03, array([0.1]))
    """
    wrong, shrink = share * n_pseudo, share * n_classes / max(1, n_classes - 1)
    scores = np.sqrt(2 * wrong * leverages)
    return LabelNoise(math.sqrt(wrong / (2 * lam)), scores, shrink, np.sqrt(2 * share * leverages))


@dataclass(frozen=True, eq=False)
class SomeLabelled:
    """A client's rows, split into those with and without a label."""

    X: Float[Array, "n d"]
    classes: tuple[Label, ...]
    codes: Int64[NDArray[Any], " n"]

    @classmethod
    def split(cls, X: ArrayLike | Array, y: Any, name: str) -> SomeLabelled:
        """Checked rows, scaled so that the largest entry is 1, and their labels as codes."""
        X = as_matrix(X, name)
        require_finite(X, name)
        xp = namespace(X)
        peak = float(xp.max(xp.abs(X))) if X.shape[0] * X.shape[1] else 0.0
        X = X / peak if peak > 0 else X  # neither rule depends on the scale
        classes, codes = encode_labels(y, int(X.shape[0]))
        return cls(X, classes, codes)

    @property
    def has(self) -> Bool[NDArray[Any], " n"]:
        """Which rows have a label."""
        return self.codes != MISSING

    @property
    def cannot_run(self) -> str:
        """Why no rule can run on these rows; empty where one can."""
        if self.has.all():
            return "every row has a label already"
        return "" if self.has.any() else "no labelled row to learn from, so no label was invented"

    def take(self, index: Int64[NDArray[Any], " k"]) -> Float[Array, "k d"]:
        """Rows by number."""
        return self.X[like(index, self.X)]

    def labelled(self) -> Float[Array, "l d"]:
        """The rows with a label."""
        return self.take(np.flatnonzero(self.has))

    def unlabelled(self) -> Float[Array, "u d"]:
        """The rows without a label."""
        return self.take(np.flatnonzero(~self.has))

    def given(self) -> list[Label | None]:
        """The labels as they came, None where there is none."""
        return [None if c == MISSING else self.classes[c] for c in self.codes]

    def untouched(self, threshold: float, reason: str) -> PseudoLabels:
        """The result of a rule that could not run."""
        n = len(self.codes)
        confidence = np.where(self.has, np.nan, -np.inf)
        return PseudoLabels(self.given(), np.zeros(n, dtype=bool), confidence, threshold, reason)

    def decide(
        self,
        best: Int64[NDArray[Any], " u"],
        confidence: Float[NDArray[Any], " u"],
        accept: Bool[NDArray[Any], " u"],
        threshold: float,
        rule: str,
    ) -> PseudoLabels:
        """The result of a rule that gives unlabelled row i the class ``best[i]`` if accepted."""
        where = np.flatnonzero(~self.has)
        labels = self.given()
        for i, c in zip(where[accept], best[accept], strict=True):
            labels[i] = self.classes[c]
        accepted = np.zeros(len(labels), dtype=bool)
        accepted[where[accept]] = True
        shown = np.full(len(labels), np.nan)
        shown[where] = confidence
        reason = f"{rule} {threshold:g}: accepted {accept.sum()} of {len(where)} unlabelled rows"
        return PseudoLabels(labels, accepted, shown, threshold, reason)
