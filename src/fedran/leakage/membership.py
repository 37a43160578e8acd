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

FALSE_POSITIVES = 0.001
LEAST_FOR_TPR = 10_000
"""The rate is stated above this number of reference rows: fewer than ten decide about it below."""
LEAST_PER_CLASS = 8
"""Fewest reference rows of a class, so that scores of the class can be compared."""
TOGETHER = "all together"


class Separation(NamedTuple):
    """How well one attack separates members from reference rows of the same class."""

    attack: str
    auc: float
    error: float
    """Standard error of the AUC."""
    tpr: float | None
    """Share of members found at 0.1 % false positives; None with too few reference rows."""


class Tested(NamedTuple):
    """Scores of members and of reference rows, in units of the spread over the reference."""

    members: Scores
    member_codes: Int64[NDArray[Any], " a"]
    others: Scores
    other_codes: Int64[NDArray[Any], " b"]


def separate(
    evidence: Evidence,
    imitate: Imitate | None,
    members: Rows,
    reference: Rows,
    rng: np.random.Generator,
) -> list[Separation]:
    """Run all attacks. Members are tested twice, with what either half of the reference tells.

    They are combined where the message can be imitated, so that the combination can be learned.
    """
    half = halves(reference.codes, rng)
    tested, trained = [], []
    for side in (0, 1):
        population = Population.of(reference[half != side], evidence, imitate, rng)
        rows = reference[half == side]
        outside, inside = score(evidence, population, rows, members)
        tested.append(_standardised(inside, members.codes, outside, rows.codes))
        if imitate is None or evidence.moments is None:
            continue
        # The same attacks on a message that the attacker makes himself, where he knows the answer.
        chosen = np.zeros(len(rows), dtype=bool)
        chosen[sample_site(rows.codes, evidence.moments.counts, rng)] = True
        (known,) = score(imitate(rows[chosen]), population, rows)
        a, b = ({k: v[mask] for k, v in known.items()} for mask in (chosen, ~chosen))
        trained.append(_standardised(a, rows.codes[chosen], b, rows.codes[~chosen]))
    found = _joined(tested)
    if evidence.moments is not None and trained:
        combine = _learn(_joined(trained), evidence.moments.counts)
        together = _standardised(
            {TOGETHER: combine(found.members, found.member_codes)},
            found.member_codes,
            {TOGETHER: combine(found.others, found.other_codes)},
            found.other_codes,
        )
        found.members.update(together.members)
        found.others.update(together.others)
    n, m = len(members), len(reference)
    separations = []
    for name, others in found.others.items():
        value = auc(found.members[name], others)
        enough = m > LEAST_FOR_TPR
        rate = true_positive_rate(found.members[name], others) if enough else None
        separations.append(Separation(name, value, auc_error(value, n, m), rate))
    return separations


def halves(codes: Int64[NDArray[Any], " n"], rng: np.random.Generator) -> NDArray[np.int64]:
    """0 or 1 for each row, so that each class is halved."""
    half = np.zeros(len(codes), dtype=np.int64)
    for c in np.unique(codes):
        of_class = rng.permutation(np.flatnonzero(codes == c))
        half[of_class[: len(of_class) // 2]] = 1
    return half


def _standardised(
    inside: Scores,
    inside_codes: Int64[NDArray[Any], " a"],
    outside: Scores,
    outside_codes: Int64[NDArray[Any], " b"],
) -> Tested:
    """Scores minus the mean and divided by the deviation of the reference rows of their class.

    A reference row is compared with the others of its class, not with itself.
    """
    a, b = ({k: np.array(v, dtype=np.float64) for k, v in s.items()} for s in (inside, outside))
    for name in outside:
        for c in np.unique(outside_codes):
            mine, other = inside_codes == c, outside_codes == c
            values, n = outside[name][other].astype(np.float64), int(np.sum(other))
            centre, variance = values.mean(), values.var()
            floor = 1e-12 * (variance + centre**2) + 1e-30
            a[name][mine] = (inside[name][mine] - centre) / np.sqrt(variance + floor)
            rest = centre + (centre - values) / max(n - 1, 1)
            left = (n * variance - (values - centre) ** 2 * n / max(n - 1, 1)) / max(n - 1, 1)
            b[name][other] = (values - rest) / np.sqrt(np.maximum(left, 0.0) + floor)
    return Tested(a, inside_codes, b, outside_codes)


def _joined(parts: list[Tested]) -> Tested:
    names = set.intersection(*(set(p.others) for p in parts))
    return Tested(
        {k: np.concatenate([p.members[k] for p in parts]) for k in sorted(names)},
        np.concatenate([p.member_codes for p in parts]),
        {k: np.concatenate([p.others[k] for p in parts]) for k in sorted(names)},
        np.concatenate([p.other_codes for p in parts]),
    )


def _learn(
    known: Tested, counts: NDArray[np.float64]
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
    members: NDArray[np.float64], others: NDArray[np.float64], rate: float = FALSE_POSITIVES
) -> float:
    """The share of members above the threshold that at most ``rate`` of the others exceed."""
    threshold = np.sort(others)[len(others) - 1 - int(rate * len(others))]
    return float(np.mean(members > threshold))
