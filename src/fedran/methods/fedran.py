"""FedRAN with our defaults: exact sum at the server, a ridge with a scale, few bits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.methods.protocol import Claims
from fedran.methods.summary_based import SummaryMethod
from fedran.wire.aggregator_file import Aggregator


@dataclass(frozen=True)
class FedRAN(SummaryMethod):
    """Truncated summaries in ``mixed`` precision, summed exactly, solved with the default ridge."""

    out_features: int = 8192
    rank: int = 256
    precision: str = "mixed"
    bits: float = 5.0
    device: str | None = None

    name = "FedRAN"
    claims = Claims(order_free=True)
    sends = "rank-r factor and class sums, 5 bits a number"

    def params(self) -> dict[str, Any]:
        """The dataclass fields, but for where it runs."""
        return {k: v for k, v in asdict(self).items() if k != "device"}

    def new_aggregator(self, phi: RandomFeatures) -> Aggregator:
        """An exact sum, bound to the feature map."""
        return Aggregator(self.out_features, fingerprint=phi.fingerprint, device=self.device)

    def solve(self, aggregator: Aggregator) -> Head:
        """The default ridge rule, complement kept."""
        return aggregator.solve()
