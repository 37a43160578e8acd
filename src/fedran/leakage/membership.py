"""Membership: members and other rows are scored alike, compared within classes, and combined.

Scores are compared within a class only, so that a class which is common at the site gives nothing
away by itself. The reference is halved. What the attacker knows about the population comes from one
half, and the other half is tested beside the members. Otherwise rows that helped to estimate the
population would look different from members for that reason alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Int64
from fedran.leakage.attacks import Population, Scores, sample_site, score
from fedran.leakage.evidence import Evidence, Imitate, Rows

LEAST_FOR_TPR = 10_000
"""The rate is stated above this number of reference rows: fewer than ten decide about it below."""
LEAST_PER_CLASS = 8
"""Fewest reference rows of a class, so that scores of the class can be compared."""
TOGETHER, SURE = "all together", "members at 0.1 % false positives"


class Number(NamedTuple):
    """What one attack found."""

    attack: str
    value: float
    measure: str
    """``rows``, ``cosine``, ``auc`` or ``tpr``: the field of ``Tolerance``."""
    advice: str = ""
    """What would lower the number."""
    tries: int | None = None
    """Attempts, where the value counts those that succeeded."""
    error: float | None = None
    """Standard error of an AUC."""


class Scored(NamedTuple):
    """Scores of members and of reference rows."""

    members: Scores
    member_codes: Int64[NDArray[Any], " a"]
    others: Scores
    other_codes: Int64[NDArray[Any], " b"]

    def standardised(self) -> Scored:
        """Scores minus the mean and divided by the deviation of the reference rows of their class.

        A reference row is compared with the others of its class, not with itself.
        """
        members, others = (
            {k: np.array(v, dtype=np.float64) for k, v in scores.items()}
            for scores in (self.members, self.others)
        )
        for name in others:
            for c in np.unique(self.other_codes):
                mine, other = self.member_codes == c, self.other_codes == c
                values, n = others[name][other], int(np.sum(other))
                centre, variance = values.mean(), values.var()
                floor = 1e-12 * (variance + centre**2) + 1e-30
                members[name][mine] = (members[name][mine] - centre) / np.sqrt(variance + floor)
                rest = centre + (centre - values) / max(n - 1, 1)
                left = (n * variance - (values - centre) ** 2 * n / max(n - 1, 1)) / max(n - 1, 1)
                others[name][other] = (values - rest) / np.sqrt(np.maximum(left, 0.0) + floor)
        return self._replace(members=members, others=others)


def separate(
    evidence: Evidence,
    imitate: Imitate | None,
    members: Rows,
    reference: Rows,
    rng: np.random.Generator,
) -> list[Number]:
    """Run all attacks; the strongest comes first.

    Members are tested twice, with what either half of the reference tells. Attacks are combined
    where the message can be imitated, so that the combination can be learned.
    """
    half = halves(reference.codes, rng)
    tested, trained = [], []
    for side in (0, 1):
        population = Population.of(reference[half != side], evidence, imitate, rng)
        rows = reference[half == side]
        outside, inside = score(evidence, population, rows, members)
        tested.append(Scored(inside, members.codes, outside, rows.codes).standardised())
        if imitate is None or evidence.moments is None:
            continue
        # The same attacks on a message that the attacker makes himself, where he knows the answer.
        chosen = np.zeros(len(rows), dtype=bool)
        chosen[sample_site(rows.codes, evidence.moments.counts, rng)] = True
        (known,) = score(imitate(rows[chosen]), population, rows)
        a, b = ({k: v[mask] for k, v in known.items()} for mask in (chosen, ~chosen))
        trained.append(Scored(a, rows.codes[chosen], b, rows.codes[~chosen]).standardised())
    found = _joined(tested)
    if evidence.moments is not None and trained:
        combine = _learn(_joined(trained), evidence.moments.counts)
        together = found._replace(
            members={TOGETHER: combine(found.members, found.member_codes)},
            others={TOGETHER: combine(found.others, found.other_codes)},
        ).standardised()
        found.members.update(together.members)
        found.others.update(together.others)
    numbers, n, m = [], len(members), len(reference)
    for name, others in found.others.items():
        value = auc(found.members[name], others)
        numbers.append(Number(name, value, "auc", error=auc_error(value, n, m)))
    numbers.sort(key=lambda number: -number.value)
    if m > LEAST_FOR_TPR:
        rates = (true_positive_rate(found.members[k], v) for k, v in found.others.items())
        numbers.append(Number(SURE, max(rates), "tpr"))
    return numbers


def halves(codes: Int64[NDArray[Any], " n"], rng: np.random.Generator) -> NDArray[np.int64]:
    """0 or 1 for each row, so that each class is halved."""
    half = np.zeros(len(codes), dtype=np.int64)
    for c in np.unique(codes):
        of_class = rng.permutation(np.flatnonzero(codes == c))
        half[of_class[: len(of_class) // 2]] = 1
    return half


def _joined(parts: list[Scored]) -> Scored:
    names = set.intersection(*(set(p.others) for p in parts))
    return Scored(
        {k: np.concatenate([p.members[k] for p in parts]) for k in sorted(names)},
        np.concatenate([p.member_codes for p in parts]),
        {k: np.concatenate([p.others[k] for p in parts]) for k in sorted(names)},
        np.concatenate([p.other_codes for p in parts]),
    )


def _learn(
    known: Scored, counts: NDArray[np.float64]
) -> Callable[[Scores, Int64[NDArray[Any], " n"]], NDArray[np.float64]]:
    """A logistic regression on all scores; those of small classes have weights of their own."""
    from sklearn.linear_model import LogisticRegression  # slow to import

    names = sorted(known.others)

    def features(scores: Scores, codes: Int64[NDArray[Any], " n"]) -> NDArray[np.float64]:
        values = np.clip(np.stack([scores[k] for k in names], axis=1), -20, 20)
        return np.concatenate([values, values / np.sqrt(counts[codes])[:, None]], axis=1)

    inside = features(known.members, known.member_codes)
    outside = features(known.others, known.other_codes)
    model = LogisticRegression(class_weight="balanced", max_iter=1000)
    model.fit(np.concatenate([inside, outside]), np.repeat([1, 0], [len(inside), len(outside)]))
    return lambda scores, codes: model.decision_function(features(scores, codes))


def auc(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """The probability that a member has a larger score than another row; ties count half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, "left").sum()
    not_above = np.searchsorted(ordered, members, "right").sum()
    return float((below + not_above) / (2 * len(members) * len(others)))


def auc_error(value: float, n_members: int, n_others: int) -> float:
    """The standard error of an AUC (Hanley and McNeil, 1982)."""
    first, second = value / (2 - value), 2 * value**2 / (1 + value)
    spread = (n_members - 1) * (first - value**2) + (n_others - 1) * (second - value**2)
    return float(np.sqrt((value * (1 - value) + spread) / (n_members * n_others)))


def true_positive_rate(
    members: NDArray[np.float64], others: NDArray[np.float64], rate: float = 0.001
) -> float:
    """The share of members above the threshold that at most ``rate`` of the others exceed."""
    threshold = np.sort(others)[len(others) - 1 - int(rate * len(others))]
    return float(np.mean(members > threshold))
