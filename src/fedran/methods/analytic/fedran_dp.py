"""FedRAN-dp: the sum over all clients is differentially private for every row."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.discrete_gaussian import RandomBytes
from fedran.core.dp import Budget, Mechanism, Shares, levels_for
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.core.labels import Label, ordered
from fedran.core.release import RIDGE, Release
from fedran.methods.analytic.base import (
    OneRound,
    OptionalKind,
    Positive,
    Width,
    labelled_rows,
    random_features,
)
from fedran.methods.protocol import Claims, ClientData, Spec
from fedran.settings import at_least
from fedran.wire.codec import encode
from fedran.wire.container import Container, pack, unpack
from fedran.wire.validation import FILE_LIMITS

OFFER, UPLOAD, STATE = "dp-offer", "dp-sums", "dp-state"


@dataclass(frozen=True)
class DPState:
    """What was released so far, and the head that it gives."""

    spec: Spec
    phi: RandomFeatures
    """Only ``prepare`` is used: rows of unit norm, without random features."""
    total: Release | None = None
    head: Head | None = None


@dataclass(frozen=True)
class FedRANDP(OneRound):
    """Every client adds its share of the noise to integer sums of its rows of unit norm.

    This is the content of a secure sum without its masks, which cancel: the server adds the
    integers of all clients modulo 2^32 and decodes only the sum, which is (epsilon, delta)
    differentially private for every row. A row belongs to one task. The noise is drawn from a
    seeded generator, so that a run can be repeated; a federation uses the operating system's.
    """

    epsilon: Positive = 3.0
    delta: Positive = 1e-5
    honest: Annotated[int | None, at_least(1)] = None
    """Clients whose noise counts: with fewer than all, the rest may collude with the server or
    drop out. None for all clients."""
    kind: OptionalKind = None
    """How rows are normalised; none for the kind that the dataset declares."""
    recentre: bool = True
    """Whether rows of later tasks are measured from the mean that was released before."""
    gram_share: Positive = Shares().gram
    """Share of the squared sensitivity that the Gram gets."""
    ridge: Positive = RIDGE
    """lambda per mean eigenvalue of the Gram."""
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

    def init(self, spec: Spec, seed: int) -> DPState:
        """Nothing released yet."""
        return DPState(spec, random_features(spec.in_features, 1, self.kind, seed, self.source))

    def broadcast(self, state: DPState, task: int, round_: int) -> bytes:
        """The class list, the number of clients, the released mean and the newest head."""
        head = b"" if state.head is None else encode(state.head)
        if task >= len(state.spec.task_classes):
            return head
        fields = {
            "classes": list(ordered(state.spec.task_classes[task])),
            "n_sites": len(state.spec.clients),
        }
        tensors: dict[str, NDArray[Any]] = {"head": np.frombuffer(head, dtype=np.uint8)}
        if self.recentre and state.total is not None:
            tensors["center"] = state.total.mean
        return pack(OFFER, fields, tensors)

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """The sums of the labelled rows, and this client's share of the noise."""
        if not message:
            raise ValueError("FedRAN-dp needs the server's offer, which states the class list")
        offer = unpack(message, FILE_LIMITS).of_kind(OFFER)
        classes = offer.header.labels("classes", FILE_LIMITS)
        X, found, codes = labelled_rows(data)
        if len(X) > self.most_rows:
            raise ValueError(
                f"client {data.client} has {len(X)} rows in this task, and most_rows allows "
                f"{self.most_rows}; raise most_rows at all clients"
            )
        phi = random_features(data.X.shape[1], 1, self.kind, seed, self.source)
        d = phi.in_features
        center = offer.tensor("center", "F64", (d,)) if "center" in offer.tensors else None
        mechanism = self._mechanism(d, offer.header.integer("n_sites", 1), center)
        vector = mechanism.sums(phi.prepare(X), [found[i] for i in codes], classes)
        random = _seeded(seed, data.client, data.task, classes)
        vector += mechanism.noise(len(classes), random)
        integers = vector.astype(np.uint32)
        return None, pack(UPLOAD, {}, {"vector": integers.astype("<u4").view(np.uint8)})

    def aggregate(
        self, state: DPState, task: int, round_: int, uploads: dict[str, bytes]
    ) -> DPState:
        """Add the integers of all clients, decode the sum, add it to what was released, solve."""
        classes, n_sites = ordered(state.spec.task_classes[task]), len(state.spec.clients)
        center = state.total.mean if self.recentre and state.total is not None else None
        mechanism = self._mechanism(state.phi.in_features, n_sites, center)
        if len(uploads) < mechanism.honest:
            expected = f"at least {mechanism.honest}, for which the noise is calibrated"
            raise Refused("uploads", expected, len(uploads))
        total = np.zeros(mechanism.size(len(classes)), dtype=np.uint32)
        for blob in uploads.values():
            message = unpack(blob, FILE_LIMITS).of_kind(UPLOAD)
            message.only("vector")
            total += message.tensor("vector", "U8", (4 * len(total),)).view("<u4")
        vector = total.view(np.int32).astype(np.int64)
        release = mechanism.release(vector, classes, sites=len(uploads))
        return self._solved(replace(state, total=_added(state.total, release)))

    def predict(self, state: DPState, X: NDArray[Any]) -> NDArray[Any]:
        """The labels that the head predicts."""
        if state.head is None:
            raise ValueError("nothing to predict with: no task was aggregated yet")
        return state.head.predict(state.phi.prepare(X))

    def dump(self, state: DPState) -> bytes:
        """What was released; the head follows from it."""
        if state.total is None:
            return pack(STATE, {"classes": []}, {})
        total = state.total
        fields = {"classes": list(total.classes), "gram_variance": total.gram_variance}
        tensors = {
            "gram": total.gram,
            "sums": total.sums.T,
            "counts": total.counts,
            "sums_variance": total.sums_variance,
        }
        return pack(STATE, fields, tensors)

    def load(self, blob: bytes, spec: Spec, seed: int) -> DPState:
        """The state that ``dump`` wrote, with its head solved again."""
        message, state = unpack(blob, FILE_LIMITS).of_kind(STATE), self.init(spec, seed)
        return self._solved(replace(state, total=_total(message, spec.in_features)))

    def _solved(self, state: DPState) -> DPState:
        if state.total is None:
            return state
        return replace(state, head=state.total.solve(state.phi.input_fingerprint, self.ridge))

    def _mechanism(self, d: int, n_sites: int, center: NDArray[np.float64] | None) -> Mechanism:
        counts = Shares().counts
        mechanism = Mechanism(
            d,
            Budget(self.epsilon, self.delta),
            honest=n_sites if self.honest is None else min(self.honest, n_sites),
            levels=levels_for(self.most_rows),
            shares=Shares(self.gram_share, 1 - counts - self.gram_share, counts),
        )
        return mechanism if center is None else mechanism.centred(center)


def _added(total: Release | None, release: Release) -> Release:
    return release if total is None else total + release


def _total(message: Container, d: int) -> Release | None:
    classes = message.header.labels("classes", FILE_LIMITS)
    if not classes:
        return None
    C = len(classes)
    return Release(
        classes,
        message.tensor("gram", "F64", (d, d)),
        message.tensor("sums", "F64", (C, d)).T,
        message.tensor("counts", "F64", (C,)),
        message.header.number("gram_variance"),
        message.tensor("sums_variance", "F64", (C,)),
    )


def _seeded(seed: int, client: str, task: str, classes: tuple[Label, ...]) -> RandomBytes:
    """Random bytes that a benchmark can repeat; not for real data."""
    digest = hashlib.sha256(repr((seed, client, task, classes)).encode()).digest()
    return np.random.default_rng(list(digest)).bytes
