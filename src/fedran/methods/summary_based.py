"""What the methods share whose clients upload a summary and whose server is an aggregator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from fedran.core.arrays import to_device
from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.core.summarize import summarize
from fedran.methods.one_round import HeadMethod
from fedran.methods.protocol import ClientData, Spec
from fedran.wire.aggregator_file import Aggregator, from_bytes, to_bytes
from fedran.wire.codec import decode, encode


@dataclass(frozen=True)
class ServerState:
    """The shared feature map, what was absorbed, and the newest head."""

    phi: RandomFeatures
    aggregator: Aggregator
    head: Head | None = None


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

    def init(self, spec: Spec, seed: int) -> ServerState:
        """The feature map of this seed and an empty aggregator."""
        phi = RandomFeatures(spec.in_features, self.out_features, seed=seed)
        return ServerState(phi, self.new_aggregator(phi))

    def client(
        self,
        cstate: RandomFeatures | None,
        message: bytes,  # noqa: ARG002
        data: ClientData,
        seed: int,
    ) -> tuple[RandomFeatures, bytes]:
        """Map, summarize, encode. The client keeps the feature map, nothing of its data."""
        phi = cstate or RandomFeatures(data.X.shape[1], self.out_features, seed=seed)
        H = phi(to_device(data.X, self.device))
        summary = summarize(H, data.y, self.rank, fingerprint=phi.fingerprint)
        return phi, encode(summary, self.precision, bits=self.bits)

    def aggregate(
        self,
        state: ServerState,
        task: int,
        round_: int,  # noqa: ARG002
        uploads: dict[str, bytes],
    ) -> ServerState:
        """Absorb every upload, then solve."""
        for client, blob in uploads.items():
            state.aggregator.absorb(decode(blob), client=client, task=str(task))
        state.aggregator.close_task()
        return replace(state, head=self.solve(state.aggregator))

    def dump(self, state: ServerState) -> bytes:
        """The aggregator; the head follows from it."""
        return to_bytes(state.aggregator)

    def load(self, blob: bytes, spec: Spec, seed: int) -> ServerState:
        """The aggregator, and its head solved again."""
        aggregator = from_bytes(blob, self.device)
        head = self.solve(aggregator) if aggregator.classes else None
        phi = RandomFeatures(spec.in_features, self.out_features, seed=seed)
        return ServerState(phi, aggregator, head)
