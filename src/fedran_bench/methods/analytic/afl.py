"""AFL: clients send local ridge solutions, the server joins them by its aggregation law."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, eigh

from fedran.core._linalg.blas import mirror, unpack_lower
from fedran.core.errors import Refused
from fedran.core.labels import Label, ordered
from fedran.core.solve.head import Head, make_head
from fedran.core.solve.ridge import solve_gram
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums
from fedran.core.sums.exact_sum import ExactSum
from fedran.wire.container import Container, pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import (
    LARGEST_GRAM,
    AnalyticMethod,
    Positive,
    Raw,
    labelled_rows,
    require_range,
    unregularised_head,
)
from fedran_bench.methods.protocol import Claims, ClientData, Spec, Uploads

ROUNDING = 2.0**-24
"""Largest relative error of a number that is rounded to float32."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class AflState:
    """Joined weights W (d, C) and regularised Gram (d, d) of ``members`` uploads.

    ``rounding`` bounds the spectral norm of all errors that the uploads made when they rounded
    their Grams to float32.
    """

    phi: Raw
    weights: dict[Label, Matrix] = field(default_factory=dict)
    gram: Matrix | None = None
    members: int = 0
    n_rows: int = 0
    rounding: float = 0.0
    head: Head | None = None


@dataclass(frozen=True)
class AFL(AnalyticMethod):
    """Raw features and a local ridge gamma that the server removes: equals least squares.

    A client sends C_k = F'F + gamma I and W_k = C_k^-1 F'Y; a class it lacks has zero weights.
    Where directions have no rows, the head is the shortest solution. Such directions are those
    that rounding the uploads to float32 can explain.
    """

    gamma: Positive = 1.0
    """The local ridge."""
    name = "AFL"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "yes: equals joint least squares and the weights of the published code"
    removes_ridge: ClassVar[bool] = True
    """Whether the local ridges are removed at the end. The published code evaluates both heads."""
    sends = "packed (d, d) Gram of the raw features, float32, and local weights, float64"

    def formula(self, in_features: int, n_classes: int) -> int:
        """(d^2 + d C) x 4 bytes."""
        return 4 * (in_features**2 + in_features * n_classes)

    def init(self, spec: Spec, seed: int) -> AflState:
        """No client yet."""
        return AflState(Raw(spec.in_features))

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """The local ridge over the classes that the client holds."""
        X, classes, codes = labelled_rows(data)
        phi = Raw(X.shape[1])
        total = ExactSum(phi.out_features, "float64", stack=False)
        total.add_rows(phi.blocks(X), classes, codes)
        packed, sums = total.packed_gram().astype(np.float32), total.class_sums.sums
        # W_k belongs to the rounded Gram, so that C_k W_k is F'Y. Where features are large,
        # rounding exceeds gamma and C_k is indefinite: LU factors it all the same.
        C = full(packed, phi.out_features) + self.gamma * np.eye(phi.out_features)
        W = np.linalg.solve(C, sums)
        fields = {"classes": list(classes), "n_rows": len(X)}
        return cstate, pack("afl", fields, {"gram": packed, "weights": np.ascontiguousarray(W.T)})

    def aggregate(self, state: AflState, task: int, round_: int, uploads: Uploads) -> AflState:
        """Join client after client, then solve for the head."""
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
        C = full(packed, d)
        rounding = ROUNDING * float(np.linalg.norm(C))
        try:
            cho_factor(C + max(self.gamma, 2 * rounding) * np.eye(d), lower=True, overwrite_a=True)
        except LinAlgError:
            raise Refused("gram", "no negative eigenvalue beyond rounding", "one") from None
        C += self.gamma * np.eye(d)
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
            rounding=state.rounding + rounding,
        )

    def _finish(self, state: AflState) -> Head | None:
        if state.gram is None:
            return None
        classes = ordered(state.weights)
        added = state.members * self.gamma
        W = _columns(state.weights, classes, len(state.gram))
        G = state.gram - added * np.eye(len(state.gram))
        accounts = Accounts(state.n_rows, float(np.trace(G)))
        if not self.removes_ridge:
            B = state.gram @ W
            solution = solve_gram(np.asfortranarray(G), B, added)
            sums = ClassSums(classes, B, (0,) * len(classes))  # AFL needs no counts
            return make_head(solution, sums, added, accounts)
        values, U = eigh(G)
        # Rounding moves no eigenvalue further than its own norm (Weyl).
        keep = values > state.rounding
        if not keep.any():
            raise ValueError("AFL has no direction to solve in: all features are zero")
        values, U = values[keep], U[:, keep]
        W = U @ ((1 + added / values)[:, None] * (U.T @ W))
        route = f"least squares over {len(values)} of {len(G)} directions"
        return unregularised_head(W, values, accounts, classes, route)


@dataclass(frozen=True)
class AFLRidgeKept(AFL):
    """The head before the ridges are removed: a joint ridge of gamma times the uploads."""

    name = "AFL (ridge kept)"
    claims = Claims(order_free=True)
    verified = "yes: equals a joint ridge and the weights of the published code"
    removes_ridge: ClassVar[bool] = False


def join(Wu: Matrix, Cu: Matrix, Wv: Matrix, Cv: Matrix) -> tuple[Matrix, Matrix]:
    """The absolute aggregation law in the form it reduces to: (Cu + Cv)^-1 (Cu Wu + Cv Wv)."""
    C = Cu + Cv
    return np.linalg.solve(C, Cu @ Wu + Cv @ Wv).astype(np.float64, copy=False), C


def full(packed: NDArray[Any], d: int) -> Matrix:
    """A packed lower triangle as a symmetric float64 matrix."""
    return mirror(unpack_lower(packed, d).astype(np.float64))


def _columns(weights: dict[Label, Matrix], classes: tuple[Label, ...], d: int) -> Matrix:
    columns = [weights.get(c, np.zeros(d)) for c in classes]
    return np.stack(columns, axis=1) if columns else np.zeros((d, 0))
