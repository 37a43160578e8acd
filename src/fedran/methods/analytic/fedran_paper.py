"""FedRAN as the paper prints it: rank-bounded merges, lambda = 1e-3, subspace-only head."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.core.aggregator import Aggregator
from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.core.ridge import Ridge
from fedran.methods.analytic.base import Positive, Width
from fedran.methods.analytic.fedran import Bits, SummaryMethod
from fedran.methods.protocol import Claims
from fedran.wire.summary_codec import Precision


@dataclass(frozen=True)
class FedRANPaper(SummaryMethod):
    """Algorithm 1 exactly; uploads in float32 (the paper counts 8 bytes per number)."""

    out_features: Width = 8192
    """M, the number of random features."""
    rank: Width = 2048
    """Columns of the factor that a client sends and that the server keeps."""
    lam: Positive = 1e-3
    """The ridge parameter."""
    precision: Precision = "float32"
    """Of the factor on the wire."""
    bits: Bits = 5.0
    """Bits per value, on average, with mixed precision."""
    device: str | None = None

    name = "FedRAN-paper"
    kind = "relu"
    center = None
    claims = Claims()
    verified = "partly: algorithm and bounds tested; the paper's backbone and weights are not here"

    @property
    def sends(self) -> str:
        """A truncated factor and class sums."""
        return f"rank-{self.rank} factor and class sums, {self.precision}"

    def new_aggregator(self, phi: RandomFeatures) -> Aggregator:
        """QR-SVD merges, client after client."""
        return Aggregator(
            self.out_features,
            self.rank,
            order="paper",
            fingerprint=phi.fingerprint,
            device=self.device,
        )

    def solve(self, aggregator: Aggregator) -> Head:
        """W = V (diag(sigma^2) + lambda I)^-1 V'B."""
        return aggregator.solve(Ridge.absolute(self.lam), complement="drop")
