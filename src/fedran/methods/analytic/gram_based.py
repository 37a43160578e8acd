"""What the methods share whose server holds a Gram and class sums of all rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, as_matrix, namespace, require_finite, to_device
from fedran.core.accounts import Accounts
from fedran.core.accumulate import accumulate
from fedran.core.errors import Refused
from fedran.core.exact_sum import ExactSum, pack_lower, symmetric, unpack_lower
from fedran.core.head import Head, make_head
from fedran.core.labels import Label, encode_labels, ordered
from fedran.core.ridge import Ridge, solve_gram
from fedran.methods.analytic.maps import FeatureMap
from fedran.methods.analytic.one_round import HeadMethod
from fedran.methods.protocol import ClientData, Spec
from fedran.wire.container import Container, pack, unpack
from fedran.wire.validation import FILE_LIMITS

Parts = tuple[tuple[Label, ...], NDArray[Any], NDArray[Any]]
"""What a message holds: classes, packed Gram, class sums."""
LARGEST_GRAM = 1e30
"""Entries beyond this would leave float32 once some clients are added up."""
LARGEST_ROW = 1e12
"""Features beyond this would leave it once they are mapped, squared and added up."""


@dataclass
class GramState:
    """Gram, class sums and accounts over everything, and the newest head."""

    phi: FeatureMap
    total: ExactSum
    sums: dict[Label, NDArray[np.float64]] = field(default_factory=dict)
    accounts: Accounts = field(default_factory=Accounts)
    lam: float | None = None
    """The ridge parameter, where the method searched for it."""
    head: Head | None = None

    def add_sums(self, classes: tuple[Label, ...], rows: NDArray[Any]) -> None:
        """Add one row of class sums a class."""
        for c, row in zip(classes, rows, strict=True):
            self.sums[c] = self.sums.get(c, 0.0) + row.astype(np.float64)

    def class_sums(self) -> tuple[tuple[Label, ...], NDArray[np.float64]]:
        """The classes in order and B (M, C)."""
        classes = ordered(self.sums)
        empty = np.zeros((0, self.phi.out_features))
        return classes, np.stack([self.sums[c] for c in classes]).T if classes else empty.T


class GramServer(HeadMethod, ABC):
    """A server state of Gram and class sums, however they arrived; solved after every task."""

    gram_dtype = "float32"
    """Of the Gram at the server and in files."""

    @abstractmethod
    def feature_map(self, in_features: int, seed: int) -> FeatureMap:
        """What everyone applies to the features."""

    def ridge(self) -> Ridge:
        """The ridge parameter: our rule unless a method brings its own."""
        return Ridge()

    def finish(self, head: Head) -> Head:
        """What a method does to the weights after the solve."""
        return head

    def init(self, spec: Spec, seed: int) -> GramState:
        """Nothing seen yet."""
        phi = self.feature_map(spec.in_features, seed)
        return GramState(phi, self.new_total(phi))

    def new_total(self, phi: FeatureMap) -> ExactSum:
        """A zero Gram."""
        return ExactSum(phi.out_features, self.gram_dtype, self.device, stack=False)

    def solve(self, state: GramState) -> Head:
        """W = (G + lambda I)^-1 B."""
        classes, B = state.class_sums()
        B = to_device(B, self.device)
        lam = self.ridge().value(state.accounts) if state.lam is None else state.lam
        solution = solve_gram(state.total.gram(), B, lam)
        head = make_head(solution, B, lam, state.accounts, classes, state.phi.fingerprint)
        return self.finish(head)

    def solved(self, state: GramState) -> GramState:
        """The state with its head, where any class was seen."""
        return replace(state, head=self.solve(state)) if state.sums else state

    def gram(self, state: GramState) -> tuple[Callable[[Any], Any], Any]:
        """The Gram itself."""
        return state.phi, symmetric(state.total.gram())

    def dump(self, state: GramState) -> bytes:
        """Gram, sums and accounts; the head follows from them."""
        classes, B = state.class_sums()
        accounts = {"n_rows": state.accounts.n_rows, "energy": state.accounts.energy}
        fields = {"classes": list(classes), "accounts": accounts, "lambda": state.lam}
        tensors = {"gram": pack_lower(state.total.gram()), "sums": np.ascontiguousarray(B.T)}
        return pack("gram-state", fields, tensors)

    def load(self, blob: bytes, spec: Spec, seed: int) -> GramState:
        """The state that ``dump`` wrote, its head solved again."""
        state = self.init(spec, seed)
        message = unpack(blob, FILE_LIMITS)
        dtype = "F32" if self.gram_dtype == "float32" else "F64"
        M = state.phi.out_features
        classes, packed, sums = _parts(message, "gram-state", M, dtype, "F64")
        state.total.restore("gram", unpack_lower(packed, M), 0)
        state.add_sums(classes, sums)
        state.accounts = _accounts(message)
        state.lam = message.header.get("lambda") and message.header.number("lambda")
        return self.solved(state)


class GramMethod(GramServer, ABC):
    """Every client sends the lower triangle of H'H and its class sums, in float32."""

    sends = "packed (M, M) Gram and class sums, float32"

    def formula(self, in_features: int, n_classes: int) -> int:
        """(M^2 + M C) x 8 bytes: the full matrix in float64."""
        M = self.feature_map(in_features, 0).out_features
        return 8 * (M * M + M * n_classes)

    def client(
        self,
        cstate: FeatureMap | None,
        message: bytes,
        data: ClientData,
        seed: int,
    ) -> tuple[FeatureMap, bytes]:
        """Gram and class sums of the labelled rows."""
        phi = cstate or self.feature_map(data.X.shape[1], seed)
        X, classes, codes = labelled_rows(data)
        total = self.new_total(phi)
        sums, energy = accumulate(total, phi.blocks(to_device(X, self.device)), codes, len(classes))
        fields = {"classes": list(classes), "accounts": {"n_rows": len(X), "energy": energy}}
        tensors = {"gram": pack_lower(total.gram()), "sums": sums.T.astype(np.float32)}
        return phi, pack("gram", fields, tensors)

    def aggregate(
        self,
        state: GramState,
        task: int,
        round_: int,
        uploads: dict[str, bytes],
    ) -> GramState:
        """Check every upload, then add all, then solve."""
        M = state.phi.out_features
        checked = [_checked(unpack(blob, FILE_LIMITS), M) for blob in uploads.values()]
        for (classes, packed, sums), accounts in checked:
            gram = unpack_lower(packed, M)
            state.total.add_gram(gram if self.device is None else symmetric(gram))
            state.add_sums(classes, sums)
            state.accounts += accounts
        return self.solved(state)


def labelled_rows(data: ClientData) -> tuple[NDArray[Any], tuple[Label, ...], NDArray[np.int64]]:
    """A client's rows that have labels, the classes, and each row's class number."""
    X = as_matrix(data.X, "X")
    classes, codes = encode_labels(data.y, len(X))
    require_finite(X, "X")
    return X[codes >= 0], classes, codes[codes >= 0]


def unit_columns(head: Head) -> Head:
    """Every class's weights divided by their norm: scores become h . w_c / |w_c|."""
    W: Array = head.weights
    xp = namespace(W)
    norms = xp.linalg.vector_norm(W, axis=0, keepdims=True)
    return replace(head, weights=W / xp.where(norms > 0, norms, xp.ones_like(norms)))


def _accounts(message: Container) -> Accounts:
    section = message.header.section("accounts")
    return Accounts(section.integer("n_rows"), section.number("energy"))


def require_range(values: NDArray[Any], name: str, largest: float) -> None:
    """Refuse NaN, infinity and what would overflow once it is squared or added up."""
    peak = np.max(np.abs(values), initial=0.0)  # NaN wins
    if not peak <= largest:
        raise Refused(name, f"finite values up to {largest:g}", peak)


def _checked(message: Container, M: int) -> tuple[Parts, Accounts]:
    parts = _parts(message, "gram", M, "F32", "F32")
    require_range(parts[1], "gram", LARGEST_GRAM)
    require_range(parts[2], "sums", LARGEST_GRAM)
    return parts, _accounts(message)


def _parts(message: Container, kind: str, M: int, gram_dtype: str, sums_dtype: str) -> Parts:
    classes = message.of_kind(kind).header.labels("classes", FILE_LIMITS)
    packed = message.tensor("gram", gram_dtype, (M * (M + 1) // 2,))
    return classes, packed, message.tensor("sums", sums_dtype, (len(classes), M))
