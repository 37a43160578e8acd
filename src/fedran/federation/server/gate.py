"""The gate for new heads: a head that is worse on earlier classes does not go into service.

Validation rows at the server are needed. Accuracy on the classes of earlier tasks is compared
between the head in service and the new one. New classes make every task harder, so predictions of
new classes that the validation rows contain do not count there. Whether an upload does harm is
found by leaving it out: its part is subtracted from the sum, and the head is solved again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedran.core.head import Head
from fedran.core.labels import Label
from fedran.core.mixture import Mixture
from fedran.core.summary import Summary
from fedran.federation.protocol.identity import base_task
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.server.entries import Upload
from fedran.federation.server.store import Store
from fedran.federation.server.validation import decode_upload
from fedran.federation.server.validation_set import ValidationSet
from fedran.wire.validation import FILE_LIMITS

LEAST_ROWS = 3
"""Validation rows by which a head must be worse, so that a single row never decides."""
MAX_LEFT_OUT = 50
"""New uploads that are left out one by one, those with the most rows first."""


@dataclass(frozen=True)
class Fall:
    """The accuracy on the classes that a task brought, before and after."""

    task: str
    before: float
    after: float


@dataclass(frozen=True)
class Blame:
    """An upload without which the new head would be better."""

    client: str
    task: str
    gain: float
    """Points of accuracy over all validation rows."""


@dataclass(frozen=True)
class Held:
    """Why a new head is held back."""

    falls: tuple[Fall, ...]
    uploads: tuple[Blame, ...]

    @property
    def reason(self) -> str:
        """One sentence for the operator."""
        parts = [
            f"accuracy on the classes of task {f.task} falls from {100 * f.before:.1f} % to "
            f"{100 * f.after:.1f} %"
            for f in self.falls[:3]
        ]
        parts += [
            f"without the upload of {b.client} for {b.task} the accuracy over all classes is "
            f"{b.gain:.1f} points higher"
            for b in self.uploads[:3]
        ]
        if not self.uploads:
            parts.append("no single upload explains it")
        return "; ".join(parts)


def check_head(
    store: Store,
    validation: ValidationSet,
    previous: Head | None,
    new: Head,
    margin: float,
    uploads: Collection[Upload],
) -> Held | None:
    """Why the new head must not replace the previous one; None if it may.

    ``margin`` is in points. ``uploads`` are those that the previous head did not contain. They
    are left out one by one if a group of classes is worse than before, if the new classes are
    worse than the earlier ones, or if there is no previous head to compare with.
    """
    scores, classes = validation.scores(new), list(new.classes)
    after, known = validation.correct_scores(scores, classes), validation.known_to(new)
    falls: list[Fall] = []
    suspicious = previous is None
    if previous is not None:
        earlier, before = validation.known_to(previous), validation.correct(previous)
        groups = _groups(store.database.uploads(), validation, previous)
        tested = set(validation.rows.y)
        fair = [i for i, c in enumerate(classes) if c in previous.classes or c not in tested]
        compared = validation.correct_scores(scores[:, fair], [classes[i] for i in fair])
        falls = _falls(groups, before, compared, margin)
        fresh, known = known & ~earlier, known | earlier
        if fresh.any() and earlier.any():
            suspicious = np.mean(after[fresh]) < np.mean(before[earlier]) - margin / 100
        suspicious = bool(suspicious or falls or _falls(groups, before, after, margin))
    if not suspicious or not known.any():
        return None
    blamed = []
    for upload in sorted(uploads, key=lambda u: -u.rows)[:MAX_LEFT_OUT]:
        rest = store.aggregator.solve_without(messages_of(store, [upload]))
        if rest is None:
            continue
        gain = int(validation.correct(rest)[known].sum()) - int(after[known].sum())
        points = 100 * gain / int(known.sum())
        if gain >= LEAST_ROWS and points > margin:
            blamed.append(Blame(upload.client, upload.task, points))
    blamed.sort(key=lambda b: -b.gain)
    return Held(tuple(falls), tuple(blamed)) if falls or blamed else None


def messages_of(store: Store, uploads: Iterable[Upload]) -> Iterator[Summary | Mixture]:
    """The messages of accepted uploads, one at a time in memory."""
    for upload in uploads:
        envelope = open_envelope(store.database.envelope(upload), FILE_LIMITS)
        yield decode_upload(envelope, FILE_LIMITS)


def _groups(
    uploads: Iterable[Upload], validation: ValidationSet, head: Head
) -> dict[str, NDArray[np.bool_]]:
    """For each task, the validation rows of the head's classes that the task was first to have."""
    first: dict[Label, str] = {}
    for upload in uploads:
        for label, _ in upload.classes:
            first.setdefault(label, base_task(upload.task))
    tasks = [first.get(label, "") if label in head.classes else None for label in validation.rows.y]
    names = dict.fromkeys(task for task in tasks if task is not None)
    return {name: np.array([task == name for task in tasks], dtype=bool) for name in names}


def _falls(
    groups: dict[str, NDArray[np.bool_]],
    before: NDArray[np.bool_],
    after: NDArray[np.bool_],
    margin: float,
) -> list[Fall]:
    """The groups on which the accuracy falls by more than the margin, worst first."""
    found = []
    for task, rows in groups.items():
        old, new = float(np.mean(before[rows])), float(np.mean(after[rows]))
        if 100 * (old - new) > margin and (old - new) * rows.sum() >= LEAST_ROWS - 0.5:
            found.append(Fall(task, old, new))
    return sorted(found, key=lambda fall: fall.after - fall.before)
