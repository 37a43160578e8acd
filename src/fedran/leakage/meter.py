"""The leak meter: what a message or a head tells about single rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import as_matrix, to_numpy
from fedran.core.errors import Refused
from fedran.core.features import FeatureMap, RandomFeatures, feature_map
from fedran.core.labels import MISSING, Label, encode_labels, recode
from fedran.core.points import Points
from fedran.core.solve.head import Head
from fedran.core.summary import Summary
from fedran.core.sums.class_sums import ClassSums
from fedran.leakage.attacks import HEADS, MEAN
from fedran.leakage.evidence import Message, Rows, class_counts, class_means, read
from fedran.leakage.inversion import identified, invert_means, single_rows
from fedran.leakage.membership import LEAST_PER_CLASS, SURE, TOGETHER, Number, separate

MAX_ROWS = 20_000
"""Most members and most reference rows that are tested; more are sampled."""
MAX_POINTS = 4096
"""Most points or landmarks that are compared with all rows."""
POINTS_TOLERANCE = (0.2, 0.5)
"""Relative error of class means from rounding: of many points, and what it is more for one."""
SMALL_CLASS = 5
"""A class with fewer rows is small."""
SINGLE, SMALL = "rows that are alone", "mean of a small class"
WITHHOLD = "Withhold classes with few rows: min_class_count in site.toml."
LOWER_RANK = "Lower the rank."
LARGER_GROUPS = "Use larger groups: min_group and group_size."
FEWER_LANDMARKS = "Solve with fewer landmarks, of larger groups: landmarks, min_group."
NOISE = "The head itself tells members: only differential privacy bounds that."
FEW_ROWS = "Withhold classes with few rows, or send a secure sum of several sites."


class Tolerance(NamedTuple):
    """The largest numbers that a site tolerates. The defaults are strict."""

    rows: int = 0
    """Single rows that an attacker recovers."""
    cosine: float = 0.9
    """Of the recovered and the true mean feature of a class with fewer than 5 rows."""
    auc: float = 0.6
    """Of the strongest membership attack. 0.5 is guessing, 1 is certain."""
    tpr: float = 0.01
    """Share of the members that are found at 0.1 % false positives."""


@dataclass(frozen=True, slots=True)
class Leakage:
    """What ``measure`` found. The attacks give lower bounds of what a message reveals."""

    description: str
    members: int
    """Rows that were tested as members."""
    reference: int
    """Rows that were tested as non-members."""
    numbers: tuple[Number, ...]
    """One per attack. Those on membership stand last, the strongest first."""
    cosines: dict[Label, float]
    """Of the recovered mean feature of every class and that of the given rows."""

    def __getitem__(self, attack: str) -> Number:
        """The number of one attack."""
        return {n.attack: n for n in self.numbers}[attack]

    @property
    def auc(self) -> float:
        """AUC of the strongest membership attack."""
        return max(n.value for n in self.numbers if n.measure == "auc")

    def over(self, tolerance: Tolerance | None = None) -> tuple[Number, ...]:
        """The numbers above their limits."""
        limits = tolerance or Tolerance()
        return tuple(n for n in self.numbers if n.value > getattr(limits, n.measure))


def measure(
    message: Message | Head,
    Z: ArrayLike,
    y: Any,
    reference: ArrayLike,
    reference_labels: Any,
    *,
    partial: bool = False,
    phi: FeatureMap | None = None,
    seed: int = 0,
) -> Leakage:
    """Attack a message or a head with rows that it was made of, and say what the attacks find.

    Parameters
    ----------
    message:
        A ``Points`` or a ``Summary``, as a server would decode it: rounding protects a little. Or a
        ``Head``, which everyone has who classifies with it.
    Z, y:
        The features (n, d) and labels that the message describes, or some of those that a head
        learned. Rows without a label, and classes that the message withholds, are left out.
    reference, reference_labels:
        Rows of the same kind that the message does not describe. Only classes of the message
        count, and a class needs at least 8 of them to be tested. Rows that equal one of Z are left
        out.
    partial:
        Z holds only some of the rows that the message describes, for instance one site's rows in a
        sum over sites. Without it, rows that do not match the message are refused.
    phi:
        The feature map, where the message does not name it in its fingerprint.
    seed:
        Of the attacks' random choices.

    Notes
    -----
    The attacks are lower bounds: a message can leak more than they find. Scores are compared
    within classes, so an AUC of 0.5 means that members and other rows of a class look alike.
    """
    if not isinstance(message, (Points, Summary, Head)):
        got = type(message).__name__
        raise TypeError(f"message must be a Points, a Summary or a Head, got {got}")
    message = message.to(None)
    if phi is None:
        if message.fingerprint is None:
            raise ValueError("the message names no feature map: pass phi=")
        phi = feature_map(message.fingerprint)
    rng, classes = np.random.default_rng(seed), message.classes
    X, codes = _rows(Z, y, classes, phi, "Z")
    X_other, other_codes = _rows(reference, reference_labels, classes, phi, "reference")
    same = {row.tobytes() for row in X}  # members in the reference would make members look alike
    fresh = np.array([row.tobytes() not in same for row in X_other], dtype=bool)
    X_other, other_codes = X_other[fresh], other_codes[fresh]
    known = np.bincount(other_codes, minlength=len(classes))
    members = _described(message, phi, X, codes)
    if not isinstance(message, Head):
        _check_match(message, members, partial)
    tested = [c for c, n in enumerate(known) if n >= LEAST_PER_CLASS and np.any(codes == c)]
    if not tested:
        raise Refused(
            "reference",
            f"at least {LEAST_PER_CLASS} rows of a class that the message and Z hold",
            f"at most {int(known.max(initial=0))}",
            hint="" if fresh.all() else "rows of the reference that are in Z do not count",
        )
    evidence, imitate = read(message, [classes[c] for c in tested])
    inside = _of_classes(members, tested)
    inside = inside[rng.permutation(len(inside))[:MAX_ROWS]]
    some = rng.permutation(np.flatnonzero(np.isin(other_codes, tested)))[:MAX_ROWS]
    outside = _of_classes(_described(message, phi, X_other[some], other_codes[some]), tested)
    found = separate(evidence, imitate, inside, outside, rng)
    means = X[:0] if isinstance(message, Head) else invert_means(message, phi)
    alone = single_rows(message, means)
    alone = alone[rng.permutation(len(alone))[:MAX_POINTS]]
    hits = identified(alone, X, X_other)
    numbers = [Number(SINGLE, hits, "rows", _advice(message, SINGLE), len(alone))]
    cosines = {
        label: _cosine(mean, X[codes == c].mean(axis=0)) if np.any(codes == c) else 0.0
        for c, (label, mean) in enumerate(zip(classes, means, strict=False))
    }
    if not isinstance(message, Head):
        sizes = dict(zip(classes, class_counts(message), strict=True))
        small = [cosine for label, cosine in cosines.items() if sizes[label] < SMALL_CLASS]
        if small:
            numbers.append(Number(SMALL, max(small), "cosine", _advice(message, SMALL)))
    strongest = next(n.attack for n in found if n.attack != TOGETHER)
    for number in found:
        of = strongest if number.attack in (TOGETHER, SURE) else number.attack
        numbers.append(number._replace(advice=_advice(message, of)))
    return Leakage(_describe(message), len(inside), len(outside), tuple(numbers), cosines)


def _advice(message: Message | Head, attack: str) -> str:
    """What lowers the number of an attack."""
    if attack == SMALL or (attack == SINGLE and isinstance(message, Summary)):
        return WITHHOLD
    if attack in (MEAN, HEADS):
        return FEW_ROWS if attack == MEAN else NOISE
    if isinstance(message, Points):
        return LARGER_GROUPS
    return LOWER_RANK if isinstance(message, Summary) else FEWER_LANDMARKS


def _cosine(a: NDArray[Any], b: NDArray[Any]) -> float:
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(np.dot(a, b)) / norms if norms > 0 else 0.0


def _rows(
    Z: ArrayLike, y: Any, classes: tuple[Label, ...], phi: FeatureMap, name: str
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The prepared rows whose label is a class of the message, and their class numbers."""
    given = to_numpy(as_matrix(Z, name, phi.in_features))
    found, codes = encode_labels(y, len(given))
    codes = recode(codes, found, classes)
    return to_numpy(phi.prepare(given[codes != MISSING])), codes[codes != MISSING]


def _described(
    message: Message | Head, phi: FeatureMap, X: NDArray[np.float32], codes: NDArray[np.int64]
) -> Rows:
    """Prepared rows as the message describes them."""
    linear = isinstance(message, Head) and message.landmarks is None
    if isinstance(phi, RandomFeatures) and (linear or isinstance(message, Summary)):
        X = to_numpy(phi.project(X))
    return Rows(X, codes)


def _of_classes(rows: Rows, tested: list[int]) -> Rows:
    """The rows of the tested classes, whose numbers become positions in ``tested``."""
    kept = rows[np.flatnonzero(np.isin(rows.codes, tested))]
    return Rows(kept.X, np.searchsorted(tested, kept.codes))


def _check_match(message: Message, rows: Rows, partial: bool) -> None:
    """Refuse rows that are not those of the message: the attacks would find nothing in it."""
    hint, counts = "", class_counts(message)
    for c, (label, count) in enumerate(zip(message.classes, counts, strict=True)):
        given = int(np.sum(rows.codes == c))
        if given > count or (given < count and not partial):
            expected = f"{'at most ' if partial else ''}{count:.0f} rows of class {label!r}"
            if given < count:
                hint = "partial (--partial) allows only some of the rows; a site's message also "
                hint += "counts rows with a pseudo-label (pseudo_labels in site.toml)"
            raise Refused("Z", f"{expected}, as the message says", given, hint)
    if partial or not message.classes:
        return
    sums = ClassSums.from_codes(rows.X, message.classes, rows.codes)
    stated = class_means(message).T * counts
    error, size = (float(np.linalg.norm(x)) for x in (stated - sums.sums, sums.sums))
    if isinstance(message, Summary):
        allowed = message.accounts.eps_B + 1e-3 * size
    else:
        always, alone = POINTS_TOLERANCE
        allowed = size * (always + alone * (len(counts) / len(message.counts)) ** 0.5)
    if error > allowed:
        raise Refused(
            "Z",
            "the rows that the message was made of",
            f"class sums that differ by {error / max(size, 1e-30):.1%}",
            "were the features made by another backbone?",
        )


def _describe(message: Message | Head) -> str:
    if isinstance(message, Points):
        most = message.counts.max(initial=0)
        sizes = f"groups of {message.smallest_group} to {most} rows" if most > 1 else "single rows"
        kind = f"points ({len(message.counts):,} {sizes})"
    elif isinstance(message, Summary):
        kind = f"summary (rank {message.rank})"
    elif message.landmarks is not None:
        kind = f"head with {len(message.landmarks):,} landmarks"
    else:
        kind = f"head over {message.out_features} random features"
    n_rows = message.diagnosis.n_rows if isinstance(message, Head) else sum(class_counts(message))
    return f"{kind} of {n_rows:,.0f} rows, {len(message.classes)} classes"
