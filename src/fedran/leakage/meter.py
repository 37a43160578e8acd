"""The leak meter: what a message tells about single rows, before it is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import as_matrix, to_numpy
from fedran.core.class_sums import ClassSums
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.labels import MISSING, Label, encode_labels, recode
from fedran.core.mixture import Mixture
from fedran.core.release import Release
from fedran.core.summary import Summary
from fedran.leakage.attacks import Evidence, Rows
from fedran.leakage.evidence import Message, class_means, feature_map, read
from fedran.leakage.inversion import Guesses, Judge, invert_summary, single_groups
from fedran.leakage.membership import (
    LEAST_FOR_TPR,
    LEAST_PER_CLASS,
    Tested,
    attack,
    auc,
    auc_error,
    per_class,
    true_positive_rate,
)
from fedran.leakage.report import Attack, ClassLeakage, Leakage, Tries

MAX_ROWS = 20_000
"""Most members and most reference rows that are tested; more are sampled."""
MIXTURE_TOLERANCE = 0.2
"""Relative error of a class mean in a mixture, from rounding, that is still the same class mean."""


def measure(
    message: Message,
    Z: ArrayLike,
    y: Any,
    reference: ArrayLike,
    reference_labels: Any,
    *,
    partial: bool = False,
    phi: RandomFeatures | None = None,
    seed: int = 0,
) -> Leakage:
    """Attack a message with the rows that it was made of, and say what the attacks find.

    Parameters
    ----------
    message:
        A ``Summary`` or a ``Mixture``, as a server would decode it: rounding protects a little.
        Or a ``Release`` of noisy sums over prepared rows (``fedran.core.dp``), which needs ``phi``
        and ``partial``.
    Z, y:
        The features (n, d) and labels that the message describes. Rows without a label, and
        classes that the message withholds, are left out.
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
    if not isinstance(message, (Summary, Mixture, Release)):
        got = type(message).__name__
        raise TypeError(f"message must be a Summary, a Mixture or a Release, got {got}")
    if not isinstance(message, Release):
        message = message.to(None)
    if phi is None:
        if isinstance(message, Release) or message.fingerprint is None:
            raise ValueError("the message names no feature map: pass phi=")
        phi = feature_map(message.fingerprint)
    rng, classes = np.random.default_rng(seed), message.classes
    X, codes = _rows(Z, y, classes, phi, "Z")
    X_other, other_codes = _rows(reference, reference_labels, classes, phi, "reference")
    same = {row.tobytes() for row in X}  # members in the reference would make members look alike
    fresh = np.array([row.tobytes() not in same for row in X_other], dtype=bool)
    X_other, other_codes = X_other[fresh], other_codes[fresh]
    known = np.bincount(other_codes, minlength=len(classes))
    H = _mapped(message, phi, X)
    _check_match(message, H if isinstance(message, Summary) else X, codes, partial)
    tested = [c for c, n in enumerate(known) if n >= LEAST_PER_CLASS and np.any(codes == c)]
    if not tested:
        raise Refused(
            "reference",
            f"at least {LEAST_PER_CLASS} rows of a class that the message and Z hold",
            f"at most {int(known.max(initial=0))}",
            hint="" if fresh.all() else "rows of the reference that are in Z do not count",
        )
    evidence, imitate = read(message, [classes[c] for c in tested], phi, rng)
    inside = _candidates(message, X, H, codes, tested)
    inside = inside[rng.permutation(len(inside))[:MAX_ROWS]]
    some = rng.permutation(np.flatnonzero(np.isin(other_codes, tested)))[:MAX_ROWS]
    H_other = _mapped(message, phi, X_other[some])
    outside = _candidates(message, X_other[some], H_other, other_codes[some], tested)
    found = attack(evidence, imitate, inside, outside, rng)
    attacks = _strongest_first(found, len(inside), len(outside))
    aucs = {tested[c]: value for c, value in per_class(found, attacks[0].name)}
    share = None
    if isinstance(message, Summary) and message.rank:
        share = evidence.share(inside), evidence.share(outside)
    guesses = _guesses(message, phi, evidence, codes, rng)
    judge = Judge(X, X_other)
    single, searched = ([judge.row(x) for x in g] for g in (guesses.single, guesses.searched))
    recovered: dict[int, set[int]] = {c: set() for c in range(len(classes))}
    for c, row in zip(guesses.codes, [*single, *searched], strict=True):
        recovered[c] |= {row} - {MISSING}
    lines = [
        ClassLeakage(
            label,
            round(float(message.counts[c])),
            int(known[c]),
            _cosine(guesses.means[c], X[codes == c].mean(axis=0)) if np.any(codes == c) else 0.0,
            len(recovered[c]),
            aucs.get(c),
        )
        for c, label in enumerate(classes)
    ]
    return Leakage(
        _describe(message),
        isinstance(message, Mixture),
        len(inside),
        len(outside),
        tuple(lines),
        attacks,
        Tries(sum(row != MISSING for row in single), len(single)),
        Tries(sum(row != MISSING for row in searched), len(searched)),
        share,
    )


def _strongest_first(found: Tested, n_members: int, n_others: int) -> tuple[Attack, ...]:
    """How well each attack tells members from other rows."""
    attacks = []
    for name, others in found.others.items():
        members = found.members[name]
        value = auc(members, others)
        rate = true_positive_rate(members, others) if n_others > LEAST_FOR_TPR else None
        attacks.append(Attack(name, value, auc_error(value, n_members, n_others), rate))
    return tuple(sorted(attacks, key=lambda a: -a.auc))


def _guesses(
    message: Message,
    phi: RandomFeatures,
    evidence: Evidence,
    codes: NDArray[np.int64],
    rng: np.random.Generator,
) -> Guesses:
    """What inversion gives for this kind of message; for noisy sums the class means alone."""
    if isinstance(message, Summary):
        return invert_summary(message, phi, evidence.basis, codes, rng)
    if isinstance(message, Mixture):
        return single_groups(message)
    none = np.zeros((0, len(message.gram)))
    return Guesses(class_means(message), none, none, [])


def _cosine(a: NDArray[Any], b: NDArray[Any]) -> float:
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(np.dot(a, b)) / norms if norms > 0 else 0.0


def _rows(
    Z: ArrayLike, y: Any, classes: tuple[Label, ...], phi: RandomFeatures, name: str
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The prepared rows whose label is a class of the message, and their class numbers."""
    given = to_numpy(as_matrix(Z, name, phi.in_features))
    found, codes = encode_labels(y, len(given))
    codes = recode(codes, found, classes)
    return to_numpy(phi.prepare(given[codes != MISSING])), codes[codes != MISSING]


def _check_match(
    message: Message, rows: NDArray[np.float32], codes: NDArray[np.int64], partial: bool
) -> None:
    """Refuse rows that are not those of the message: the attacks would find nothing in it."""
    if isinstance(message, Release):
        if not partial:
            raise ValueError("noisy sums do not state exact counts: pass partial=True")
        return
    hint = "" if partial else "partial (--partial) allows only some of the rows"
    for c, (label, count) in enumerate(zip(message.classes, message.counts, strict=True)):
        given = int(np.sum(codes == c))
        if given > count or (given < count and not partial):
            expected = f"{'at most ' if partial else ''}{count} rows of class {label!r}"
            if given < count:
                hint += "; a site's message also counts rows with a pseudo-label "
                hint += "(pseudo_labels in site.toml)"
            raise Refused("Z", f"{expected}, as the message says", given, hint)
    if partial or not message.classes:
        return
    sums = ClassSums.from_codes(rows, message.classes, codes)
    stated = class_means(message).T * np.asarray(message.counts)
    error, size = (float(np.linalg.norm(x)) for x in (stated - sums.sums, sums.sums))
    allowed = MIXTURE_TOLERANCE * size
    if isinstance(message, Summary) and message.sums.weights is None:
        allowed = message.accounts.eps_B + 1e-3 * size
    if error > allowed:
        raise Refused(
            "Z",
            "the rows that the message was made of",
            f"class sums that differ by {error / max(size, 1e-30):.1%}",
            "were the features made by another backbone?",
        )


def _mapped(message: Message, phi: RandomFeatures, X: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows that the head of the message takes: random features, or X itself for noisy sums."""
    return X if isinstance(message, Release) else to_numpy(phi.project(X))


def _candidates(
    message: Message,
    X: NDArray[np.float32],
    H: NDArray[np.float32],
    codes: NDArray[np.int64],
    tested: list[int],
) -> Rows:
    """The rows of the tested classes, whose numbers are positions in ``tested``."""
    kept = np.isin(codes, tested)
    rows = H[kept]
    described = X[kept] if isinstance(message, Mixture) else rows
    return Rows(described, rows, np.searchsorted(tested, codes[kept]))


def _describe(message: Message) -> str:
    if isinstance(message, Release):
        rows, classes = float(message.counts.sum()), len(message.classes)
        return f"noisy sums of about {rows:,.0f} rows, {classes} classes, d = {len(message.gram)}"
    if isinstance(message, Mixture):
        return (
            f"mixture of {message.n_rows:,} rows in {message.n_groups:,} groups of at least "
            f"{message.smallest_group}, {len(message.classes)} classes"
        )
    kind = "class-centred summary" if message.center else "summary"
    return (
        f"{kind} of {message.accounts.n_rows:,} rows, {len(message.classes)} classes, "
        f"rank {message.rank}, M = {message.out_features}"
    )
