"""Methods whose server is an aggregator: FedRAN in all its forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fedran.core.aggregator import Aggregator
from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.core.mixture import Mixture
from fedran.core.ridge import Ridge
from fedran.core.summary import Summary
from fedran.methods.analytic.base import HeadMethod, OptionalPositive
from fedran.methods.protocol import Spec
from fedran.wire.codec import decode, encode


@dataclass(frozen=True)
class ServerState:
    """The shared feature map, what was absorbed, and the newest head."""

    spec: Spec
    phi: RandomFeatures
    aggregator: Aggregator
    head: Head | None = None


class AggregatorMethod(HeadMethod):
    """The server absorbs one message per client and task, and solves. One round per task.

    By default it adds exactly and solves with our ridge rule, or with a given lambda.
    """

    message: type[Summary] | type[Mixture] = Summary
    """What clients send."""
    lam: OptionalPositive

    def new_aggregator(self, phi: RandomFeatures) -> Aggregator:
        """The server's empty state, bound to the feature map."""
        return Aggregator(phi.out_features, fingerprint=phi.fingerprint, device=self.device)

    def solve(self, aggregator: Aggregator) -> Head:
        """The head after a task."""
        return aggregator.solve(None if self.lam is None else Ridge.absolute(self.lam))

    def feature_map(self, in_features: int, seed: int) -> RandomFeatures:
        """The map that all clients share."""
        return self.random_features(in_features, seed)

    def init(self, spec: Spec, seed: int) -> ServerState:
        """The feature map of this seed and an empty aggregator."""
        phi = self.feature_map(spec.in_features, seed)
        return ServerState(spec, phi, self.new_aggregator(phi))

    def aggregate(
        self, state: ServerState, task: int, round_: int, uploads: dict[str, bytes]
    ) -> ServerState:
        """Decode and check every upload, then absorb all, then solve."""
        messages = {client: decode(blob, self.message) for client, blob in uploads.items()}
        for client, message in messages.items():
            state.aggregator.check(message, client=client, task=str(task))
        for client, message in messages.items():
            state.aggregator.absorb(message, client=client, task=str(task))
        state.aggregator.close_task()
        return self.solved(state)

    def solved(self, state: ServerState) -> ServerState:
        """The state with its head; without one before any class was seen."""
        head = self.solve(state.aggregator) if state.aggregator.classes else None
        return replace(state, head=head)

    def gram(self, state: ServerState) -> tuple[Callable[[Any], Any], Any]:
        """What the aggregator's messages add up to."""
        return state.phi, state.aggregator.gram()

    def dump(self, state: ServerState) -> bytes:
        """The aggregator; the head follows from it."""
        return encode(state.aggregator)

    def load(self, blob: bytes, spec: Spec, seed: int) -> ServerState:
        """The aggregator, and its head solved again."""
        aggregator = decode(blob, Aggregator, device=self.device)
        phi = self.feature_map(spec.in_features, seed)
        return self.solved(ServerState(spec, phi, aggregator))
