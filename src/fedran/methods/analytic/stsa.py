"""STSA in its exact form: the Gram of random features, ridge 1e6, cosine scores."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.core.head import Head
from fedran.methods.analytic.base import Positive, Width, unit_columns
from fedran.methods.analytic.gram_based import GramMethod, GramServer, GramState
from fedran.methods.protocol import Claims


@dataclass(frozen=True)
class StsaServer(GramServer):
    """The server of both forms of STSA: a constant ridge, cosine scores."""

    out_features: Width = 5000
    """M, the number of random features."""
    lam: Positive = 1e6
    """The ridge parameter."""
    device: str | None = None

    kind = "relu"  # relu(Z P) with P ~ N(0, 1), unscaled

    def solve(self, state: GramState) -> Head:
        """Its scores are cosines: class weights are normalised (rows of H need not be)."""
        return unit_columns(super().solve(state))


@dataclass(frozen=True)
class STSA(StsaServer, GramMethod):
    """As in the published code, without its training of the backbone on the first task."""

    name = "STSA"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "partly: equals a dense reference; backbone training on task 0 left out"
