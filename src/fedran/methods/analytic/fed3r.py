"""Fed3R on the raw features: a Gram with a bias column, lambda 0.01, normalised weights."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.core.head import Head
from fedran.core.ridge import Ridge
from fedran.methods.analytic.base import Positive, unit_columns
from fedran.methods.analytic.feature_maps import FeatureMap, WithBias
from fedran.methods.analytic.gram_based import GramMethod
from fedran.methods.protocol import Claims


@dataclass(frozen=True)
class Fed3R(GramMethod):
    """A = lambda I + sum F'F, b = sum F'Y, W = A^-1 b, each class divided by its norm."""

    lam: Positive = 0.01
    """The ridge parameter."""
    device: str | None = None

    name = "Fed3R"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    sends = "packed (d + 1, d + 1) Gram of the raw features and class sums, float32"
    verified = "partly: equals a dense reference; its published tables use other data"

    def feature_map(self, in_features: int, seed: int) -> FeatureMap:
        """[Z, 1]."""
        return WithBias(in_features)

    def ridge(self) -> Ridge:
        """The constant of the published configuration."""
        return Ridge.absolute(self.lam)

    def finish(self, head: Head) -> Head:
        """The weights of each class, its bias included, divided by their norm."""
        return unit_columns(head)
