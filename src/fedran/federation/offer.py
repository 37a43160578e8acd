"""What the server asks of a site for one task; it names sizes, never data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedran.core.aggregator import check_id
from fedran.core.features import RandomFeatures
from fedran.wire.header import Header

LARGEST_BUDGET = 2**31
LARGEST_WIDTH = 2**17


@dataclass(frozen=True)
class Offer:
    """A task, the feature map that everyone shares, and how large an upload may be."""

    federation: str
    task: str
    in_features: int
    out_features: int
    seed: int
    source: str
    """What made the features: backbone, weights, preprocessing; part of the fingerprint."""
    budget_bytes: int

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Offer:
        """From a message: every field is checked."""
        header = Header(dict(fields))
        return cls(
            check_id(header.text("federation", 64), "federation"),
            check_id(header.text("task", 64), "task"),
            header.integer("in_features", 1, LARGEST_WIDTH),
            header.integer("out_features", 1, LARGEST_WIDTH),
            header.integer("seed", 0, 2**32 - 1),
            header.text("source", 1024),
            header.integer("budget_bytes", 1024, LARGEST_BUDGET),
        )

    def fields(self) -> dict[str, Any]:
        """As plain values, for a message."""
        return asdict(self)

    def features(self) -> RandomFeatures:
        """The feature map."""
        return RandomFeatures(self.in_features, self.out_features, self.seed, source=self.source)
