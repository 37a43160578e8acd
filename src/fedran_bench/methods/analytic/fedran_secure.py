"""FedRAN-secure: clients send totals in fixed point, and the server sees their sum alone."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, to_device, to_numpy
from fedran.core._linalg.blas import matmul
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint, require_same
from fedran.core.labels import Label, ordered
from fedran.core.private.sketch_sums import SketchSums, blind_omega, sketch_sums, sketch_width
from fedran.core.solve.head import Head
from fedran.core.solve.nystrom import sketch_ridge, sketch_to_summary
from fedran.core.solve.ridge import Ridge
from fedran.core.sums.aggregator import Aggregator
from fedran.wire.container import Container, pack, unpack
from fedran.wire.fixed_point import FixedPoint, row_bounds, sketch_fixed_point, sketch_rounding
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import OptionalKind, OptionalPositive, Width, only_labelled
from fedran_bench.methods.analytic.fedran import AggregatorMethod, ServerState, SharedMap
from fedran_bench.methods.protocol import Claims, ClientData, Spec, Uploads

OFFER, UPLOAD = "sum-offer", "integers"
Parts: TypeAlias = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""Fields and tensors of a message."""


class IntegerSums(AggregatorMethod, ABC):
    """Clients answer an offer with integers, which the server adds modulo 2^32.

    This is the content of a secure sum without its masks, which cancel: the server decodes the sum
    of all clients and never a single upload.
    """

    most_rows: int

    @abstractmethod
    def offer(self, state: ServerState, task: int) -> Parts:
        """What clients must know besides the class list of the task and the number of clients."""

    def broadcast(self, state: ServerState, task: int, round_: int) -> bytes:
        """The offer of this task, with its digest, and the newest head."""
        head = super().broadcast(state, task, round_)
        if task >= len(state.spec.task_classes):
            return head
        fields, tensors = self._whole_offer(state, task)
        digest = {"offer": _digest(fields, tensors)}
        return pack(OFFER, fields | digest, {**tensors, "head": head})

    def received(
        self, message: bytes, data: ClientData
    ) -> tuple[Container, tuple[Label, ...], int, ClientData]:
        """The offer, its class list and number of clients, and the labelled rows of a client."""
        if not message:
            raise ValueError(f"{self.name} needs the server's offer, which states the class list")
        offer = unpack(message, FILE_LIMITS).of_kind(OFFER)
        data = only_labelled(data)
        if len(data.X) > self.most_rows:
            raise ValueError(
                f"client {data.client} has {len(data.X)} rows in this task, and most_rows allows "
                f"{self.most_rows}; raise most_rows at all clients"
            )
        classes = offer.header.labels("classes", FILE_LIMITS)
        return offer, classes, offer.header.integer("n_sites", 1), data

    def answer(self, offer: Container, integers: NDArray[np.uint32]) -> bytes:
        """The upload: integers, and the digest of the offer that they answer."""
        fields = {"offer": offer.header.text("offer", 64)}
        return pack(UPLOAD, fields, {"vector": integers.astype("<u4").view(np.uint8)})

    def added(
        self, state: ServerState, task: int, uploads: Uploads, size: int
    ) -> NDArray[np.uint32]:
        """The sum of all answers to the offer of this task."""
        digest, total = _digest(*self._whole_offer(state, task)), np.zeros(size, dtype=np.uint32)
        for blob in uploads.values():
            message = unpack(blob, FILE_LIMITS).of_kind(UPLOAD)
            if message.header.text("offer", 64) != digest:
                raise Refused("offer", "an answer to the offer of this task", "to another offer")
            message.only("vector")
            total += message.tensor("vector", "U8", (4 * size,)).view("<u4")
        return total

    def _whole_offer(self, state: ServerState, task: int) -> Parts:
        classes, n_sites = ordered(state.spec.task_classes[task]), len(state.spec.clients)
        fields, tensors = self.offer(state, task)
        return {"classes": list(classes), "n_sites": n_sites, **fields}, tensors


@dataclass(frozen=True)
class Sketch:
    """The Omega of one task: from a seed, from 8-bit codes, or none (the Gram itself)."""

    seed: tuple[int, int] | None = None
    codes: NDArray[np.int8] | None = None
    step: float = 0.0

    @classmethod
    def read(cls, message: Container, out_features: int, width: int) -> Sketch:
        """The one that an offer holds."""
        if "omega" in message.tensors:
            codes = message.tensor("omega", "I8", (out_features, width))
            return cls(None, codes, message.header.number("step"))
        if message.header.get("omega_seed") is None:
            return cls()
        first, second = message.header.integers("omega_seed", 2, 0, 2**32 - 1)
        return cls((first, second))

    def omega(self, out_features: int, width: int, device: str | None) -> Array | None:
        """The matrix, (M, s) float32 on a device; None for the Gram itself."""
        if self.codes is not None:
            return to_device(self.codes.astype(np.float32) * np.float32(self.step), device)
        if self.seed is None:
            return None
        return to_device(blind_omega(out_features, width, self.seed), device)


def aware_codes(factor: Array, width: int, seed: tuple[int, int]) -> tuple[NDArray[np.int8], float]:
    """An Omega = codes * step that spans what the last task's summary describes.

    The leading directions of the factor (M, r), completed by blind columns where it has fewer than
    ``width``, are rotated at random. Nystrom's formula depends on the span alone, so the rotation
    changes nothing but the size of the numbers: every column of the sketch is then equally large,
    as a common fixed-point scale requires.
    """
    columns = to_numpy(factor).astype(np.float64)
    norms = np.linalg.norm(columns, axis=0)
    order = np.argsort(-norms, kind="stable")[:width]
    order = order[norms[order] > 0]
    blind = np.asarray(blind_omega(len(columns), width, seed), dtype=np.float64)
    basis = np.concatenate([columns[:, order] / norms[order], blind[:, len(order) :]], axis=1)
    drawn = np.random.RandomState(seed).standard_normal((width, width))
    rotated = matmul(basis, np.linalg.qr(drawn)[0])
    step = np.float32(np.max(np.abs(rotated)) / 127)
    return np.rint(rotated / step).astype(np.int8), float(step)


@dataclass(frozen=True)
class SecureState(ServerState):
    """What the server of an aggregator knows, its seed, and the Omega of the next task."""

    seed: int = 0
    sketch: Sketch = field(default_factory=Sketch)


@dataclass(frozen=True)
class FedRANSecure(IntegerSums):
    """Class sums, counts, energy and a sketch of the Gram are added in 32-bit integers.

    The server rebuilds one summary per task by Nystrom's formula.
    """

    out_features: Width = 8192
    """M, the number of random features."""
    kind: OptionalKind = None
    """Of the random features; none for the kind that the dataset declares."""
    width: Width = 512
    """s, the columns of the sketch. From M / 2 on the packed Gram is sent, which is exact."""
    omega: Literal["aware", "blind"] = "aware"
    """Columns of Omega: the directions of the previous task, or random ones for every task."""
    most_rows: Width = 16384
    """The most rows of one client and task. It fixes the scales before any data is seen."""
    lam: OptionalPositive = None
    """The ridge parameter; none for the rule of sketches."""
    device: str | None = None

    name = "FedRAN-secure"
    claims = Claims(order_free=True, partition_free=True)
    verified = "yes: equals the exact Gram where the sketch is as wide as its rank"

    @property
    def sends(self) -> str:
        """SketchSums."""
        what = "packed Gram" if self._width is None else f"{self.omega} sketch s={self.width}"
        return f"{what}, class sums, counts, energy: a sum in 32-bit fixed point"

    @property
    def _width(self) -> int | None:
        """s, or None for the packed Gram."""
        return sketch_width(self.width, self.out_features)

    def init(self, spec: Spec, seed: int) -> SecureState:
        """The feature map of this seed, an empty aggregator, a random Omega."""
        phi = self.feature_map(spec.in_features, seed)
        row_bounds(phi.fingerprint)  # a map without them is refused before any client starts
        sketch = Sketch() if self._width is None else Sketch((seed, 0))
        return SecureState(spec, phi, self.new_aggregator(phi), seed=seed, sketch=sketch)

    def solve(self, aggregator: Aggregator) -> Head:
        """The ridge rule of sketches (or the given lambda)."""
        rule = sketch_ridge(self.out_features)
        return aggregator.solve(rule if self.lam is None else Ridge.absolute(self.lam))

    def offer(self, state: ServerState, task: int) -> Parts:
        """The feature map and Omega."""
        assert isinstance(state, SecureState)
        sketch = state.sketch
        fields = {
            "fingerprint": dict(state.phi.fingerprint.fields),
            "omega_seed": None if sketch.seed is None else list(sketch.seed),
            "step": sketch.step,
        }
        return fields, {} if sketch.codes is None else {"omega": sketch.codes}

    def client(
        self, cstate: SharedMap | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[SharedMap, bytes]:
        """Map, total, and write as integers."""
        phi = cstate or self.feature_map(data.X.shape[1], seed)
        offer, classes, n_sites, data = self.received(message, data)
        require_same(phi.fingerprint, offer.header.fingerprint("fingerprint"), "client and offer")
        omega = Sketch.read(offer, self.out_features, self.width).omega(
            self.out_features, self.width, self.device
        )
        total = sketch_sums(phi(to_device(data.X, self.device)), data.y, classes, omega)
        codes = self._fixed_point(phi.fingerprint, classes, n_sites).encode(total.vector(), n_sites)
        return phi, self.answer(offer, codes)

    def aggregate(
        self, state: ServerState, task: int, round_: int, uploads: Uploads
    ) -> ServerState:
        """Add the integers of all clients, decode the sum, rebuild, absorb, solve."""
        assert isinstance(state, SecureState)
        classes = ordered(state.spec.task_classes[task])
        n_sites = len(state.spec.clients)
        if len(uploads) > n_sites:
            raise Refused("uploads", f"at most {n_sites}, as the scales allow", len(uploads))
        fixed = self._fixed_point(state.phi.fingerprint, classes, n_sites)
        codes = self.added(state, task, uploads, fixed.size)
        total = SketchSums.from_vector(fixed.decode(codes), classes, self.out_features, self._width)
        summary = sketch_to_summary(
            total,
            state.sketch.omega(self.out_features, self.width, self.device),
            state.phi.fingerprint,
            rounding=sketch_rounding(fixed, n_sites),
            device=self.device,
        )
        state.aggregator.absorb(summary, client="sum", task=str(task))
        sketch = state.sketch
        if self._width is not None:
            seed = (state.seed, task + 1)
            sketch = Sketch(seed)
            if self.omega == "aware":
                sketch = Sketch(None, *aware_codes(summary.factor, self.width, seed))
        return self.solved(replace(state, sketch=sketch))

    def _fixed_point(
        self, fingerprint: Fingerprint, classes: tuple[Label, ...], n_sites: int
    ) -> FixedPoint:
        sizes = {"most_rows": self.most_rows, "n_sites": n_sites}
        return sketch_fixed_point(fingerprint, len(classes), self._width, **sizes)


def _digest(fields: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> str:
    """What an upload names, so that answers to another offer are refused."""
    return hashlib.sha256(pack(OFFER, fields, tensors)).hexdigest()
