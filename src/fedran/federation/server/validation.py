"""Rows at the server on which every new head is tried."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedran.core._linalg.arrays import require_finite
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.federation.protocol.rows import Rows, read_rows
from fedran.federation.server.settings import ServerSettings


@dataclass(frozen=True)
class Validation:
    """Features (n, d) with labels, and the feature map."""

    rows: Rows
    phi: RandomFeatures

    @classmethod
    def of(cls, settings: ServerSettings, here: Path) -> Validation | None:
        """From the file that the server's configuration names, if it does."""
        if settings.validation is None:
            return None
        rows, width = read_rows(here / settings.validation), settings.in_features
        if rows.is_images or rows.X.shape[1] != width:
            expected = f"features (n, {width}), as `in_features` says"
            raise Refused(settings.validation, expected, f"{rows.X.dtype} {rows.X.shape}")
        require_finite(rows.X, settings.validation)
        return cls(rows, settings.offer("any").features())

    def accuracy(self, head: Head) -> float | None:
        """The share of rows of known classes that the head names rightly; None without any."""
        known = [i for i, label in enumerate(self.rows.y) if label in head.classes]
        if not known:
            return None
        found = head.predict(self.phi(self.rows.X[known]))
        truth = [self.rows.y[i] for i in known]
        return float(np.mean([a == b for a, b in zip(found.tolist(), truth, strict=True)]))
