"""Fed3R on the raw features: a Gram with a bias column, lambda 0.01, normalised weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedran.core._linalg.arrays import namespace
from fedran.core.head import Head
from fedran.methods.analytic.base import Positive
from fedran.methods.analytic.feature_maps import FeatureMap, WithBias
from fedran.methods.analytic.gram_based import GramMethod, GramState
from fedran.methods.protocol import Claims

SMALLEST_NORM = 1e-6
"""Divides a class whose weights are all zero, as in the published code."""


@dataclass(frozen=True)
class Fed3R(GramMethod):
    """A = lambda I + sum F'F, b = sum F'Y, W = A^-1 b, F with a column of ones.

    The weights and the bias of each class are divided by the norm of its weights alone.
    """

    lam: Positive = 0.01
    """The ridge parameter."""
    device: str | None = None

    name = "Fed3R"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    sends = "packed (d + 1, d + 1) Gram of the raw features and class sums, float32"
    verified = "yes: equals a dense reference and the weights of the published code"

    def feature_map(self, in_features: int, seed: int) -> FeatureMap:
        """[Z, 1]."""
        return WithBias(in_features)

    def solve(self, state: GramState) -> Head:
        """Weights and bias of each class divided by the norm of its weights without the bias."""
        head = super().solve(state)
        W = head.weights
        xp = namespace(W)
        norms = xp.linalg.vector_norm(W[:-1, :], axis=0, keepdims=True)
        return replace(head, weights=W / xp.where(norms > 0, norms, SMALLEST_NORM))
