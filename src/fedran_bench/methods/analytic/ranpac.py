"""RanPAC without its first phase: pooled rows, the exact Gram, a ridge searched on each task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, cast, to_device, to_numpy
from fedran.core._linalg.blas import gram
from fedran.core._linalg.cholesky import solve_definite
from fedran.core.labels import encode_labels
from fedran.core.solve.ridge import solve_stack
from fedran.core.sums.class_sums import sum_by_code
from fedran_bench.methods.analytic.base import OptionalKind, Width
from fedran_bench.methods.analytic.gram_based import GramState
from fedran_bench.methods.protocol import Claims, Uploads
from fedran_bench.methods.yardsticks import SendFeatures

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
