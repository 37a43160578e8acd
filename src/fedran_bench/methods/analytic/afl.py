"""AFL: clients send local ridge solutions, the server joins them by its aggregation law."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, eigh

from fedran.core._linalg.blas import mirror, unpack_lower
from fedran.core.errors import Refused
from fedran.core.solve.head import Head
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import (
    FLOAT32_ROUNDING,
    LARGEST_GRAM,
    Positive,
    Raw,
    labelled_rows,
    require_range,
    unregularised_head,
)
from fedran_bench.methods.analytic.gram_based import GramServer, GramState, packed_gram
from fedran_bench.methods.protocol import Claims, ClientData


@dataclass(frozen=True)
class AFL(GramServer):
    """Raw features and a local ridge gamma that the server removes: equals least squares.

    A client sends C_k = F'F + gamma I and W_k = C_k^-1 F'Y; a class it lacks has zero weights.
    The absolute aggregation law is used in the form it reduces to, W = (sum C_k)^-1 sum C_k W_k, so
    the server adds C_k and C_k W_k. Where directions have no rows, the head is the shortest
    solution. Such directions are those that rounding the uploads to float32 can explain.
    """

    gamma: Positive = 1.0
    """The local ridge."""
    name = "AFL"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "yes: equals joint least squares and the weights of the published code"
    removes_ridge: ClassVar[bool] = True
    """Whether the local ridges are removed at the end. The published code evaluates both heads."""
    sends = "packed (d, d) Gram of the raw features, float32, and local weights, float64"
    gram_dtype = "float64"

    def formula(self, in_features: int, n_classes: int) -> int:
        """(d^2 + d C) x 4 bytes."""
        return 4 * (in_features**2 + in_features * n_classes)

    def feature_map(self, in_features: int, seed: int) -> Raw:
        """Z itself."""
        return Raw(in_features)

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """The local ridge over the classes that the client holds."""
        X, classes, codes = labelled_rows(data)
        phi = Raw(X.shape[1])
        total = self.new_total(phi.out_features)
        total.add_rows(phi.blocks(X), classes, codes)
        packed, sums = packed_gram(total).astype(np.float32), total.class_sums.sums
        # W_k belongs to the rounded Gram, so that C_k W_k is F'Y. Where features are large,
        # rounding exceeds gamma and C_k is indefinite: LU factors it all the same.
        W = np.linalg.solve(self._regularised(packed, phi.out_features), sums)
        fields = {"classes": list(classes), "n_rows": len(X)}
        return cstate, pack("afl", fields, {"gram": packed, "weights": np.ascontiguousarray(W.T)})

    def solve(self, state: GramState) -> Head:
        """Least squares, or the ridge of all clients together."""
        total, accounts = state.total, state.total.accounts
        if not self.removes_ridge:
            return super().solve(replace(state, lam=accounts.parts * self.gamma))
        values, U = eigh(total.gram())
        # Rounding moves no eigenvalue further than its own norm (Weyl).
        keep = values > accounts.eps_G
        if not keep.any():
            raise ValueError("AFL has no direction to solve in: all features are zero")
        route = f"least squares over {keep.sum()} of {len(values)} directions"
        values, U = values[keep], U[:, keep]
        W = U @ ((U.T @ total.class_sums.sums) / values[:, None])
        return unregularised_head(W, values, accounts, total.class_sums.classes, route)

    def _regularised(self, packed: NDArray[Any], d: int) -> NDArray[np.float64]:
        """C_k from the packed lower triangle of F'F."""
        return mirror(unpack_lower(packed, d).astype(np.float64)) + self.gamma * np.eye(d)

    def unpack(self, blob: bytes, M: int) -> tuple[NDArray[Any], ClassSums, Accounts]:
        """F'F, C_k W_k and the accounts of an upload, among them the rounding of its Gram."""
        message = unpack(blob, FILE_LIMITS)
        header = message.of_kind("afl").header
        classes, n_rows = header.labels("classes", FILE_LIMITS), header.integer("n_rows")
        packed = message.tensor("gram", "F32", (M * (M + 1) // 2,))
        rows = message.tensor("weights", "F64", (len(classes), M))
        require_range(packed, "gram", LARGEST_GRAM)
        require_range(rows, "weights", LARGEST_GRAM)
        C = self._regularised(packed, M)
        G = C - self.gamma * np.eye(M)
        rounding = FLOAT32_ROUNDING / 2 * float(np.linalg.norm(G))
        try:
            cho_factor(G + max(self.gamma, 2 * rounding) * np.eye(M), lower=True, overwrite_a=True)
        except LinAlgError:
            raise Refused("gram", "no negative eigenvalue beyond rounding", "one") from None
        accounts = Accounts(n_rows, float(np.trace(G)), eps_G=rounding, parts=int(n_rows > 0))
        sums = ClassSums(classes, C @ rows.T, (0,) * len(classes))  # AFL needs no counts
        return packed.astype(np.float64), sums, accounts


@dataclass(frozen=True)
class AFLRidgeKept(AFL):
    """The head before the ridges are removed: a joint ridge of gamma times the uploads."""

    name = "AFL (ridge kept)"
    claims = Claims(order_free=True)
    verified = "yes: equals a joint ridge and the weights of the published code"
    removes_ridge: ClassVar[bool] = False
