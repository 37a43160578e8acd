"""LoRanPAC without adapters: pooled rows, a truncated SVD that grows, no ridge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedran.core._linalg.arrays import Array, cast, contiguous, namespace, to_device, to_numpy
from fedran.core._linalg.truncation import leading
from fedran.core.features import RandomFeatures
from fedran.core.labels import encode_labels
from fedran.core.solve.head import Head
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import Width, unregularised_head
from fedran_bench.methods.protocol import Claims, Spec, Uploads
from fedran_bench.methods.yardsticks import RowsClient

BLOCK_ROWS = 10_000
"""Rows that are added at a time."""
MAX_RANK = 10_000
KEEP = 0.75
"""Largest number of directions, as a share of the rows so far and of M."""


@dataclass(frozen=True)
class FactorState:
    """F = U diag(sigma) (M, w) with orthogonal columns, class sums, and the newest head."""

    phi: RandomFeatures
    factor: Array
    sums: ClassSums
    accounts: Accounts
    head: Head | None = None


@dataclass(frozen=True)
class LoRanPAC(RowsClient):
    """W = U diag(sigma^-2) U'B. Centralised; published at M = 100,000, here at any M.

    The published incremental SVD is replaced by eigenvectors of the smaller Gram in float64,
    which find the same directions: M^3 operations per block of 10,000 rows. Without a ridge the
    smallest direction counts as much as the largest, so the factor is float64 too.
    """

    out_features: Width = 8192
    """M, the number of random features."""
    device: str | None = None

    name = "LoRanPAC"
    kind = "relu"
    claims = Claims()
    verified = "partly: equals a dense truncated SVD; published at M = 100,000 with a GPU"

    def init(self, spec: Spec, seed: int) -> FactorState:
        """No direction yet."""
        phi = self.random_features(spec.in_features, seed)
        empty = to_device(np.zeros((self.out_features, 0)), self.device)
        sums = ClassSums.empty(self.out_features, self.device)
        return FactorState(phi, empty, sums, Accounts())

    def aggregate(
        self, state: FactorState, task: int, round_: int, uploads: Uploads
    ) -> FactorState:
        """Add the rows block by block, truncate, solve."""
        X, y = self.rows(list(uploads.values()), state.phi.in_features)
        classes, codes = encode_labels(y, len(y))
        sums = state.sums
        for start in range(0, len(X), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            H = cast(state.phi(to_device(X[rows], self.device)), "float64")
            sums += ClassSums.from_codes(H, classes, codes[rows])
            state = self._grow(state, H)
        state = replace(state, sums=sums)
        return replace(state, head=solve(state))

    def _grow(self, state: FactorState, H: Array) -> FactorState:
        xp = namespace(H)
        seen = state.accounts.n_rows + int(H.shape[0])
        rank = max(1, min(round(KEEP * seen), MAX_RANK, int(KEEP * self.out_features)))
        stack = xp.concat([state.factor, H.T], axis=1)
        result = leading(stack, rank, "H")
        energy = result.energy - (state.accounts.energy - state.accounts.cut)
        accounts = state.accounts + Accounts(int(H.shape[0]), max(energy, 0.0))
        accounts = accounts.after_local_cut(result.loss)
        return replace(state, factor=contiguous(result.factor), accounts=accounts)

    def gram(self, state: FactorState) -> tuple[Callable[[Any], Any], Any]:
        """FF'."""
        return state.phi, state.factor @ state.factor.T

    def dump(self, state: FactorState) -> bytes:
        """Factor and class sums; the head follows from them."""
        a = state.accounts
        accounts = {"n_rows": a.n_rows, "energy": a.energy, "cut": a.cut}
        classes = list(state.sums.classes)
        fields = {"classes": classes, "accounts": accounts, "width": state.factor.shape[1]}
        sums = np.ascontiguousarray(to_numpy(state.sums.sums).T)
        tensors = {"factor": to_numpy(state.factor), "sums": sums}
        return pack("factor-state", fields, tensors)

    def load(self, blob: bytes, spec: Spec, seed: int) -> FactorState:
        """The state that ``dump`` wrote."""
        message = unpack(blob, FILE_LIMITS)
        header = message.header
        classes = header.labels("classes", FILE_LIMITS)
        shape = (self.out_features, header.integer("width"))
        rows = message.tensor("sums", "F64", (len(classes), self.out_features))
        a = header.section("accounts")
        state = replace(
            self.init(spec, seed),
            factor=to_device(message.tensor("factor", "F64", shape), self.device),
            sums=ClassSums(classes, to_device(rows, self.device).T, (0,) * len(classes)),
            accounts=Accounts(a.integer("n_rows"), a.number("energy"), a.number("cut")),
        )
        return replace(state, head=solve(state)) if classes else state


def solve(state: FactorState) -> Head | None:
    """W = F diag(sigma^-4) F'B, which is U diag(sigma^-2) U'B."""
    if not state.sums:
        return None
    F = state.factor
    squares = namespace(F).sum(F**2, axis=0)
    W = F @ ((F.T @ state.sums.sums) / (squares**2)[:, None])
    values = to_numpy(squares)
    if not len(values) or not values.min() > 0:
        raise ValueError("LoRanPAC has no direction to solve in: all features are zero")
    route = f"truncated SVD of rank {len(values)}"
    return unregularised_head(
        W, values, state.accounts, state.sums.classes, route, state.phi.fingerprint
    )
