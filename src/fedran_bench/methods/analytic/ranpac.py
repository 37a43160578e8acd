"""RanPAC and LoRanPAC without their training: all rows in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, cast, contiguous, namespace, to_device, to_numpy
from fedran.core._linalg.blas import gram
from fedran.core._linalg.cholesky import solve_definite
from fedran.core._linalg.truncation import leading
from fedran.core.features import RandomFeatures
from fedran.core.labels import encode_labels
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import solve_stack
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums, sum_by_code
from fedran_bench.methods.analytic.base import OptionalKind, Width, unregularised_head
from fedran_bench.methods.analytic.gram_based import GramState
from fedran_bench.methods.protocol import Claims, Spec, Uploads
from fedran_bench.methods.yardsticks import RowsClient, SendFeatures

GRID = tuple(10.0**k for k in range(-8, 9))
FIT_SHARE = 0.8


@dataclass(frozen=True)
class RanPAC(SendFeatures):
    """Centralised. Lambda from 1e-8 .. 1e8 by squared error on a fifth of the newest task.

    In float64: the published float32 would make small lambdas, which a search on one task may
    choose, unusable on the Gram of all tasks. Costs 17 factorisations of an (M, M) matrix per
    task, or of an (n, n) one where a task has few rows.
    """

    out_features: Width = 10_000
    """M, the number of random features."""
    kind: OptionalKind = "relu"
    """Of the random features; the published code uses relu."""
    device: str | None = None

    name = "RanPAC"
    gram_dtype = "float64"
    claims = Claims()
    verified = "partly: search and solve equal a dense reference; its first phase is left out"

    def aggregate(self, state: GramState, task: int, round_: int, uploads: Uploads) -> GramState:
        """Search on the task's rows, then as with features."""
        X, y = self.rows(list(uploads.values()), state.phi.in_features)
        classes, codes = encode_labels(y, len(y))
        order = np.random.default_rng(task).permutation(len(X))
        H = state.phi(to_device(X[order], self.device))
        state.lam = search(H, codes[order], len(classes)) if len(X) > 1 else state.lam
        del H
        return self.add_rows(state, X, y)


def search(H: Array, codes: NDArray[np.int64], n_classes: int) -> float:
    """The lambda of the grid whose fit on the first 80 % of the rows errs least on the rest."""
    n = max(1, int(FIT_SHARE * len(codes)))
    # In float64 throughout: what rounding leaves of B outside the rows is divided by lambda.
    fit, rest = cast(H[:n], "float64"), cast(H[n:], "float64")
    B = sum_by_code(fit, codes[:n], n_classes)
    targets = np.eye(n_classes)[codes[n:]]
    few = n <= H.shape[1] // 4
    # Column-major, so that every factorisation happens in the matrix's own upper triangle.
    G = fit[:0] if few else gram(fit)
    if isinstance(G, np.ndarray):
        G = np.asfortranarray(G)
    errors = {}
    for lam in GRID:
        try:
            if few:
                W = solve_stack(fit.T, B, lam).weights
            else:
                W, _, _ = solve_definite(G, B, lam, fallbacks=False)
        except np.linalg.LinAlgError:
            continue  # below rounding: not a candidate
        scores = to_numpy(rest @ W)
        errors[lam] = float(np.mean((scores - targets) ** 2))
    return min(errors, key=lambda lam: errors[lam])


SVD_ROWS = 10_000
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
        for start in range(0, len(X), SVD_ROWS):
            rows = slice(start, start + SVD_ROWS)
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
