"""Rows that a site holds out: it counts how many of them a new head labels correctly.

They are those of the file that ``validation`` in ``site.toml`` names, or a share of the rows of
each task (``hold_out``). They never leave the site, only the counts do. Whoever controls the server
chooses the heads, so the counts can reveal something about single rows. Classes with few rows are
left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedran.core._linalg.arrays import require_finite, to_numpy
from fedran.core.errors import Refused
from fedran.core.fingerprint import require_same
from fedran.core.labels import Label, canonical
from fedran.core.points import Points
from fedran.core.solve.calibration import Calibration
from fedran.core.solve.head import Head
from fedran.data.rows import Rows, read_rows
from fedran.federation.protocol.class_counts import Counts, calibration_of, count_correct
from fedran.federation.protocol.limits import MAX_HEADS
from fedran.federation.protocol.messages import Offer, read_labels
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import NAME_LABEL, SiteSettings
from fedran.federation.site.upload import Site
from fedran.wire.codec import decode
from fedran.wire.validation import Header


@dataclass(frozen=True)
class HeldOutRows:
    """The labelled validation rows of a site, of classes with enough rows."""

    rows: Rows | None
    """Those of the file that the settings name; None if they name none."""
    points: tuple[Points, ...] = ()
    """Otherwise those of each task, prepared, in groups of one row."""

    @classmethod
    def load(cls, folder: Path, settings: SiteSettings, outbox: Outbox) -> HeldOutRows | None:
        """The rows of this site; None without any."""
        if settings.validation is None:
            points = tuple(decode(blob, Points) for blob in outbox.held_out())
            return cls(None, points) if points and settings.hold_out else None
        found = read_rows(folder / settings.validation, settings.label_column, NAME_LABEL)
        labels = [None if label is None else canonical(label) for label in found.y]
        enough = {c for c, n in Counter(labels).items() if n >= settings.min_class_count} - {None}
        kept = [i for i, label in enumerate(labels) if label in enough]
        return cls(Rows(found.X[kept], [labels[i] for i in kept], found.columns))

    @property
    def classes(self) -> list[Label]:
        """The classes with validation rows."""
        held = [] if self.rows is None else self.rows.y
        return list(dict.fromkeys([*held, *(c for points in self.points for c in points.classes)]))

    def test(
        self, site: Site, offer: Offer, blobs: Mapping[str, bytes], fields: Mapping[str, Any]
    ) -> tuple[dict[str, Counts], dict[str, Calibration]]:
        """Counts, and histograms of scores, for every head in a message of the server."""
        if not 0 < len(blobs) <= MAX_HEADS:
            raise Refused("heads", f"1 to {MAX_HEADS} heads", len(blobs))
        earlier, tested = (read_labels(Header(dict(fields)), k) for k in ("earlier", "tested"))
        heads = {name: decode(blob, Head) for name, blob in blobs.items()}
        for head in heads.values():
            require_same(offer.fingerprint, head.fingerprint, "site and head")
        scores: dict[str, list[Any]] = {name: [] for name in heads}
        y: list[Label] = []
        for H, labels in self._mapped(site, offer):
            y += labels
            for name, head in heads.items():
                scores[name].append(to_numpy(head.scores(H)))
        if not y:
            raise Refused("validation", "validation rows for the features of the offer", "none")
        counts, histograms = {}, {}
        for name, head in heads.items():
            found = np.concatenate(scores[name])
            counts[name] = count_correct(found, head.classes, y, earlier, tested)
            histograms[name] = calibration_of(found, head.classes, y)
        return counts, histograms

    def _mapped(self, site: Site, offer: Offer) -> Iterator[tuple[Any, list[Label]]]:
        """What the feature map makes of the rows, with their labels, one block after the other."""
        for points in self.points:
            if points.fingerprint == offer.fingerprint:
                yield points.means, [points.classes[code] for code in points.codes]
        if self.rows is not None:
            rows = self.rows.in_order(offer.columns, "validation")
            Z = site.extractor(rows, offer)(rows.X)
            require_finite(Z, "validation rows")
            for part, H in offer.features().blocks(Z):
                yield H, rows.y[part]
