"""The gate for new heads: a head that is worse on earlier classes does not go into service.

Validation rows are needed, at the server or at the sites. Accuracy on the classes of earlier tasks
is compared between the head in service and the new one. New classes make every task harder, so
predictions of new classes that the validation rows contain do not count there. Whether an upload
does harm is found by leaving it out and solving the head again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import require_finite, to_numpy
from fedran.core.errors import Refused, shortened
from fedran.core.features import RandomFeatures, feature_map
from fedran.core.labels import Label
from fedran.core.prepare import KernelFeatures, require_nonnegative
from fedran.core.solve.calibration import Calibration
from fedran.core.solve.head import Head
from fedran.data.rows import Rows, read_rows
from fedran.federation.protocol.class_counts import Counts, accuracy, calibration_of, count_correct
from fedran.federation.protocol.limits import LEAST_ROWS, MOST_BATCHES
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.schema import Upload
from fedran.federation.server.store.store import Store

log = logging.getLogger(__name__)


class Validation(Protocol):
    """Rows with labels on which heads are tested: a ``ValidationSet``, or a ``SiteValidation``."""

    most_heads: int
    """New uploads of a batch that are left out one by one, those with the most rows first."""

    def counts(self, heads: Iterable[Head], earlier: Collection[Label]) -> list[Counts]:
        """Rows and correct ones per class, for each head. All have the same rows."""
        ...

    def witnesses(self, before: Head, after: Head, labels: Collection[Label]) -> tuple[str, ...]:
        """Sites on whose rows of these classes the second head is worse than the first."""
        ...

    def accuracy(self, head: Head) -> float | None:
        """Accuracy on the rows whose class the head knows; None if there are none."""
        ...

    def calibration(self, head: Head) -> Calibration | None:
        """What calibrates the head; None if there are no rows of its classes."""
        ...


@dataclass(frozen=True)
class ValidationSet:
    """Features (n, d) with labels at the server, and the feature map."""

    rows: Rows
    phi: KernelFeatures | RandomFeatures
    most_heads = 50

    @classmethod
    def load(cls, folder: Path, settings: ServerSettings) -> ValidationSet | None:
        """The rows in the file that the settings name; None if they name none."""
        if settings.validation is None:
            return None
        hint = 'set label_column = "{}" in server.toml'
        rows = read_rows(folder / settings.validation, settings.label_column, hint)
        rows = rows.in_order(settings.columns or (), settings.validation)
        width = settings.in_features
        if rows.is_images or rows.X.shape[1] != width:
            expected = f"features (n, {width}), as `in_features` says"
            raise Refused(settings.validation, expected, f"{rows.X.dtype} {rows.X.shape}")
        require_finite(rows.X, settings.validation)
        if settings.kind == "hellinger":  # refused now rather than when the first head is tested
            hint = "set kind = 'cosine' for features of any sign"
            require_nonnegative(rows.X, settings.validation, "as kind 'hellinger' requires", hint)
        return cls(rows, settings.features())

    def scores(self, head: Head) -> NDArray[Any]:
        """The scores of all rows, (n, C), in the feature map of the head."""
        phi = self.phi
        if head.fingerprint is not None and head.fingerprint != phi.fingerprint:
            phi = feature_map(head.fingerprint)
        parts = [to_numpy(head.scores(H)) for _, H in phi.blocks(self.rows.X)]
        return np.concatenate(parts) if parts else np.zeros((0, len(head.classes)))

    def counts(self, heads: Iterable[Head], earlier: Collection[Label]) -> list[Counts]:
        """Rows and correct ones per class, for each head."""
        found = []
        for head in heads:
            y = self.rows.y
            found.append(count_correct(self.scores(head), head.classes, y, earlier, set(y)))
        return found

    def witnesses(self, *_: object) -> tuple[str, ...]:
        """Nobody: these rows belong to the server."""
        return ()

    def accuracy(self, head: Head, classes: Collection[Label] = ()) -> float | None:
        """Accuracy on the rows of some classes, by default the head's; None if there are none."""
        (counts,) = self.counts([head], ())
        return accuracy(counts, classes or head.classes)

    def calibration(self, head: Head) -> Calibration | None:
        """The histograms of these rows' scores; None if the head knows none of their classes."""
        found = calibration_of(self.scores(head), head.classes, self.rows.y)
        return found if found.total else None


@dataclass(frozen=True)
class Fall:
    """The accuracy on the classes that a task brought, before and after."""

    task: str
    before: float
    after: float
    sites: tuple[str, ...] = ()
    """Sites that see it on their own validation rows, where these are used."""


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
    not_tried: int = 0
    """New uploads that were not left out, because only so many heads can be tested."""

    @property
    def reason(self) -> str:
        """One sentence for the operator."""
        parts = [
            f"accuracy on the classes of task {f.task} falls from {100 * f.before:.1f} % to "
            f"{100 * f.after:.1f} %" + (f", as {shortened(f.sites, 5)} report" if f.sites else "")
            for f in self.falls[:3]
        ]
        parts += [
            f"without the upload of {b.client} for {b.task} the accuracy over all classes is "
            f"{b.gain:.1f} points higher"
            for b in self.uploads[:3]
        ]
        if not self.uploads:
            which = "one of the largest new uploads" if self.not_tried else "upload"
            parts.append(f"no single {which} explains it")
        if self.not_tried:
            parts.append(_not_tried(self.not_tried))
        return "; ".join(parts)


def _not_tried(count: int) -> str:
    return f"{count} smaller new uploads were not left out, because too many heads would be tested"


def check_head(
    store: Store,
    validation: Validation,
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
    earlier: tuple[Label, ...] = () if previous is None else tuple(previous.classes)
    falls: list[Fall] = []
    suspicious = previous is None
    if previous is None:
        (after,) = validation.counts([new], earlier)
    else:
        before, after = validation.counts([previous, new], earlier)
        groups = _groups(store.database.uploads(), earlier)
        falls = _falls(groups, before, after, margin, fair=True)
        falls = [
            replace(fall, sites=validation.witnesses(previous, new, groups[fall.task]))
            for fall in falls
        ]
        old = accuracy(before, earlier)
        fresh = accuracy(after, (label for label in new.classes if label not in earlier))
        if fresh is not None and old is not None:
            suspicious = fresh < old - margin / 100
        suspicious = bool(suspicious or falls or _falls(groups, before, after, margin, fair=False))
    if not suspicious or accuracy(after, {*earlier, *new.classes}) is None:
        return None
    batches = MOST_BATCHES if falls else 1
    blamed, not_tried = _explain(store, validation, new, uploads, earlier, margin, batches)
    if falls or blamed:
        return Held(tuple(falls), tuple(blamed), not_tried)
    if not_tried:
        log.warning("the new head is not held back, but %s", _not_tried(not_tried))
    return None


def _explain(
    store: Store,
    validation: Validation,
    new: Head,
    uploads: Collection[Upload],
    earlier: tuple[Label, ...],
    margin: float,
    batches: int,
) -> tuple[list[Blame], int]:
    """The uploads without which the new head is better, and how many were not left out.

    They are left out in batches, those with the most rows first, until one batch explains it.
    """
    known, blamed = dict.fromkeys((*earlier, *new.classes)), list[Blame]()
    waiting = sorted(uploads, key=lambda u: -u.rows)
    for _ in range(batches):
        batch = waiting[: validation.most_heads]
        if blamed or not batch:
            break
        # The new head is tested again with the others, because fewer sites may answer this time.
        left_out, (after, *rests) = _leave_out(store, validation, new, batch, earlier)
        rows = sum(after[label].rows for label in known if label in after)
        for upload, rest in zip(left_out, rests, strict=False):
            gain = sum(rest[c].correct - after[c].correct for c in known if c in after)
            if gain >= LEAST_ROWS - 0.5 and 100 * gain / rows > margin:
                blamed.append(Blame(upload.client, upload.task, 100 * gain / rows))
        untested = left_out[len(rests) :]
        waiting = waiting[batch.index(untested[0]) if untested else len(batch) :]
        if untested and not rests:
            break
    return sorted(blamed, key=lambda b: -b.gain), len(waiting)


def _leave_out(
    store: Store,
    validation: Validation,
    new: Head,
    uploads: Collection[Upload],
    earlier: tuple[Label, ...],
) -> tuple[list[Upload], list[Counts]]:
    """Uploads that can be left out, and the counts of the new head and of those without each."""
    left_out: list[Upload] = []

    def heads() -> Iterator[Head]:
        yield new
        for upload in uploads:
            rest = store.solve_without([upload], new)
            if rest is not None:
                left_out.append(upload)
                yield rest

    return left_out, validation.counts(heads(), earlier)


def gains_without(store: Store, validation: ValidationSet) -> dict[str, float]:
    """Client -> points of accuracy that the head gains without its uploads; a liar's is large.

    It takes one solve per client. A class that is then missing counts as wrong.
    """
    full, uploads = store.solve(), dict[str, list[Upload]]()
    total = validation.accuracy(full)
    if total is None:
        raise ValueError("the validation rows have no class of the federation's head")
    for upload in store.database.uploads():
        uploads.setdefault(upload.client, []).append(upload)
    gains = {}
    for client, left_out in uploads.items():
        rest = store.solve_without(left_out, full)
        without = 0.0 if rest is None else validation.accuracy(rest, full.classes) or 0.0
        gains[client] = 100 * (without - total)
    return gains


def _groups(uploads: Iterable[Upload], earlier: Collection[Label]) -> dict[str, list[Label]]:
    """For each task, the classes of the head in service that the task was first to have."""
    first: dict[Label, str] = {}
    for upload in uploads:
        for label, _ in upload.classes:
            first.setdefault(label, upload.task)
    groups: dict[str, list[Label]] = {}
    for label in earlier:
        groups.setdefault(first.get(label, ""), []).append(label)
    return groups


def _falls(
    groups: dict[str, list[Label]], before: Counts, after: Counts, margin: float, *, fair: bool
) -> list[Fall]:
    """The groups on which the accuracy falls by more than the margin, worst first."""
    found = []
    for task, labels in groups.items():
        old, new = accuracy(before, labels), accuracy(after, labels, fair=fair)
        rows = sum(before[label].rows for label in labels if label in before)
        if old is None or new is None:
            continue
        if 100 * (old - new) > margin and (old - new) * rows >= LEAST_ROWS - 0.5:
            found.append(Fall(task, old, new))
    return sorted(found, key=lambda fall: fall.after - fall.before)
