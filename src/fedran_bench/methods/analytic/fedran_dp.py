"""FedRAN-dp: the sum over all clients is differentially private for every row."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.labels import ordered
from fedran.core.private.dp import Budget, Mechanism, levels_for
from fedran.core.private.noisy_sums import RIDGE, mean_row, noisy_ridge
from fedran.core.solve.head import Head
from fedran.core.sums.aggregator import Aggregator
from fedran.settings import at_least
from fedran_bench.methods.analytic.base import OptionalKind, Positive, Width
from fedran_bench.methods.analytic.fedran import ServerState
from fedran_bench.methods.analytic.fedran_secure import IntegerSums, Parts
from fedran_bench.methods.protocol import Claims, ClientData, Uploads


@dataclass(frozen=True)
class FedRANDP(IntegerSums):
    """Every client adds its share of the noise to integer sums of its rows of unit norm.

    Their sum is (epsilon, delta) differentially private for every row. A row belongs to one task.
    The noise is drawn from a seeded generator, so that a run can be repeated; a federation uses the
    operating system's.
    """

    epsilon: Positive = 3.0
    delta: Positive = 1e-5
    honest: Annotated[int | None, at_least(1)] = None
    """Clients whose noise counts: with fewer than all, the rest may collude with the server or
    drop out. None for all clients."""
    kind: OptionalKind = None
    """How rows are normalised; none for the kind that the dataset declares."""
    most_rows: Width = 16384
    """The most rows of one task at all clients together. It fixes the resolution of the integers.
    """

    name = "FedRAN-dp"
    claims = Claims(order_free=True)
    verified = "yes: equals the library's own calls; the noise is audited in the tests"

    @property
    def sends(self) -> str:
        """Noisy sums."""
        return "packed (d, d) Gram, class sums and counts, with noise: a sum in 32-bit integers"

    def feature_map(self, in_features: int, seed: int) -> RandomFeatures:
        """Rows of unit norm, without random features."""
        kind = self.kind or "cosine"
        return RandomFeatures(in_features, in_features, kind, source=self.source, projected=False)

    def solve(self, aggregator: Aggregator) -> Head:
        """With a ridge in proportion to the noise."""
        accounts, width = aggregator.accounts, aggregator.out_features
        return aggregator.solve(noisy_ridge(accounts, width, RIDGE))

    def offer(self, state: ServerState, task: int) -> Parts:
        """The mean row that was released so far."""
        center = self._center(state)
        return {}, {} if center is None else {"center": center}

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """The sums of the labelled rows, and this client's share of the noise."""
        offer, classes, n_sites, data = self.received(message, data)
        phi = self.feature_map(data.X.shape[1], seed)
        d = phi.in_features
        center = offer.tensor("center", "F64", (d,)) if "center" in offer.tensors else None
        mechanism = self._mechanism(d, n_sites, center)
        vector = mechanism.sums(phi(data.X), data.y, classes)
        digest = hashlib.sha256(repr((seed, data.client, data.task, classes)).encode()).digest()
        # Random bytes that a benchmark can repeat; not for real data.
        vector += mechanism.noise(len(classes), np.random.default_rng(list(digest)).bytes)
        return None, self.answer(offer, vector.astype(np.uint32))

    def aggregate(
        self, state: ServerState, task: int, round_: int, uploads: Uploads
    ) -> ServerState:
        """Add the integers of all clients, decode the sum, add it to what was released, solve."""
        classes, n_sites = ordered(state.spec.task_classes[task]), len(state.spec.clients)
        mechanism = self._mechanism(state.phi.in_features, n_sites, self._center(state))
        if len(uploads) < mechanism.honest:
            expected = f"at least {mechanism.honest}, for which the noise is calibrated"
            raise Refused("uploads", expected, len(uploads))
        total = self.added(state, task, uploads, mechanism.size(len(classes)))
        vector = total.view(np.int32).astype(np.int64)
        release = mechanism.noisy_sums(vector, classes, sites=len(uploads))
        summary = release.summary(state.phi.fingerprint)
        state.aggregator.absorb(summary, client="sum", task=str(task))
        return self.solved(state)

    def _center(self, state: ServerState) -> NDArray[np.float64] | None:
        """The mean of all rows released so far, from which rows are measured; None for zero."""
        released = state.aggregator.class_sums
        return mean_row(released) if released else None

    def _mechanism(self, d: int, n_sites: int, center: NDArray[np.float64] | None) -> Mechanism:
        budget = Budget(self.epsilon, self.delta)
        honest = n_sites if self.honest is None else min(self.honest, n_sites)
        mechanism = Mechanism(
            d, budget, honest, levels=levels_for(self.most_rows, budget, n_sites / honest)
        )
        return mechanism if center is None else mechanism.centred(center)
