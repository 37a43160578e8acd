"""FedRAN with our defaults and its variants, and what all its forms share: an aggregator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from fedran.core._linalg.arrays import Array, to_device
from fedran.core.features import RandomFeatures
from fedran.core.points import Points, condense
from fedran.core.prepare import KernelFeatures
from fedran.core.pseudo_labels import PseudoLabels, margin_labels
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import Ridge
from fedran.core.summarize import summarize
from fedran.core.summary import Center, Summary
from fedran.core.sums.aggregator import Aggregator, Message
from fedran.paper import TAU, prototype_labels
from fedran.settings import at_least, between
from fedran.wire.codec import decode, encode
from fedran.wire.points_codec import DEFAULT_STEP, STEPS
from fedran.wire.quantisation import MAX_BITS, MIN_BITS
from fedran.wire.summary_codec import Precision
from fedran_bench.methods.analytic.base import (
    AnalyticMethod,
    OptionalKind,
    OptionalPositive,
    Width,
    only_labelled,
)
from fedran_bench.methods.protocol import Claims, ClientData, Spec, Uploads

Bits = Annotated[float, between(MIN_BITS, MAX_BITS)]
SharedMap: TypeAlias = RandomFeatures | KernelFeatures
"""What all clients compute from their features."""


@dataclass(frozen=True)
class ServerState:
    """The shared feature map, what was absorbed, and the newest head."""

    spec: Spec
    phi: SharedMap
    aggregator: Aggregator
    head: Head | None = None


class AggregatorMethod(AnalyticMethod):
    """The server absorbs one message per client and task, and solves. One round per task.

    By default it adds exactly and solves with our ridge rule, or with a given lambda.
    """

    lam: OptionalPositive

    def read(self, upload: bytes) -> Message:
        """What a client sent."""
        return decode(upload, Summary)

    def new_aggregator(self, phi: SharedMap) -> Aggregator:
        """The server's empty state, bound to the feature map."""
        return Aggregator(fingerprint=phi.fingerprint, device=self.device)

    def solve(self, aggregator: Aggregator) -> Head:
        """The head after a task."""
        return aggregator.solve(None if self.lam is None else Ridge.absolute(self.lam))

    def feature_map(self, in_features: int, seed: int) -> SharedMap:
        """The map that all clients share."""
        return self.random_features(in_features, seed)

    def init(self, spec: Spec, seed: int) -> ServerState:
        """The feature map of this seed and an empty aggregator."""
        phi = self.feature_map(spec.in_features, seed)
        return ServerState(spec, phi, self.new_aggregator(phi))

    def aggregate(
        self, state: ServerState, task: int, round_: int, uploads: Uploads
    ) -> ServerState:
        """Decode and check every upload, then absorb all, then solve."""
        messages = {client: self.read(blob) for client, blob in uploads.items()}
        for client, message in messages.items():
            state.aggregator.check(message, client=client, task=str(task))
        for client, message in messages.items():
            state.aggregator.absorb(message, client=client, task=str(task))
        return self.solved(state)

    def solved(self, state: ServerState) -> ServerState:
        """The state with its head; without one before any class was seen."""
        head = self.solve(state.aggregator) if state.aggregator.classes else None
        return replace(state, head=head)


@dataclass(frozen=True)
class ClientState:
    """The shared feature map, and what the rule for missing labels did in the last task."""

    phi: RandomFeatures
    pseudo: PseudoLabels | None = None


class SummaryClient(AnalyticMethod):
    """Clients map, summarize and encode."""

    rank: int
    precision: Precision
    bits: float
    center: ClassVar[Center | None] = "class"
    labels_rows: ClassVar[bool] = False
    """Whether rows without a label may get one. Otherwise they are left out."""

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels | None:
        """Labels for rows without one."""

    def formula(self, in_features: int, n_classes: int) -> int:
        """(M r + r + M C) x 8 bytes, as the FedRAN paper counts."""
        return 8 * (self.out_features * (self.rank + n_classes) + self.rank)

    def client(
        self, cstate: ClientState | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[ClientState, bytes]:
        """Map, label, summarize, encode. The client keeps the feature map, nothing of its data."""
        phi = cstate.phi if cstate else self.random_features(data.X.shape[1], seed)
        if not self.labels_rows:
            data = only_labelled(data)
        Z = to_device(data.X, self.device)
        H = phi(Z)
        pseudo = self.pseudo_labels(Z, H, data.y)
        y = data.y if pseudo is None else pseudo.labels
        summary = summarize(H, y, self.rank, center=self.center, fingerprint=phi.fingerprint)
        return ClientState(phi, pseudo), encode(summary, self.precision, bits=self.bits)


@dataclass(frozen=True)
class FedRAN(SummaryClient, AggregatorMethod):
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

    tau: Annotated[float, between(-1, 1)] = TAU
    """Least cosine with the class mean."""

    name = "FedRAN-SSL (prototypes)"
    labels_rows = True
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
    labels_rows = True
    verified = "yes: the rule equals a dense ridge"

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels:
        """Our rule on the random features."""
        return margin_labels(H, y, self.margin, self.refit)


@dataclass(frozen=True)
class FedRANPoints(AggregatorMethod):
    """Every client sends means of groups of its prepared rows; the server solves kernel ridge.

    A class with fewer than ``min_group`` rows at a client is withheld there. Messages are sorted
    before a solve, so their order of arrival does not matter to the last bit.
    """

    group_size: Width = 1
    """Rows per group, on average; 1 sends every row."""
    min_group: Width = 1
    """Least rows of a group."""
    step: Annotated[float, between(*STEPS)] = DEFAULT_STEP
    """Of the rounding, in deviations of the rows from their class means."""
    landmarks: Width | None = None
    """Support of the head, class-wise means where there are more points; none for every point."""
    kind: Literal["hellinger", "cosine"] | None = None
    """Of the prepared rows; none for the kind that the dataset declares."""
    ridge: OptionalPositive = None
    """Of a row; none for the best one by leave-one-out."""
    device: str | None = None

    name = "FedRAN-points"
    claims = Claims(order_free=True)
    verified = "yes: equals the library's own calls, which equal a dense kernel ridge"

    @property
    def sends(self) -> str:
        """Rows or group means."""
        least = f", at least {self.min_group}" if self.min_group > 1 else ""
        groups = f"means of groups of about {self.group_size} rows{least}"
        return (
            f"{'every row' if self.group_size == 1 else groups}, rounded in steps of {self.step:g}"
        )

    def feature_map(self, in_features: int, seed: int) -> KernelFeatures:
        """Prepared rows, without anything random."""
        return KernelFeatures(in_features, self.kind or "cosine", source=self.source)

    def read(self, upload: bytes) -> Points:
        """Points of large enough groups."""
        return decode(upload, Points).validate(self.min_group)

    def solve(self, aggregator: Aggregator) -> Head:
        """Kernel ridge on all points, or on landmarks."""
        return aggregator.solve(self.ridge, landmarks=self.landmarks)

    def client(
        self, cstate: KernelFeatures | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[KernelFeatures, bytes]:
        """Prepare, condense and encode, on the CPU in any case: groups are found there."""
        phi = cstate or self.feature_map(data.X.shape[1], seed)
        sizes = self.group_size, self.min_group
        points = condense(phi(data.X), data.y, *sizes, fingerprint=phi.fingerprint)
        return phi, encode(points, step=self.step)
