"""LoRanPAC without adapters: pooled rows, a truncated SVD that grows, no ridge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedran.core._linalg.arrays import Array, cast, like, namespace, to_device, to_numpy
from fedran.core._linalg.truncation import leading
from fedran.core.accounts import Accounts
from fedran.core.exact_sum import contiguous
from fedran.core.features import RandomFeatures
from fedran.core.head import Head
from fedran.core.labels import Label, encode_labels, ordered
from fedran.core.summarize import class_sums
from fedran.methods.analytic.pooled import RowsClient
from fedran.methods.analytic.unregularised import unregularised_head
from fedran.methods.protocol import Claims, Spec
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS

BLOCK_ROWS = 10_000
"""Rows that are taken in at once."""
MAX_RANK = 10_000
KEEP = 0.75
"""Share of the rows so far, and of M, that may stay as directions."""


@dataclass(frozen=True)
class FactorState:
    """F = U diag(sigma) (M, w) with orthogonal columns, class sums, and the newest head."""

    phi: RandomFeatures
    factor: Array
    sums: dict[Label, Any]
    accounts: Accounts
    head: Head | None = None


@dataclass(frozen=True)
class LoRanPAC(RowsClient):
    """W = U diag(sigma^-2) U'B. Centralised; published at M = 100,000, here at any M.

    The published incremental SVD is replaced by eigenvectors of the smaller Gram in float64,
    which find the same directions: M^3 operations a block of 10,000 rows. Without a ridge the
    smallest direction counts as much as the largest, so the factor is float64 too.
    """

    out_features: int = 8192
    device: str | None = None

    name = "LoRanPAC"
    claims = Claims()
    verified = "partly: equals a dense truncated SVD; published at M = 100,000 with a GPU"

    def init(self, spec: Spec, seed: int) -> FactorState:
        """No direction yet."""
        phi = RandomFeatures(spec.in_features, self.out_features, seed=seed)
        empty = to_device(np.zeros((self.out_features, 0)), self.device)
        return FactorState(phi, empty, {}, Accounts())

    def aggregate(
        self,
        state: FactorState,
        task: int,
        round_: int,
        uploads: dict[str, bytes],
    ) -> FactorState:
        """Take the rows in, block by block, truncate, solve."""
        X, y = self.rows(list(uploads.values()), state.phi.in_features)
        classes, codes = encode_labels(y, len(y))
        sums = dict(state.sums)
        for start in range(0, len(X), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            H = cast(state.phi(to_device(X[rows], self.device)), "float64")
            B = to_numpy(class_sums(H, codes[rows], len(classes)))
            for j, c in enumerate(classes):
                sums[c] = sums.get(c, 0.0) + B[:, j]
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
        classes = ordered(state.sums)
        rows = [state.sums[c] for c in classes] or [np.zeros((0, self.out_features))]
        a = state.accounts
        accounts = {"n_rows": a.n_rows, "energy": a.energy, "cut": a.cut}
        fields = {"classes": list(classes), "accounts": accounts, "width": state.factor.shape[1]}
        tensors = {"factor": to_numpy(state.factor), "sums": np.vstack(rows)}
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
            sums=dict(zip(classes, rows, strict=True)),
            accounts=Accounts(a.integer("n_rows"), a.number("energy"), a.number("cut")),
        )
        return replace(state, head=solve(state)) if classes else state


def solve(state: FactorState) -> Head | None:
    """W = F diag(sigma^-4) F'B, which is U diag(sigma^-2) U'B."""
    classes = ordered(state.sums)
    if not classes:
        return None
    F = state.factor
    squares = namespace(F).sum(F**2, axis=0)
    B = like(np.stack([state.sums[c] for c in classes], axis=1), F)
    W = F @ ((F.T @ B) / (squares**2)[:, None])
    values = to_numpy(squares)
    if not len(values) or not values.min() > 0:
        raise ValueError("LoRanPAC has no direction to solve in: all features are zero")
    route = f"truncated SVD of rank {len(values)}"
    return unregularised_head(W, values, state.accounts, classes, route, state.phi.fingerprint)
