"""The exact Gram at the random features: what STSA, Fed3R and AFL compute, at equal M."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedran.methods.analytic.base import OptionalKind, OptionalPositive, Width
from fedran.methods.analytic.feature_maps import FeatureMap, Projection, Raw
from fedran.methods.analytic.gram_based import GramMethod
from fedran.methods.protocol import Claims


@dataclass(frozen=True)
class Exact(GramMethod):
    """Nothing compressed, our ridge rule; ``features`` and ``lam`` serve the ablations."""

    out_features: Width = 8192
    """M, the number of random features."""
    features: Literal["random", "linear", "raw"] = "random"
    """Random features, Z P without an activation, or Z itself."""
    kind: OptionalKind = None
    """Of the random features; none for the kind that the dataset declares."""
    lam: OptionalPositive = None
    """The ridge parameter; none for our rule."""
    device: str | None = None

    name = "Exact Gram"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "yes: equals the dense joint ridge"

    def feature_map(self, in_features: int, seed: int) -> FeatureMap:
        """Random features, Z P, or Z itself."""
        if self.features == "raw":
            return Raw(in_features)
        if self.features == "linear":
            return Projection(in_features, self.out_features, seed)
        return self.random_features(in_features, seed)
