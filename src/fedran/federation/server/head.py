"""The newest head: solved from the store, tested on the server's validation rows, and written."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedran.core._linalg.arrays import require_finite
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures, require_nonnegative
from fedran.core.head import Head
from fedran.federation.protocol.rows import Rows, read_rows
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store import Store
from fedran.wire.codec import encode
from fedran.wire.files import write_atomically

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ValidationSet:
    """Features (n, d) with labels at the server, and the feature map."""

    rows: Rows
    phi: RandomFeatures

    @classmethod
    def load(cls, settings: ServerSettings, folder: Path) -> ValidationSet | None:
        """The rows in the file that the settings name; None if they name none."""
        if settings.validation is None:
            return None
        rows, width = read_rows(folder / settings.validation), settings.in_features
        if rows.is_images or rows.X.shape[1] != width:
            expected = f"features (n, {width}), as `in_features` says"
            raise Refused(settings.validation, expected, f"{rows.X.dtype} {rows.X.shape}")
        require_finite(rows.X, settings.validation)
        if settings.kind == "hellinger":  # refused now rather than when the first head is tested
            hint = "set kind = 'cosine' for features of any sign"
            require_nonnegative(rows.X, settings.validation, "as kind 'hellinger' requires", hint)
        return cls(rows, settings.features())

    def accuracy(self, head: Head) -> float | None:
        """Accuracy on the rows whose class the head knows; None if there are none."""
        known = [i for i, label in enumerate(self.rows.y) if label in head.classes]
        if not known:
            return None
        found = head.predict(self.phi(self.rows.X[known]))
        truth = [self.rows.y[i] for i in known]
        return float(np.mean([a == b for a, b in zip(found.tolist(), truth, strict=True)]))


def update_head(store: Store, validation: ValidationSet | None, task: str) -> tuple[bytes, str]:
    """Solve and encode the head over everything in the store; its bytes and their SHA-256.

    A head that differs from the last one is tested, written to ``head.fedran`` and recorded in
    the database. Before the first upload, bytes and digest are empty.
    """
    if not store.aggregator.absorbed:
        return b"", ""
    start = time.monotonic()
    head = store.solve()
    seconds = time.monotonic() - start
    blob = encode(head)
    digest = hashlib.sha256(blob).hexdigest()
    path = store.folder / "head.fedran"
    if not path.is_file() or path.read_bytes() != blob:
        with store.tolerating_a_full_disk(path.name):
            write_atomically(path, blob)
        accuracy = validation.accuracy(head) if validation else None
        shown = "" if accuracy is None else f", accuracy {100 * accuracy:.2f} %"
        log.info("new head: %d classes%s", len(head.classes), shown)
        with store.tolerating_a_full_disk("record of the head"):
            store.database.add_head(
                digest,
                task=task,
                classes=len(head.classes),
                size=len(blob),
                accuracy=accuracy,
                seconds=round(seconds, 3),
            )
    return blob, digest
