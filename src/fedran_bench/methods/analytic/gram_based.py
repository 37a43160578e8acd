"""Methods on an exact Gram: their message and server; Exact, Fed3R and STSA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import namespace, to_device, to_numpy
from fedran.core._linalg.blas import pack_lower, unpack_lower
from fedran.core.errors import Refused
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import Ridge
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums
from fedran.core.sums.exact_sum import ExactSum
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import (
    FLOAT32_ROUNDING,
    LARGEST_GRAM,
    AnalyticMethod,
    FeatureMap,
    OptionalKind,
    OptionalPositive,
    Positive,
    Projection,
    Raw,
    Width,
    WithBias,
    labelled_rows,
    require_range,
    unit_columns,
)
from fedran_bench.methods.protocol import Claims, ClientData, Spec, Uploads


@dataclass
class GramState:
    """The feature map of the head, the exact sum over all rows, and the newest head."""

    spec: Spec
    phi: FeatureMap
    total: ExactSum
    seed: int = 0
    lam: float | None = None
    """The ridge parameter, where the method searched for it."""
    head: Head | None = None
    more: Sequence[ExactSum] = ()
    """The sums of further models, of which the head is the mean."""


class GramServer(AnalyticMethod):
    """A server whose state is an exact sum, solved after every task."""

    gram_dtype = "float32"
    """Of the Gram at the server and in files."""
    lam: float | None = None
    """The ridge parameter; none for our rule."""

    def feature_map(self, in_features: int, seed: int) -> FeatureMap:
        """The map whose output the head takes."""
        return self.random_features(in_features, seed)

    def row_map(self, in_features: int, seed: int) -> FeatureMap:
        """The map whose output is summed: that of the head, or without its constant column."""
        return self.feature_map(in_features, seed)

    def init(self, spec: Spec, seed: int) -> GramState:
        """Nothing seen yet."""
        d = spec.in_features
        total = self.new_total(self.row_map(d, seed).out_features)
        return GramState(spec, self.feature_map(d, seed), total, seed)

    def new_total(self, out_features: int) -> ExactSum:
        """An empty sum."""
        return ExactSum(out_features, self.gram_dtype, self.device, stack=False)

    def aggregate(self, state: GramState, task: int, round_: int, uploads: Uploads) -> GramState:
        """Check every upload, then add all, then solve."""
        for part in [self.unpack(blob, state.total.out_features) for blob in uploads.values()]:
            add_packed(state.total, *part)
        return self.solved(state)

    def unpack(self, blob: bytes, M: int) -> tuple[NDArray[Any], ClassSums, Accounts]:
        """Packed Gram, class sums and accounts of an upload."""
        return unpack_gram(blob, M)

    def solve(self, state: GramState) -> Head:
        """W = (G + lambda I)^-1 B."""
        lam = self.lam if state.lam is None else state.lam
        ridge = Ridge() if lam is None else Ridge.absolute(lam)
        return state.total.solve(ridge, state.phi.fingerprint)

    def solved(self, state: GramState) -> GramState:
        """The state with its head, where any class was seen."""
        return replace(state, head=self.solve(state)) if state.total.class_sums else state


class GramMethod(GramServer):
    """Every client sends class sums, counts and the lower triangle of H'H, in float32.

    These add over clients and tasks, so the server's sums are those of the pooled rows.
    """

    sends = "packed (M, M) Gram, class sums and counts, float32"

    def formula(self, in_features: int, n_classes: int) -> int:
        """(M^2 + M C) x 8 bytes: the full matrix in float64."""
        M = self.feature_map(in_features, 0).out_features
        return 8 * (M * M + M * n_classes)

    def client(
        self, cstate: FeatureMap | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[FeatureMap, bytes]:
        """The sums of the labelled rows."""
        phi = cstate or self.row_map(data.X.shape[1], seed)
        X, classes, codes = labelled_rows(data)
        total = self.new_total(phi.out_features)
        total.add_rows(phi.blocks(to_device(X, self.device)), classes, codes)
        return phi, pack_gram(total)


def packed_gram(total: ExactSum) -> NDArray[Any]:
    """The lower triangle of the Gram column by column, without a copy of the whole."""
    held = total.state()[1].get("gram")
    return pack_lower(total.gram() if held is None else held)


def add_packed(total: ExactSum, packed: NDArray[Any], sums: ClassSums, accounts: Accounts) -> None:
    """Add a sum that arrived as ``packed_gram``, class sums and accounts."""
    part = ExactSum(total.out_features, total.dtype, total.device, stack=False)
    labelled, rows = sums.state()
    values = {"form": "gram", "width": 0, "accounts": asdict(accounts), **labelled}
    lower = unpack_lower(packed, total.out_features)
    part.restore(values, {"gram": lower, "class_sums": rows})
    total.add_sum(part)


def pack_gram(total: ExactSum, kind: str = "gram") -> bytes:
    """A message of classes, counts, class sums (C, M) and the packed lower triangle of H'H."""
    sums = total.class_sums
    fields = {"classes": list(sums.classes), "counts": list(sums.counts)}
    with np.errstate(over="ignore"):
        tensors = {
            "gram": packed_gram(total).astype(np.float32, copy=False),
            "sums": to_numpy(sums.sums).T.astype(np.float32, order="C"),
        }
    for name, values in tensors.items():
        if not np.all(np.isfinite(values)):
            raise ValueError(f"the {name} of the features exceed float32; rescale the features")
    return pack(kind, fields, tensors)


def unpack_gram(
    blob: bytes, M: int, kind: str = "gram"
) -> tuple[NDArray[Any], ClassSums, Accounts]:
    """Inverse of ``pack_gram``; refused unless some rows can have these sums in every column.

    Messages of other kinds hold products H'R with other targets than classes.
    """
    message = unpack(blob, FILE_LIMITS).of_kind(kind)
    message.only("gram", "sums")
    classes = message.header.labels("classes", FILE_LIMITS)
    counts = message.header.integers("counts", len(classes), 1 if kind == "gram" else 0)
    packed = message.tensor("gram", "F32", (M * (M + 1) // 2,))
    rows = message.tensor("sums", "F32", (len(classes), M)).astype(np.float64)
    require_range(packed, "gram", LARGEST_GRAM)
    require_range(rows, "sums", LARGEST_GRAM)
    diagonal = packed[np.cumsum([0, *range(M, 1, -1)])].astype(np.float64)
    accounts = Accounts(sum(counts), float(diagonal.sum()))
    found = packed, ClassSums(classes, rows.T, tuple(counts)), accounts
    if kind != "gram":
        return found
    least = np.sum(rows**2 / np.array(counts, dtype=np.float64)[:, None], axis=0)
    rounding = FLOAT32_ROUNDING * (4 + sum(counts))  # of a sum over the rows, in float32
    if not np.all(diagonal >= least * (1 - rounding)):
        column = int(np.argmin(diagonal - least))
        expected = f"at least {least[column]:g} on the diagonal in column {column}, from the sums"
        raise Refused("gram", expected, diagonal[column])
    return found


@dataclass(frozen=True)
class Exact(GramMethod):
    """Nothing compressed, our ridge rule; ``features`` and ``lam`` serve the ablations."""

    out_features: Width = 8192
    """M, the number of random features."""
    features: Literal["random", "linear", "raw"] = "random"
    """Random features, Z P without an activation, or Z itself."""
    kind: OptionalKind = None
    """Of the random features; none for the kind that the dataset declares."""
    lam: OptionalPositive = None
    """The ridge parameter; none for our rule."""
    device: str | None = None

    name = "Exact Gram"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "yes: equals the dense joint ridge"

    def feature_map(self, in_features: int, seed: int) -> FeatureMap:
        """Random features, Z P, or Z itself."""
        if self.features == "raw":
            return Raw(in_features)
        if self.features == "linear":
            return Projection(in_features, self.out_features, seed)
        return self.random_features(in_features, seed)


SMALLEST_NORM = 1e-6
"""Divides a class whose weights are all zero, as in the published code."""


@dataclass(frozen=True)
class Fed3R(GramMethod):
    """A = lambda I + sum F'F, b = sum F'Y, W = A^-1 b, F with a column of ones.

    The weights and the bias of each class are divided by the norm of its weights alone.
    """

    lam: Positive = 0.01
    """The ridge parameter."""
    device: str | None = None

    name = "Fed3R"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    sends = "packed (d + 1, d + 1) Gram of the raw features and class sums, float32"
    verified = "yes: equals a dense reference and the weights of the published code"

    def feature_map(self, in_features: int, seed: int) -> FeatureMap:
        """[Z, 1]."""
        return WithBias(in_features)

    def solve(self, state: GramState) -> Head:
        """Weights and bias of each class divided by the norm of its weights without the bias."""
        head = super().solve(state)
        W = head.weights
        xp = namespace(W)
        norms = xp.linalg.vector_norm(W[:-1, :], axis=0, keepdims=True)
        return replace(head, weights=W / xp.where(norms > 0, norms, SMALLEST_NORM))


@dataclass(frozen=True)
class StsaServer(GramServer):
    """The server of both forms of STSA: a constant ridge, cosine scores."""

    out_features: Width = 5000
    """M, the number of random features."""
    lam: Positive = 1e6
    """The ridge parameter."""
    device: str | None = None

    kind = "relu"  # relu(Z P) with P ~ N(0, 1), unscaled

    def solve(self, state: GramState) -> Head:
        """Its scores are cosines: class weights are normalised (rows of H need not be)."""
        return unit_columns(super().solve(state))


@dataclass(frozen=True)
class STSA(StsaServer, GramMethod):
    """As in the published code, without its training of the backbone on the first task."""

    name = "STSA"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "partly: equals a dense reference; backbone training on task 0 left out"
