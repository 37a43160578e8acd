"""FedRAN with our defaults: exact sum at the server, a ridge with a scale, few bits."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.core.aggregator import Aggregator
from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.core.ridge import Ridge
from fedran.methods.analytic.summary_based import SummaryMethod
from fedran.methods.protocol import Claims


@dataclass(frozen=True)
class FedRAN(SummaryMethod):
    """Truncated summaries in ``mixed`` precision, summed exactly, solved with our ridge rule."""

    out_features: int = 8192
    rank: int = 256
    precision: str = "mixed"
    bits: float = 5.0
    lam: float | None = None
    device: str | None = None

    name = "FedRAN"
    claims = Claims(order_free=True)
    verified = "yes: equals the exact Gram at full rank; bounds of the paper hold"

    @property
    def sends(self) -> str:
        """A truncated factor and class sums."""
        bits = f"{self.bits:g} bits a number" if self.precision == "mixed" else self.precision
        return f"rank-{self.rank} factor and class sums, {bits}"

    def new_aggregator(self, phi: RandomFeatures) -> Aggregator:
        """An exact sum, bound to the feature map."""
        return Aggregator(self.out_features, fingerprint=phi.fingerprint, device=self.device)

    def solve(self, aggregator: Aggregator) -> Head:
        """Our ridge rule (or the given lambda), complement kept."""
        return aggregator.solve(Ridge.parse(self.lam))
