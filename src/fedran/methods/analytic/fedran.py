"""FedRAN with our defaults and its variants, and what all methods share that send a summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from fedran.core._linalg.arrays import Array, to_device
from fedran.core.features import RandomFeatures
from fedran.core.pseudo_labels import PseudoLabels, margin_labels, prototype_labels
from fedran.core.summarize import summarize
from fedran.core.summary import Center
from fedran.methods.analytic.aggregator_based import AggregatorMethod
from fedran.methods.analytic.base import OptionalKind, OptionalPositive, Width
from fedran.methods.protocol import Claims, ClientData
from fedran.settings import at_least, between
from fedran.wire.codec import encode
from fedran.wire.quantisation import MAX_BITS, MIN_BITS
from fedran.wire.summary_codec import Precision

Bits = Annotated[float, between(MIN_BITS, MAX_BITS)]


@dataclass(frozen=True)
class ClientState:
    """The shared feature map, and what the rule for missing labels did in the last task."""

    phi: RandomFeatures
    pseudo: PseudoLabels | None = None


class SummaryMethod(AggregatorMethod):
    """Clients map, summarize and encode."""

    rank: int
    precision: Precision
    bits: float
    center: ClassVar[Center | None] = "class"

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels | None:
        """Labels for rows without one; None: such rows are left out."""

    def formula(self, in_features: int, n_classes: int) -> int:
        """(M r + r + M C) x 8 bytes, as the FedRAN paper counts."""
        M, r = self.out_features, self.rank
        return 8 * (M * r + r + M * n_classes)

    def client(
        self, cstate: ClientState | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[ClientState, bytes]:
        """Map, label, summarize, encode. The client keeps the feature map, nothing of its data."""
        phi = cstate.phi if cstate else self.feature_map(data.X.shape[1], seed)
        Z = to_device(data.X, self.device)
        H = phi(Z)
        pseudo = self.pseudo_labels(Z, H, data.y)
        y = data.y if pseudo is None else pseudo.labels
        summary = summarize(H, y, self.rank, center=self.center, fingerprint=phi.fingerprint)
        return ClientState(phi, pseudo), encode(summary, self.precision, bits=self.bits)


@dataclass(frozen=True)
class FedRAN(SummaryMethod):
    """Truncated summaries in ``mixed`` precision, summed exactly, solved with our ridge rule."""

    out_features: Width = 8192
    """M, the number of random features."""
    kind: OptionalKind = None
    """Of the random features; none for the kind that the dataset declares."""
    rank: Width = 256
    """Columns of the factor that a client sends."""
    precision: Precision = "mixed"
    """Of the factor on the wire."""
    bits: Bits = 5.0
    """Bits per value, on average, with mixed precision."""
    lam: OptionalPositive = None
    """The ridge parameter; none for our rule."""
    device: str | None = None

    name = "FedRAN"
    claims = Claims(order_free=True)
    verified = "yes: equals the exact Gram at full rank; bounds of the paper hold"

    @property
    def sends(self) -> str:
        """A truncated factor and class sums."""
        bits = f"{self.bits:g} bits per value" if self.precision == "mixed" else self.precision
        form = "class-centred" if self.center else "uncentred"
        return f"{form} rank-{self.rank} factor and class sums, {bits}"


@dataclass(frozen=True)
class FedRANUncentred(FedRAN):
    """FedRAN whose factor describes the rows themselves, as in the paper."""

    name = "FedRAN-uncentred"
    center = None


@dataclass(frozen=True)
class FedRANPrototype(FedRAN):
    """Nearest class mean of the client's own labelled rows, by cosine, at least ``tau``."""

    tau: Annotated[float, between(-1, 1)] = 0.5
    """Least cosine with the class mean."""

    name = "FedRAN-SSL (prototypes)"
    verified = "yes: the rule equals a row-by-row reference"

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels:
        """The paper's rule on the backbone's features."""
        return prototype_labels(Z, y, self.tau)


@dataclass(frozen=True)
class FedRANMargin(FedRAN):
    """A ridge on the client's own labelled rows, accepted where it leads by ``margin``."""

    margin: Annotated[float, at_least(0)] = 0.1
    """How far the best score must lead the second."""
    refit: bool = True
    """Fit once more with the accepted rows, and decide again."""

    name = "FedRAN-SSL (margin)"
    verified = "yes: the rule equals a dense ridge"

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels:
        """Our rule on the random features."""
        return margin_labels(H, y, self.margin, self.refit)
