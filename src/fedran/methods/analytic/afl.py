"""AFL: clients send local ridge solutions, the server joins them by its aggregation law."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh

from fedran.core._linalg.arrays import Array
from fedran.core._linalg.blas import mirror, unpack_lower
from fedran.core.accounts import Accounts
from fedran.core.exact import ExactSum
from fedran.core.head import Head
from fedran.core.labels import Label, ordered
from fedran.methods.analytic.base import (
    LARGEST_GRAM,
    HeadMethod,
    Positive,
    labelled_rows,
    require_range,
    unregularised_head,
)
from fedran.methods.analytic.feature_maps import Raw
from fedran.methods.protocol import Claims, ClientData, Spec
from fedran.wire.container import Container, pack, unpack
from fedran.wire.validation import FILE_LIMITS

CUTOFF = 4e-6
"""Directions below this share of the largest eigenvalue are rounding errors of float32 Grams."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class AflState:
    """Joined weights W (d, C) and regularised Gram (d, d) of ``members`` uploads."""

    phi: Raw
    weights: dict[Label, Matrix] = field(default_factory=dict)
    gram: Matrix | None = None
    members: int = 0
    n_rows: int = 0
    head: Head | None = None


@dataclass(frozen=True)
class AFL(HeadMethod):
    """Raw features and a local ridge gamma that the server removes: equals least squares.

    A client sends C_k = F'F + gamma I and W_k = C_k^-1 F'Y; a class it lacks has zero weights.
    """

    gamma: Positive = 1.0
    """The local ridge, which the server removes again."""

    name = "AFL"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    sends = "packed (d, d) Gram of the raw features, float32, and local weights, float64"
    verified = "partly: equals joint least squares and the printed law; tables use other backbones"

    def formula(self, in_features: int, n_classes: int) -> int:
        """(d^2 + d C) x 4 bytes."""
        return 4 * (in_features**2 + in_features * n_classes)

    def init(self, spec: Spec, seed: int) -> AflState:
        """No client yet."""
        return AflState(Raw(spec.in_features))

    def client(
        self,
        cstate: None,
        message: bytes,
        data: ClientData,
        seed: int,
    ) -> tuple[None, bytes]:
        """The local ridge over the classes that the client holds."""
        X, classes, codes = labelled_rows(data)
        phi = Raw(X.shape[1])
        total = ExactSum(phi.out_features, stack=False)
        total.add_rows(phi.blocks(X), classes, codes)
        packed, sums = total.packed_gram(), total.class_sums.sums
        C = full(packed, phi.out_features) + self.gamma * np.eye(phi.out_features)
        W = _solve(C, sums) if len(classes) else sums
        fields = {"classes": list(classes), "n_rows": len(X)}
        return cstate, pack("afl", fields, {"gram": packed, "weights": np.ascontiguousarray(W.T)})

    def aggregate(
        self,
        state: AflState,
        task: int,
        round_: int,
        uploads: dict[str, bytes],
    ) -> AflState:
        """Join client after client, then remove the local ridges."""
        for blob in uploads.values():
            state = self._join(state, unpack(blob, FILE_LIMITS))
        return replace(state, head=self._finish(state))

    def _join(self, state: AflState, message: Container) -> AflState:
        d = state.phi.out_features
        header = message.of_kind("afl").header
        classes, n_rows = header.labels("classes", FILE_LIMITS), header.integer("n_rows")
        packed = message.tensor("gram", "F32", (d * (d + 1) // 2,))
        rows = message.tensor("weights", "F64", (len(classes), d))
        require_range(packed, "gram", LARGEST_GRAM)
        require_range(rows, "weights", LARGEST_GRAM)
        if not n_rows:
            return state
        C = full(packed, d) + self.gamma * np.eye(d)
        known = ordered({*state.weights, *classes})
        arrived = _columns(dict(zip(classes, rows, strict=True)), known, d)
        if state.gram is not None:
            arrived, C = join(_columns(state.weights, known, d), state.gram, arrived, C)
        return replace(
            state,
            weights=dict(zip(known, arrived.T, strict=True)),
            gram=C,
            members=state.members + 1,
            n_rows=state.n_rows + n_rows,
        )

    def _finish(self, state: AflState) -> Head | None:
        if state.gram is None:
            return None
        classes = ordered(state.weights)
        added = state.members * self.gamma
        W = _columns(state.weights, classes, len(state.gram))
        G = state.gram - added * np.eye(len(state.gram))
        values, U = eigh(G)
        keep = values > max(CUTOFF * values[-1], 0.0)
        if not keep.any():
            raise ValueError("AFL has no direction to solve in: all features are zero")
        values, U = values[keep], U[:, keep]
        W = U @ ((1 + added / values)[:, None] * (U.T @ W))
        accounts = Accounts(state.n_rows, float(np.trace(G)))
        route = f"least squares over {len(values)} of {len(G)} directions"
        return unregularised_head(W, values, accounts, classes, route)

    def dump(self, state: AflState) -> bytes:
        """Weights and Gram; the head follows from them."""
        d = state.phi.out_features
        classes = ordered(state.weights)
        fields = {"classes": list(classes), "members": state.members, "n_rows": state.n_rows}
        gram = np.zeros((d, d)) if state.gram is None else state.gram
        rows = np.ascontiguousarray(_columns(state.weights, classes, d).T)
        return pack("afl-state", fields, {"gram": gram, "weights": rows})

    def load(self, blob: bytes, spec: Spec, seed: int) -> AflState:
        """The state that ``dump`` wrote."""
        message = unpack(blob, FILE_LIMITS)
        d = spec.in_features
        classes = message.header.labels("classes", FILE_LIMITS)
        rows = message.tensor("weights", "F64", (len(classes), d))
        members = message.header.integer("members")
        state = AflState(
            Raw(d),
            dict(zip(classes, rows, strict=True)),
            message.tensor("gram", "F64", (d, d)) if members else None,
            members,
            message.header.integer("n_rows"),
        )
        return replace(state, head=self._finish(state))


def join(Wu: Matrix, Cu: Matrix, Wv: Matrix, Cv: Matrix) -> tuple[Matrix, Matrix]:
    """The absolute aggregation law in the form it reduces to: (Cu + Cv)^-1 (Cu Wu + Cv Wv)."""
    C = Cu + Cv
    return _solve(C, Cu @ Wu + Cv @ Wv), C


def full(packed: NDArray[Any], d: int) -> Matrix:
    """A packed lower triangle as a symmetric float64 matrix."""
    return mirror(unpack_lower(packed, d).astype(np.float64))


def _solve(C: Matrix, B: Array) -> Matrix:
    return cho_solve(cho_factor(C, lower=True), B)


def _columns(weights: dict[Label, Matrix], classes: tuple[Label, ...], d: int) -> Matrix:
    columns = [weights.get(c, np.zeros(d)) for c in classes]
    return np.stack(columns, axis=1) if columns else np.zeros((d, 0))
