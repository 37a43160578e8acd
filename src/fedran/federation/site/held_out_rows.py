"""Rows that a site holds out: it counts how many of them a new head labels correctly.

They are a share of the rows of each task (``hold_out``). They never leave the site, only the counts
do. Whoever controls the server chooses the heads, so the counts can reveal something about single
rows. Classes with few rows are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_numpy
from fedran.core.errors import Refused
from fedran.core.fingerprint import require_same
from fedran.core.labels import Label, encode_labels
from fedran.core.points import Points
from fedran.core.solve.calibration import Calibration
from fedran.core.solve.head import Head
from fedran.data.rows import Rows
from fedran.federation.protocol.class_counts import (
    Counts,
    calibration_of,
    count_correct,
    is_right,
)
from fedran.federation.protocol.limits import MAX_HEADS
from fedran.federation.protocol.messages import Offer
from fedran.federation.site.outbox import Outbox
from fedran.wire.codec import decode


def held_out(data: Rows, task: str, share: float) -> NDArray[np.int64]:
    """The rows that are in no upload of points: this share of each class.

    A hash of task, label and values chooses them, so that their order does not matter. Of a class
    it is at least two rows or none.
    """
    classes, codes = encode_labels(data.y, len(data.y))
    found: list[int] = []
    for code, label in enumerate(classes):
        rows = np.flatnonzero(codes == code)
        count, said = int(share * len(rows) + 1e-9), repr((task, label)).encode()

        def order(row: int, said: bytes = said) -> bytes:
            return hashlib.sha256(said + data.X[row].tobytes()).digest()

        if count >= 2:
            found += sorted(rows.tolist(), key=order)[:count]
    return np.array(sorted(found), dtype=np.int64)


def held_points(outbox: Outbox, share: float) -> list[Points]:
    """The rows that were held out of each task, prepared, in groups of one row."""
    return [decode(blob, Points) for blob in outbox.held_out()] if share else []


def count_held_out(
    held: Sequence[Points], offer: Offer, blobs: Mapping[str, bytes], fields: Mapping[str, Any]
) -> tuple[dict[str, Counts], dict[str, Calibration]]:
    """Counts, and histograms of scores, for every head in a message of the server."""
    if not 0 < len(blobs) <= MAX_HEADS:
        raise Refused("heads", f"1 to {MAX_HEADS} heads", len(blobs))
    first = str(fields.get("first"))
    if first not in blobs:
        raise Refused("first", "the digest of a head in the message", first)
    heads = {name: decode(blob, Head) for name, blob in blobs.items()}
    for head in heads.values():
        require_same(offer.fingerprint, head.fingerprint, "site and head")
    fitting = [points for points in held if points.fingerprint == offer.fingerprint]
    if not fitting:
        raise Refused("validation", "validation rows for the features of the offer", "none")
    rows = np.concatenate([points.means for points in fitting])
    y: list[Label] = [points.classes[code] for points in fitting for code in points.codes]
    right, histograms = {}, {}
    for name, head in heads.items():
        found = to_numpy(head.scores(rows))
        right[name] = is_right(found, head.classes, y)
        histograms[name] = calibration_of(found, head.classes, y)
    counts = {name: count_correct(found, right[first], y) for name, found in right.items()}
    return counts, histograms
