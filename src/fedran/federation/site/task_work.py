"""A site's work for one task: its rows become one signed upload in the outbox."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.labels import Label, encode_labels
from fedran.core.pseudo_labels import margin_labels
from fedran.core.summarize import summarize
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import FeatureSource, Offer, require_source, seal
from fedran.federation.protocol.rows import Rows
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.source import Source
from fedran.wire.codec import encode
from fedran.wire.plan import plan

if TYPE_CHECKING:
    from fedran.backbones.backbone import Backbone

log = logging.getLogger(__name__)
MIN_CLASS_COUNT = 5


@dataclass(frozen=True)
class Site:
    """A client of the federation, with its key, its rows and its outbox."""

    client: str
    federation: str
    key: SiteKey
    source: Source
    outbox: Outbox
    backbone: Callable[[], Backbone] | None = None
    """Loads the site's frozen network; called only when images come."""
    made_by: FeatureSource | None = None
    """What made the site's features; None: whatever the server says."""
    min_class_count: int = MIN_CLASS_COUNT
    """Classes with fewer rows are withheld: their sums would give single rows away. Rows that
    were given a pseudo-label count."""
    pseudo_labels: Literal["margin", "none"] = "margin"

    def prepare(self, offer: Offer) -> bytes:
        """The envelope for a task: from the outbox, or made now and put there first."""
        offer.require(self.federation, self.made_by)
        found = self.outbox.envelope(offer.task)
        if found is not None:
            return found
        phi = offer.features()
        H, y = self._rows(offer, phi)
        classes = {label for label in y if label is not None}
        rank = plan(
            offer.budget_bytes, out_features=phi.out_features, n_classes=max(1, len(classes))
        ).rank
        if rank < 1:
            raise Refused(
                "budget_bytes", f"room for the sums of {len(classes)} classes", offer.budget_bytes
            )
        summary = summarize(
            H, y, rank=min(rank, len(H), phi.out_features), fingerprint=phi.fingerprint
        )
        envelope = seal(
            encode(summary, max_bytes=offer.budget_bytes),
            self.key,
            federation=self.federation,
            client=self.client,
            task=offer.task,
            fingerprint=phi.fingerprint.hash,
        )
        return self.outbox.put(envelope)

    def _rows(self, offer: Offer, phi: RandomFeatures) -> tuple[NDArray[Any], list[Label]]:
        """Random features and labels of the rows that go into the summary."""
        task = offer.task
        data = self.source(task)
        H = phi(self._features(data, offer))
        y = data.y
        if self.pseudo_labels == "margin" and None in y and any(v is not None for v in y):
            found = margin_labels(H, y)
            log.info("task %s: %s", task, found.reason)
            y = list(found.labels)
        kept, withheld = enough(y, self.min_class_count)
        if withheld:
            log.warning(
                "task %s: withheld %s, fewer than %d rows each",
                task,
                ", ".join(f"{c!r} ({n})" for c, n in withheld.items()),
                self.min_class_count,
            )
        if not len(kept):
            raise Refused(
                "rows", f"a class with at least {self.min_class_count} labelled rows", "none"
            )
        return H[kept], [y[int(i)] for i in kept]

    def _features(self, data: Rows, offer: Offer) -> NDArray[Any]:
        if not data.is_images:
            return data.X
        if self.backbone is None:
            raise Refused("rows", "features, as this site has no backbone", "images")
        network = self.backbone()
        require_source(network.source, offer.source)
        return extract(network, data.X)


def extract(network: Backbone, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Features (n, d) of images (n, height, width, 3), a batch of them at a time."""
    features = np.empty((len(images), network.out_features), np.float32)
    for start in range(0, len(images), network.batch_size):
        rows = slice(start, start + network.batch_size)
        features[rows] = network(np.stack([network.preprocess(image) for image in images[rows]]))
    return features


def enough(y: list[Any], least: int) -> tuple[NDArray[np.int64], dict[Label, int]]:
    """The labelled rows of classes that have at least so many, and the others with their counts.

    >>> rows, withheld = enough(["a", "a", "b", None], 2)
    >>> rows.tolist(), withheld
    ([0, 1], {'b': 1})
    """
    classes, codes = encode_labels(y, len(y))
    counts = Counter(codes[codes >= 0].tolist())
    few = [c for c, n in counts.items() if n < least]
    rows = np.flatnonzero((codes >= 0) & ~np.isin(codes, few))
    return rows, {classes[c]: counts[c] for c in sorted(few)}
