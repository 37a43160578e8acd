"""Validation counts: how many rows of each class a head labels correctly, and how sure it is.

The server counts on its own validation rows. Sites may count on theirs and report the result; the
server adds the reports, and no single site can move the sum by more than a known share.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.labels import Label
from fedran.core.solve.calibration import Calibration
from fedran.federation.protocol.limits import MAX_CLASSES, MAX_ROWS
from fedran.federation.protocol.messages import read_labels
from fedran.wire.validation import Header


@dataclass(frozen=True)
class Count:
    """Validation rows of one class. Sums over sites are fractions after their bound."""

    rows: float
    correct: float
    gained: float
    """Correct ones that the first head of a message labels wrongly."""


Counts = dict[Label, Count]


def positions(y: Sequence[Any], columns: Collection[Label]) -> NDArray[np.int64]:
    """The column of each label; -1 for those without one."""
    position: dict[Any, int] = {label: i for i, label in enumerate(columns)}
    return np.array([position.get(label, -1) for label in y], dtype=np.int64)


def is_right(
    scores: NDArray[Any], classes: Collection[Label], y: Sequence[Any]
) -> NDArray[np.bool_]:
    """Which labelled rows have their best score (n, C) in the column of their label."""
    truth = positions(y, classes)
    return np.argmax(scores, axis=1) == truth if len(classes) else np.zeros(len(truth), dtype=bool)


def count_correct(right: NDArray[np.bool_], first: NDArray[np.bool_], y: Sequence[Any]) -> Counts:
    """Count per class which rows a head labels correctly, and which of them the first does not.

    >>> count_correct(np.array([True, True]), np.array([True, False]), ["a", "a"])["a"]
    Count(rows=2, correct=2, gained=1)
    """
    known = [label for label in dict.fromkeys(y) if label is not None]
    code = positions(y, known)
    every = np.ones(len(code), dtype=bool)
    rows, correct, gained = (
        np.bincount(code[chosen & (code >= 0)], minlength=len(known)).tolist()
        for chosen in (every, right, right & ~first)
    )
    return {label: Count(rows[i], correct[i], gained[i]) for i, label in enumerate(known)}


def gain(counts: Counts, first: Counts) -> tuple[float, float]:
    """Rows that are right by a head alone, and by the first head alone."""
    gained = sum(count.gained for count in counts.values())
    lost = sum(first[c].correct - n.correct + n.gained for c, n in counts.items() if c in first)
    return gained, lost


def calibration_of(scores: NDArray[Any], classes: Collection[Label], y: list[Any]) -> Calibration:
    """The histograms of scores (n, C) of labelled rows. Rows of other classes are left out."""
    return Calibration.of_scores(scores, positions(y, list(classes)))


def add_bounded(
    reports: Mapping[str, Counts], accepted: Mapping[str, Mapping[Label, int]]
) -> Counts:
    """The sum of the sites' reports, in which no site outweighs the others.

    A site counts for a class with at most as many rows as its accepted uploads have of it, and with
    at most the median of the reporting sites. Of S sites that report a class, at least S // 2 + 1
    have the median or more, so one of them has at most the share 1 / (S // 2 + 1) of the sum.

    >>> told = {name: {"a": Count(10, 9, 0)} for name in ("1", "2")}
    >>> told["liar"] = {"a": Count(10**6, 0, 0)}
    >>> add_bounded(told, {name: {"a": 1000} for name in told})
    {'a': Count(rows=30.0, correct=18.0, gained=0.0)}
    """
    total: Counts = {}
    for label in dict.fromkeys(label for counts in reports.values() for label in counts):
        told = {site: counts[label] for site, counts in reports.items() if label in counts}
        rows = {
            site: min(count.rows, accepted.get(site, {}).get(label, 0))
            for site, count in told.items()
            if count.rows > 0
        }
        rows = {site: n for site, n in rows.items() if n > 0}
        if not rows:
            continue
        cap = statistics.median_low(rows.values())
        shares = {site: min(n, cap) / told[site].rows for site, n in rows.items()}
        total[label] = Count(
            float(sum(min(n, cap) for n in rows.values())),
            sum(share * told[site].correct for site, share in shares.items()),
            sum(share * told[site].gained for site, share in shares.items()),
        )
    return total


def add_calibrations(
    reports: Mapping[str, Calibration], accepted: Mapping[str, Mapping[Label, int]]
) -> Calibration | None:
    """The sum of the sites' histograms, bounded as ``add_bounded`` does; None without a row."""
    rows = {
        site: min(told.total, sum(accepted.get(site, {}).values()))
        for site, told in reports.items()
    }
    rows = {site: n for site, n in rows.items() if n > 0}
    total = Calibration.empty()
    for site, n in rows.items():
        share = min(n, statistics.median_low(rows.values())) / reports[site].total
        total += reports[site].scaled(share)
    return total if rows else None


def accuracy(counts: Counts, labels: Iterable[Label]) -> float | None:
    """Accuracy over the rows of some classes; None without a row."""
    chosen = [counts[label] for label in labels if label in counts]
    rows = sum(count.rows for count in chosen)
    return sum(count.correct for count in chosen) / rows if rows else None


def counts_to_json(counts: Counts) -> list[list[Any]]:
    """Counts as plain values for a message."""
    return [[label, c.rows, c.correct, c.gained] for label, c in counts.items()]


def counts_from_json(given: object) -> Counts:
    """Inverse of ``counts_to_json``. Every value is checked."""
    if not isinstance(given, list) or len(given) > MAX_CLASSES:
        raise Refused("counts", f"a list of at most {MAX_CLASSES} classes", type(given).__name__)
    if not all(isinstance(line, list) and len(line) == 4 for line in given):
        raise Refused("counts", "label, rows, correct and gained for each class", given[:1])
    read_labels(Header({"counts": [line[0] for line in given]}), "counts")
    found: Counts = {}
    for line in given:
        label, rows, correct, gained = line
        numbers = all(type(n) is int for n in line[1:])
        if not numbers or not 0 < rows <= MAX_ROWS or not 0 <= gained <= correct:
            raise Refused("counts", "whole numbers of rows", line[1:])
        if correct > rows or label in found:
            raise Refused("counts", "each class once, with at most all rows correct", line[1:])
        found[label] = Count(rows, correct, gained)
    return found
