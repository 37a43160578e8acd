"""Validation rows at the server, on which every new head is tested."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import require_finite, to_numpy
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.prepare import KernelFeatures, require_nonnegative
from fedran.core.solve.calibration import Calibration
from fedran.core.solve.head import Head
from fedran.core.sums.stored_points import Part
from fedran.data.rows import Rows, read_rows
from fedran.federation.protocol.class_counts import calibration_of, is_right, positions
from fedran.federation.server.settings import ServerSettings


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

    def _scores(self, head: Head) -> NDArray[Any]:
        """The scores of all rows, (n, C)."""
        blocks = self.phi.blocks(self.rows.X)
        parts: list[NDArray[Any]] = [to_numpy(head.scores(H)) for _, H in blocks]
        return np.concatenate(parts) if parts else np.zeros((0, len(head.classes)))

    def compare(self, heads: Iterable[tuple[Part | None, Head]]) -> dict[Part, tuple[float, float]]:
        """Rows that are right only without each part, and only with it."""
        y = self.rows.y
        right = {part: is_right(self._scores(head), head.classes, y) for part, head in heads}
        every = right.pop(None, np.zeros(0, dtype=bool))
        return {
            part: (float((found & ~every).sum()), float((every & ~found).sum()))
            for part, found in right.items()
            if part is not None
        }

    def test(self, head: Head) -> tuple[float | None, Calibration | None]:
        """Accuracy on the rows of the head's classes, and the histograms of their scores."""
        scores, y = self._scores(head), self.rows.y
        known = positions(y, head.classes) >= 0
        if not known.any():
            return None, None
        right = is_right(scores, head.classes, y)[known]
        return float(right.mean()), calibration_of(scores, head.classes, y)
