"""FedRAN as the paper prints it: rank-bounded merges, lambda = 1e-3, subspace-only head."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.core.aggregator import Aggregator
from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.core.ridge import Ridge
from fedran.methods.analytic.summary_based import SummaryMethod
from fedran.methods.protocol import Claims


@dataclass(frozen=True)
class FedRANPaper(SummaryMethod):
    """Algorithm 1 to the letter; uploads in float32 (the paper counts 8 bytes a number)."""

    out_features: int = 8192
    rank: int = 2048
    lam: float = 1e-3
    precision: str = "float32"
    bits: float = 5.0
    device: str | None = None

    name = "FedRAN-paper"
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
