"""Which rows of a task are sent, and with which labels."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.labels import encode_labels, named, similar_labels
from fedran.core.pseudo_labels import margin_labels
from fedran.federation.protocol.messages import Offer
from fedran.federation.site.settings import SiteSettings

log = logging.getLogger(__name__)
MappedRows = Callable[[NDArray[np.int64] | slice], NDArray[Any]]
"""From numbers of rows to what the feature map makes of them: random features or prepared rows."""
WORK_BYTES = 2 * 2**30
"""Memory for rows that the margin rule looks at together, with copies."""


class TooFewRows(Refused):
    """No class has as many rows as may leave the site, so it has nothing to send."""


def require_listed(y: list[Any], offer: Offer, *, local: bool = False) -> None:
    """Refuse labels that the server does not list, and warn about those that look like known ones.

    Unless it is ``local``, the reason goes to the server, so it names no label. The log does.
    """
    classes, _ = encode_labels(y, len(y))
    if text := similar_labels(classes, offer.classes or offer.known_classes):
        log.warning("task %s: %s", offer.task, text)
    unknown = [label for label in classes if offer.classes and label not in offer.classes]
    if unknown:
        log.warning("task %s: unknown labels: %s", offer.task, named(unknown))
        raise Refused(
            "labels",
            f"the {len(offer.classes)} classes that the server lists",
            named(unknown) if local else f"{len(unknown)} others",
            hint="" if local else "the site's log names them",
        )


def least_rows(offer: Offer | None, settings: SiteSettings) -> int:
    """The fewest rows of a class that is sent: what the site demands, or the server if more."""
    return max(settings.min_class_count, offer.min_group if offer else 1)


def choose_rows(
    H: MappedRows, y: list[Any], offer: Offer, settings: SiteSettings
) -> tuple[list[Any], NDArray[np.int64]]:
    """The labels with pseudo-labels, and the labelled rows of classes with enough rows.

    The log counts rows without a label, and names the classes that are withheld.
    """
    task = offer.task
    labels = y if settings.pseudo_labels == "none" else with_pseudo_labels(H, y, task)
    if missing := y.count(None):
        fate = " and are left out"
        if settings.pseudo_labels != "none":
            fate = (
                f"; {missing - labels.count(None):,} of them get a pseudo-label and count as rows "
                'of that class (pseudo_labels = "none" in site.toml leaves them out)'
            )
        log.warning("task %s: %d of %d rows have no label%s", task, missing, len(y), fate)
    classes, codes = encode_labels(labels, len(labels))
    counts, least = Counter(codes[codes >= 0].tolist()), least_rows(offer, settings)
    rare = sorted(code for code, n in counts.items() if n < least)
    if rare:
        shown = ", ".join(f"{classes[code]!r} ({counts[code]})" for code in rare)
        log.warning("task %s: withheld %s, fewer than %d rows each", task, shown, least)
    rows = np.flatnonzero((codes >= 0) & ~np.isin(codes, rare))
    if not len(rows):
        raise TooFewRows("rows", f"a class with at least {least} labelled rows", "none")
    return labels, rows


def with_pseudo_labels(H: MappedRows, y: list[Any], task: str) -> list[Any]:
    """The labels, with pseudo-labels for the rows that the margin rule accepts.

    Where all labelled rows have one class, none is accepted: the others may lack a label because
    they have another one. If there are more rows than fit into ``WORK_BYTES``, the rule learns from
    labelled rows of half that size, evenly spaced, and decides about the others in groups.
    """
    has = np.array([label is not None for label in y], dtype=bool)
    if has.all() or len(encode_labels(y, len(y))[0]) < 2:
        return y
    known, missing, labels = np.flatnonzero(has), np.flatnonzero(~has), list(y)
    capacity = max(2, WORK_BYTES // (24 * H(slice(1)).shape[1]))
    if len(y) > capacity and len(known) > capacity // 2:
        known = known[np.linspace(0, len(known) - 1, capacity // 2).astype(int)]
    size = max(1, capacity - len(known))
    for i in range(0, len(missing), size):
        rows = np.sort(np.concatenate([known, missing[i : i + size]]))
        found = margin_labels(H(rows), [y[i] for i in rows])
        log.info("task %s: %s", task, found.reason)
        for i, label in zip(rows, found.labels, strict=True):
            labels[i] = label
    return labels
