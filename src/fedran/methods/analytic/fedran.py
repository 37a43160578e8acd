"""FedRAN with our defaults, and what all methods share whose clients upload a summary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fedran.core._linalg.arrays import Array, to_device
from fedran.core.aggregator import Aggregator
from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.core.pseudo_labels import PseudoLabels
from fedran.core.ridge import Ridge
from fedran.core.summarize import summarize
from fedran.core.summary import Summary
from fedran.methods.analytic.base import (
    HeadMethod,
    OptionalKind,
    OptionalPositive,
    Width,
    random_features,
)
from fedran.methods.protocol import Claims, ClientData, Spec
from fedran.settings import between
from fedran.wire.codec import decode, encode
from fedran.wire.quantisation import MAX_BITS, MIN_BITS
from fedran.wire.summary_codec import Precision

Bits = Annotated[float, between(MIN_BITS, MAX_BITS)]


@dataclass(frozen=True)
class ServerState:
    """The shared feature map, what was absorbed, and the newest head."""

    phi: RandomFeatures
    aggregator: Aggregator
    head: Head | None = None


@dataclass(frozen=True)
class ClientState:
    """The shared feature map, and what the rule for missing labels did in the last task."""

    phi: RandomFeatures
    pseudo: PseudoLabels | None = None


class SummaryMethod(HeadMethod, ABC):
    """Clients map, summarize and encode; the server absorbs and solves. One round per task."""

    out_features: int
    kind: OptionalKind
    rank: int
    precision: Precision
    bits: float

    def feature_map(self, in_features: int, seed: int) -> RandomFeatures:
        """The map that every client applies to the features."""
        return random_features(in_features, self.out_features, self.kind, seed)

    @abstractmethod
    def new_aggregator(self, phi: RandomFeatures) -> Aggregator:
        """The server's empty state."""

    @abstractmethod
    def solve(self, aggregator: Aggregator) -> Head:
        """The head after a task."""

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels | None:
        """Labels for rows without one; None: such rows are left out."""

    def formula(self, in_features: int, n_classes: int) -> int:
        """(M r + r + M C) x 8 bytes, as the FedRAN paper counts."""
        M, r = self.out_features, self.rank
        return 8 * (M * r + r + M * n_classes)

    def init(self, spec: Spec, seed: int) -> ServerState:
        """The feature map of this seed and an empty aggregator."""
        phi = self.feature_map(spec.in_features, seed)
        return ServerState(phi, self.new_aggregator(phi))

    def client(
        self,
        cstate: ClientState | None,
        message: bytes,
        data: ClientData,
        seed: int,
    ) -> tuple[ClientState, bytes]:
        """Map, label, summarize, encode. The client keeps the feature map, nothing of its data."""
        phi = cstate.phi if cstate else self.feature_map(data.X.shape[1], seed)
        Z = to_device(data.X, self.device)
        H = phi(Z)
        pseudo = self.pseudo_labels(Z, H, data.y)
        y = data.y if pseudo is None else pseudo.labels
        summary = summarize(H, y, self.rank, fingerprint=phi.fingerprint)
        return ClientState(phi, pseudo), encode(summary, self.precision, bits=self.bits)

    def aggregate(
        self,
        state: ServerState,
        task: int,
        round_: int,
        uploads: dict[str, bytes],
    ) -> ServerState:
        """Decode and check every upload, then absorb all, then solve."""
        summaries = {client: decode(blob, Summary) for client, blob in uploads.items()}
        for client, summary in summaries.items():
            state.aggregator.check(summary, client=client, task=str(task))
        for client, summary in summaries.items():
            state.aggregator.absorb(summary, client=client, task=str(task))
        state.aggregator.close_task()
        head = self.solve(state.aggregator) if state.aggregator.classes else None
        return replace(state, head=head)

    def gram(self, state: ServerState) -> tuple[Callable[[Any], Any], Any]:
        """What the aggregator's factors add up to."""
        return state.phi, state.aggregator.gram()

    def dump(self, state: ServerState) -> bytes:
        """The aggregator; the head follows from it."""
        return encode(state.aggregator)

    def load(self, blob: bytes, spec: Spec, seed: int) -> ServerState:
        """The aggregator, and its head solved again."""
        aggregator = decode(blob, Aggregator, device=self.device)
        head = self.solve(aggregator) if aggregator.classes else None
        phi = self.feature_map(spec.in_features, seed)
        return ServerState(phi, aggregator, head)


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
        return f"rank-{self.rank} factor and class sums, {bits}"

    def new_aggregator(self, phi: RandomFeatures) -> Aggregator:
        """An exact sum, bound to the feature map."""
        return Aggregator(self.out_features, fingerprint=phi.fingerprint, device=self.device)

    def solve(self, aggregator: Aggregator) -> Head:
        """Our ridge rule (or the given lambda), complement kept."""
        return aggregator.solve(Ridge.parse(self.lam))
