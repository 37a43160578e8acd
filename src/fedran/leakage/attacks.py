"""Scores of membership attacks: how well candidate rows fit the content of a message or a head.

The attacker holds it, candidate rows with their labels, and reference rows of the same kind that
are not members. A larger score means "rather a member".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Float32, Int64
from fedran.core.summarize import summarize
from fedran.core.sums.class_sums import ClassSums
from fedran.leakage.evidence import Evidence, Imitate, Rows

DIRECTIONS = 1024
"""Most directions of the population in which candidates are compared."""
POPULATION_ROWS = 2500
"""Rows that these directions are computed from."""
SHADOW_HEADS = 2
"""Heads of imitated sites per half of the reference."""
FLOOR = 0.03
"""What is added to every variance in the sample, as a share of the population's."""
SPAN, NEAREST, GAP = "distance to the span", "nearest mean", "gap to the next mean"
MEAN, SCATTER, HEADS = "class mean", "scatter", "score of the head"

Scores = dict[str, NDArray[np.float64]]
"""One score per candidate by the name of the attack."""


@dataclass(frozen=True, eq=False)
class Population:
    """What the attacker knows from one half of the reference."""

    means: Float32[NDArray[Any], "C m"]
    whitening: Float32[NDArray[Any], "m q"]
    """Maps residuals to uncorrelated values of variance 1."""
    shadows: tuple[Evidence, ...]
    """Of imitated sites, whose heads have not seen the candidates."""

    @classmethod
    def of(
        cls, rows: Rows, evidence: Evidence, imitate: Imitate | None, rng: np.random.Generator
    ) -> Population:
        """Class means of all rows, leading directions of some, and heads of imitated sites."""
        n_classes = len(evidence.columns)
        sums = ClassSums.from_codes(rows.X, tuple(range(n_classes)), rows.codes)
        some = rows[np.sort(rng.permutation(len(rows))[:POPULATION_ROWS])]
        free = max(2, len(some) - n_classes)
        found = summarize(some.X, some.codes, min(DIRECTIONS, free // 2, rows.X.shape[1]))
        variances = found.sigma**2 / free
        scale = found.sigma * np.sqrt(variances + 1e-3 * variances.sum() / max(1, len(variances)))
        shadows = []
        if imitate is not None and evidence.moments is not None:
            for _ in range(SHADOW_HEADS):
                chosen = sample_site(rows.codes, evidence.moments.counts, rng)
                shadows.append(imitate(rows[chosen]))
        whitening = np.asarray(found.factor / scale, dtype=np.float32)
        return cls(np.asarray(sums.means.T, dtype=np.float32), whitening, tuple(shadows))


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
    found: list[Scores] = []
    for rows in candidates:
        # What the head says beyond what heads say that have not seen the row.
        scores = evidence.own_scores(rows)
        for shadow in population.shadows:
            scores -= shadow.own_scores(rows) / len(population.shadows)
        found.append({HEADS: scores})
        if evidence.groups is not None:
            found[-1][NEAREST], found[-1][GAP] = _nearest(evidence.groups, population, rows)
    if evidence.moments is not None:
        for scored, more in zip(found, _fit(evidence, population, candidates), strict=True):
            scored.update(more)
    return found


def _fit(evidence: Evidence, population: Population, candidates: tuple[Rows, ...]) -> list[Scores]:
    """How candidates fit the means and the scatter of a message."""
    moments = evidence.moments
    assert moments is not None
    W, found = population.whitening, []
    columns = W.T @ moments.factor
    scatter = columns @ columns.T
    if moments.surplus is not None:
        columns = W.T @ moments.surplus
        scatter -= columns @ columns.T
    basis = np.linalg.qr(moments.factor.astype(np.float64))[0].astype(np.float32)
    variances, axes = np.linalg.eigh(scatter.astype(np.float64) / max(1.0, moments.counts.sum()))
    for rows in candidates:
        scores: Scores = {}
        centre, own = population.means[rows.codes], moments.means[rows.codes]
        from_centre = rows.X - centre
        u = from_centre @ W
        if evidence.groups is None and 0 < moments.factor.shape[1] < rows.X.shape[1]:
            left = rows.X - own
            left -= (left @ basis) @ basis.T
            far, whole = (np.sum(x**2, axis=1, dtype=np.float64) for x in (left, from_centre))
            scores[SPAN] = -np.log(far / np.maximum(whole, 1e-30) + 1e-12)
        # The log-likelihood ratio of the class mean with and without the row, for normal rows.
        along = (u @ axes.astype(np.float32)).astype(np.float64) ** 2
        squares = np.maximum(np.sum(along, axis=1), 1e-30)
        shift = np.sum(u * ((own - centre) @ W), axis=1)
        scores[MEAN] = shift - squares / (2 * moments.counts[rows.codes])
        # Directions in which the sample varies less than the population, whose variances are 1,
        # are those that members avoid.
        scores[SCATTER] = -(along @ (1 / (np.maximum(variances, 0.0) + FLOOR))) / squares
        found.append(scores)
    return found


def _nearest(
    groups: Rows, population: Population, rows: Rows
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distance to the nearest mean of the row's class, and how much farther the next one is.

    Distances are those of the population's uncorrelated values. The first is relative to the
    row's distance from the centre of its class.
    """
    nearest, gap = np.zeros(len(rows)), np.zeros(len(rows))
    for c in np.unique(rows.codes):
        of_class = np.flatnonzero(rows.codes == c)
        u = (rows.X[of_class] - population.means[c]) @ population.whitening
        v = (groups.X[groups.codes == c] - population.means[c]) @ population.whitening
        if not len(v):
            continue
        squares = np.einsum("ij,ij->i", u, u, dtype=np.float64)[:, None]
        distance = squares - 2.0 * (u @ v.T) + np.sum(v**2, axis=1)
        distance = np.sort(np.maximum(distance, 1e-9 * squares + 1e-30), axis=1)
        nearest[of_class] = -np.log(distance[:, 0] / np.maximum(squares[:, 0], 1e-30))
        if len(v) > 1:
            gap[of_class] = np.log(distance[:, 1] / distance[:, 0])
    return nearest, gap
