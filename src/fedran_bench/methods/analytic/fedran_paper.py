"""FedRAN and FedRAN-SSL as the paper prints them: ``fedran.paper`` behind the method protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from fedran import paper
from fedran.core._linalg.arrays import Array, to_device
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.pseudo_labels import PseudoLabels
from fedran.core.solve.head import Head
from fedran.core.summary import SAME_CENTER, Summary
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.aggregator import Aggregator
from fedran.core.sums.class_sums import ClassSums
from fedran.settings import between
from fedran.wire.codec import decode
from fedran_bench.methods.analytic.base import Positive, Width
from fedran_bench.methods.analytic.fedran import SummaryClient
from fedran_bench.methods.protocol import Claims, Spec, Uploads


@dataclass(frozen=True)
class PaperState:
    """The shared feature map, (V_1:t, sigma_1:t, B_1:t), and the newest head."""

    phi: RandomFeatures
    total: Summary
    head: Head | None = None


@dataclass(frozen=True)
class FedRANPaper(SummaryClient):
    """Algorithm 1 exactly; uploads in float32 (the paper counts 8 bytes per number)."""

    out_features: Width = 8192
    """M, the number of random features."""
    rank: Width = 2048
    """Columns of the factor that a client sends and that the server keeps."""
    lam: Positive = paper.LAMBDA
    """The ridge parameter."""
    device: str | None = None

    name = "FedRAN-paper"
    kind = "relu"
    center = None
    precision, bits = "float32", 5.0
    claims = Claims()
    verified = "partly: algorithm and bounds tested; the paper's backbone and weights are not here"

    @property
    def sends(self) -> str:
        """A truncated factor and class sums."""
        return f"rank-{self.rank} factor and class sums, float32"

    def init(self, spec: Spec, seed: int) -> PaperState:
        """The feature map of this seed; no direction yet."""
        M = self.out_features
        nothing = to_device(np.zeros((M, 0)), self.device, "float32")
        sums = ClassSums.empty(M, self.device)
        phi = self.random_features(spec.in_features, seed)
        return PaperState(phi, Summary(nothing, sums, Accounts(), center=None))

    def aggregate(self, state: PaperState, task: int, round_: int, uploads: Uploads) -> PaperState:
        """Decode and check every upload; merge over clients, then over tasks; solve."""
        expected = Aggregator(self.out_features, fingerprint=state.phi.fingerprint)
        summaries = []
        for client, blob in uploads.items():
            summary = decode(blob, Summary)
            expected.check(summary, client=client, task=str(task))
            if summary.center is not None:
                raise Refused("center", "None", repr(summary.center), hint=SAME_CENTER)
            summaries.append(summary)
        if not summaries:
            return state
        merged = paper.spatial(summaries, self.rank, self.device)
        total = paper.temporal(state.total, merged, self.rank)
        head = paper.solve(total, self.lam, state.phi.fingerprint) if total.classes else None
        return replace(state, total=total, head=head)


@dataclass(frozen=True)
class FedRANSSL(FedRANPaper):
    """The same with prototype pseudo-labels, the paper's variant for rows without labels."""

    tau: Annotated[float, between(-1, 1)] = paper.TAU
    """Least cosine with the class mean."""

    name = "FedRAN-SSL"
    labels_rows = True
    verified = "partly: as FedRAN-paper; the rule equals a row-by-row reference"

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels:
        """Nearest class mean of the client's own rows, on the backbone's features."""
        return paper.prototype_labels(Z, y, self.tau)
