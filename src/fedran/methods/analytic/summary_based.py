"""What the methods share whose clients upload a summary and whose server is an aggregator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fedran.core._linalg.arrays import Array, to_device
from fedran.core.aggregator import Aggregator
from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.core.pseudo_labels import PseudoLabels
from fedran.core.summarize import summarize
from fedran.core.summary import Summary
from fedran.methods.analytic.one_round import HeadMethod
from fedran.methods.protocol import ClientData, Spec
from fedran.wire.codec import decode, encode


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
    """One round a task: phi, summarize, encode at the client; absorb, solve at the server."""

    out_features: int
    rank: int
    precision: str
    bits: float

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
        phi = RandomFeatures(spec.in_features, self.out_features, seed=seed)
        return ServerState(phi, self.new_aggregator(phi))

    def client(
        self,
        cstate: ClientState | None,
        message: bytes,
        data: ClientData,
        seed: int,
    ) -> tuple[ClientState, bytes]:
        """Map, label, summarize, encode. The client keeps the feature map, nothing of its data."""
        phi = cstate.phi if cstate else RandomFeatures(data.X.shape[1], self.out_features, seed)
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
        phi = RandomFeatures(spec.in_features, self.out_features, seed=seed)
        return ServerState(phi, aggregator, head)
