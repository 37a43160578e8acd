"""Scores of membership attacks: how well candidate rows fit the content of a message.

The attacker holds the message, candidate rows with their labels, and reference rows of the same
kind that are not members. A larger score means "rather a member".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Float32, Float64, Int64
from fedran.core.summarize import summarize
from fedran.core.summary import Summary
from fedran.core.sums.class_sums import ClassSums
from fedran.leakage.evidence import Evidence, Groups, Rows, ShadowHead

DIRECTIONS = 1024
"""Most directions of the population in which candidates are compared."""
POPULATION_ROWS = 2500
"""Rows that these directions are computed from."""
SHADOW_HEADS = 2
"""Heads of imitated sites per half of the reference."""
SHADOW_RANK = 256
FLOORS = {"Mahalanobis distance": 0.03, "Mahalanobis distance, damped": 1.0}
"""What is added to every variance in the sample, as a share of the population's."""
SPAN, NEAREST, GAP = "distance to the span", "nearest group mean", "gap to the next group"
MEAN, SCATTER, HEADS = "class mean", "scatter", "shadow heads"

Scores = dict[str, NDArray[np.float64]]
"""One score per candidate by the name of the attack."""


@dataclass(frozen=True, eq=False)
class Population:
    """What the attacker knows from one half of the reference."""

    means: Float32[NDArray[Any], "C m"]
    whitening: Float32[NDArray[Any], "m q"]
    """Maps residuals to uncorrelated values of variance 1."""
    heads: tuple[ShadowHead, ...]

    @classmethod
    def of(cls, rows: Rows, evidence: Evidence, rng: np.random.Generator) -> Population:
        """Class means of all rows, leading directions of some, and heads of imitated sites."""
        n_classes = len(evidence.counts)
        sums = ClassSums.from_codes(rows.X, tuple(range(n_classes)), rows.codes)
        some = rows[np.sort(rng.permutation(len(rows))[:POPULATION_ROWS])]
        free = max(2, len(some) - n_classes)
        found = summarize(some.X, some.codes, min(DIRECTIONS, free // 2, rows.X.shape[1]))
        variances = found.sigma**2 / free
        scale = found.sigma * np.sqrt(variances + 1e-3 * variances.sum() / max(1, len(variances)))
        heads = []
        for _ in range(SHADOW_HEADS):
            site = rows[sample_site(rows.codes, evidence.counts, rng)]
            heads.append(ShadowHead.of(_labelled(site, n_classes)))
        whitening = np.asarray(found.factor / scale, dtype=np.float32)
        return cls(np.asarray(sums.means.T, dtype=np.float32), whitening, tuple(heads))


def _labelled(site: Rows, n_classes: int) -> Summary:
    """A summary of random features whose sums cover all class numbers."""
    found = summarize(site.H, site.codes, min(SHADOW_RANK, max(1, len(site))))
    whole = ClassSums.from_codes(site.H, tuple(range(n_classes)), site.codes)
    return Summary(found.factor, whole, found.accounts)


def sample_site(
    codes: Int64[NDArray[Any], " n"], counts: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of an imitated site: as many of each class as counted, at most half of those there."""
    chosen = []
    for c, count in enumerate(counts):
        of_class = rng.permutation(np.flatnonzero(codes == c))
        chosen.append(of_class[: min(int(count), max(1, len(of_class) // 2))])
    return np.concatenate(chosen)


def score(evidence: Evidence, population: Population, *candidates: Rows) -> list[Scores]:
    """The scores of all attacks but the combined one, for each set of candidates."""
    columns = population.whitening.T @ np.concatenate([evidence.factor, evidence.surplus], axis=1)
    signs = np.repeat([1.0, -1.0], [evidence.factor.shape[1], evidence.surplus.shape[1]])
    scatter = (columns * signs.astype(np.float32)) @ columns.T
    variances, axes = np.linalg.eigh(scatter.astype(np.float64) / max(1.0, evidence.counts.sum()))
    return [
        _score(evidence, population, rows, variances, axes.astype(np.float32))
        for rows in candidates
    ]


def _score(
    evidence: Evidence,
    population: Population,
    rows: Rows,
    variances: Float64[NDArray[Any], " q"],
    axes: Float32[NDArray[Any], "q q"],
) -> Scores:
    """``variances`` along ``axes`` are those of the message's scatter; the population's are 1."""
    found: Scores = {}
    centre, own = population.means[rows.codes], evidence.means[rows.codes]
    from_centre = rows.X - centre
    u = from_centre @ population.whitening
    if evidence.groups is not None:
        found[NEAREST], found[GAP] = _nearest(evidence.groups, population, rows, u)
    elif 0 < evidence.factor.shape[1] < rows.X.shape[1]:
        whole = np.sum(from_centre**2, axis=1, dtype=np.float64)
        found[SPAN] = -np.log(evidence.outside(rows) / np.maximum(whole, 1e-30) + 1e-12)
    # The log-likelihood ratio of the class mean with and without the row, for normal rows.
    shift = (own - centre) @ population.whitening
    along = (u @ axes).astype(np.float64) ** 2
    squares = np.maximum(np.sum(along, axis=1), 1e-30)
    found[MEAN] = np.sum(u * shift, axis=1) - squares / (2 * evidence.counts[rows.codes])
    # A member adds (u'u)^2 to u'Su, whose spread over other rows is proportional to u'u. Directions
    # in which the sample varies less than the population are those that members avoid.
    found[SCATTER] = along @ variances / squares
    for name, floor in FLOORS.items():
        found[name] = -(along @ (1 / (np.maximum(variances, 0.0) + floor))) / squares
    found[HEADS] = _likelihood_ratio(evidence, population, rows)
    return found


def _likelihood_ratio(
    evidence: Evidence, population: Population, rows: Rows
) -> NDArray[np.float64]:
    """The log-likelihood ratio of the head's score for a row's own class, up to a factor.

    Shadow heads without the row give the score to expect, s. With the row they would give
    (s + l) / (1 + l) where l is its leverage (Sherman-Morrison), so none has to be solved again.
    """
    each = np.arange(len(rows))
    own = np.float64((rows.H @ evidence.weights)[each, rows.codes])
    without, change = np.zeros(len(rows)), np.zeros(len(rows))
    for head in population.heads:
        s = np.float64((rows.H @ head.weights)[each, rows.codes])
        leverage = head.leverage(rows)
        without += s / len(population.heads)
        change += leverage * (1 - s) / (1 + leverage) / len(population.heads)
    return change * (own - without - change / 2)


def _nearest(
    groups: Groups, population: Population, rows: Rows, u: Float32[NDArray[Any], "n q"]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distance to the nearest group mean of the class, and how much farther the next one is.

    Distances are those of the population's uncorrelated values. The first is relative to the
    row's distance from the centre of its class.
    """
    nearest, gap = np.zeros(len(rows)), np.zeros(len(rows))
    for c in np.unique(rows.codes):
        of_class, mine = np.flatnonzero(rows.codes == c), groups.codes == c
        v = (groups.means[mine] - population.means[c]) @ population.whitening
        squares = np.einsum("ij,ij->i", u[of_class], u[of_class], dtype=np.float64)[:, None]
        distance = squares - 2.0 * (u[of_class] @ v.T) + np.sum(v**2, axis=1)
        distance = np.sort(np.maximum(distance, 1e-9 * squares + 1e-30), axis=1)
        nearest[of_class] = -np.log(distance[:, 0] / np.maximum(squares[:, 0], 1e-30))
        if len(v) > 1:
            gap[of_class] = np.log(distance[:, 1] / distance[:, 0])
    return nearest, gap
