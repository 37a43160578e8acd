"""The server's own rows with labels, on which every new head is tested."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import require_finite, to_numpy
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures, require_nonnegative
from fedran.core.head import Head
from fedran.core.labels import Label
from fedran.data.rows import Rows, read_rows
from fedran.federation.protocol.class_counts import Counts, accuracy, count_correct
from fedran.federation.server.settings import ServerSettings


@dataclass(frozen=True)
class ValidationSet:
    """Features (n, d) with labels at the server, and the feature map."""

    rows: Rows
    phi: RandomFeatures
    most_heads = 50

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

    def scores(self, head: Head) -> NDArray[Any]:
        """The scores of all rows, (n, C), in the feature map of the head."""
        phi = self.phi
        if head.fingerprint is not None and head.fingerprint != phi.fingerprint:
            phi = RandomFeatures.from_fingerprint(head.fingerprint)
        parts = [to_numpy(head.scores(H)) for _, H in phi.blocks(self.rows.X)]
        return np.concatenate(parts) if parts else np.zeros((0, len(head.classes)))

    def counts(self, heads: Iterable[Head], earlier: Collection[Label]) -> list[Counts]:
        """Rows and correct ones per class, for each head."""
        y, tested = self.rows.y, set(self.rows.y)
        return [count_correct(self.scores(h), h.classes, y, earlier, tested) for h in heads]

    def witnesses(self, *_: object) -> tuple[str, ...]:
        """Nobody: these rows belong to the server."""
        return ()

    def accuracy(self, head: Head, classes: Collection[Label] = ()) -> float | None:
        """Accuracy on the rows of some classes, by default the head's; None if there are none."""
        (counts,) = self.counts([head], ())
        return accuracy(counts, classes or head.classes)
