"""FedRAN-mixture: clients send group means of raw features, the server lifts them to any width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedran.core.condense import condense
from fedran.core.features import RandomFeatures
from fedran.core.mixture import Mixture
from fedran.settings import at_least
from fedran.wire.codec import encode
from fedran_bench.methods.analytic.base import OptionalKind, OptionalPositive, Width
from fedran_bench.methods.analytic.fedran import AggregatorMethod
from fedran_bench.methods.protocol import Claims, ClientData


@dataclass(frozen=True)
class FedRANMixture(AggregatorMethod):
    """Every client condenses its rows to a mixture, whose size does not depend on M.

    A class with fewer than ``min_group`` rows at a client is withheld there. The server draws rows
    from every mixture, maps them and adds them to its exact sum, so a client never computes
    random features.
    """

    out_features: Width = 8192
    """M, the number of random features at the server."""
    kind: OptionalKind = None
    """Of the random features; none for the kind that the dataset declares."""
    group_size: Width = 6
    """Rows per group, on average."""
    min_group: Width = 5
    """Least rows of a group."""
    directions: Annotated[int, at_least(0)] = 16
    """Directions of the residuals that all groups share."""
    lam: OptionalPositive = None
    """The ridge parameter; none for our rule."""
    device: str | None = None

    message = Mixture
    name = "FedRAN-mixture"
    claims = Claims(order_free=True)
    verified = "partly: equals the library's own calls; near the exact Gram for groups of one row"

    @property
    def sends(self) -> str:
        """Group means and shared directions."""
        return f"means of groups of about {self.group_size} rows, {self.directions} directions"

    def client(
        self, cstate: RandomFeatures | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[RandomFeatures, bytes]:
        """Condense and encode, on the CPU in any case: groups are found there."""
        phi = cstate or self.feature_map(data.X.shape[1], seed)
        sizes = (self.group_size, self.min_group, self.directions)
        return phi, encode(condense(data.X, data.y, phi, *sizes))
