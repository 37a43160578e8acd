r"""The FedRAN paper in one file, to be read beside its System Design and appendix.

The notation is the paper's. A client k holds, in task t, random features H (n, M) and labels. It
sends (V, sigma, B): the leading right singular vectors and values of H, and B = H'Y. The server
keeps one such triple of everything so far, of rank r, and solves a ridge in the span of V.

V (M, r) and sigma (r,) are stored as one matrix, the scaled basis ``V diag(sigma)``: the merge
takes nothing else. With the class sums B and what is known about errors it is an uncentred
``Summary``, so the messages of the paper are those of ``summarize(..., center=None)``.

Every function says which statement of the paper it is. ``tests/test_paper.py`` compares them with
the algorithms as printed and asserts the propositions, theorems and corollaries. What we do
instead, and why, is in docs/explanation/mathematics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import (
    Array,
    Bool,
    Float,
    Float64,
    Int64,
    cast,
    contiguous,
    eps,
    is_numpy_array,
    like,
    linalg_errors,
    namespace,
    to_device,
    to_numpy,
)
from fedran.core._linalg.blas import inner, times
from fedran.core._linalg.truncation import (
    RESOLVED,
    leading,
    loss_beyond,
    resolved,
    square_factor,
)
from fedran.core.errors import positive_integer, real_number
from fedran.core.fingerprint import Fingerprint
from fedran.core.pseudo_labels import PseudoLabels, SomeLabelled
from fedran.core.solve.head import Head, make_head
from fedran.core.solve.ridge import Solution, effective_rank, frobenius
from fedran.core.summarize import summarize
from fedran.core.summary import Summary
from fedran.core.sums.accounts import Loss
from fedran.core.sums.class_sums import ClassSums

LAMBDA = 1e-3
"""The ridge parameter of the evaluation."""
TAU = 0.5
"""Its confidence threshold for pseudo-labels."""


def prototype_labels(Z: ArrayLike | Array, y: Any, tau: float = TAU) -> PseudoLabels:
    r"""Algorithm "Prototype-Based SSL Pseudo-Labeling": nearest class mean, accepted by cosine.

    ``Z`` (n, d) backbone features, ``y`` with None or NaN where a label is missing. The prototype
    p_c is the mean of the client's own rows of class c, of length 1. A row u gets the label
    c* = argmax_c u'p_c / ||u|| if that cosine is at least ``tau``. Rows of zero norm have no
    direction and are never accepted. n d C operations.

    >>> Z = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [-1.0, -1.0]])
    >>> prototype_labels(Z, ["a", "b", None, None]).labels
    ['a', 'b', 'a', None]
    """
    if not -1.0 <= real_number(tau, "tau") <= 1.0:
        raise ValueError(f"tau is a cosine, in -1 .. 1, got {tau!r}")
    rows = SomeLabelled.split(Z, y, "Z")
    if rows.cannot_run:
        return rows.untouched(tau, f"prototype rule, tau {tau:g}: {rows.cannot_run}")
    p = _unit(_class_means(rows.labelled(), rows.codes[rows.has], len(rows.classes)))
    u = rows.unlabelled()
    cosine = to_numpy(_unit(u) @ p.T)
    best = cosine.argmax(axis=1)
    confidence = cosine[np.arange(len(cosine)), best]
    silent = to_numpy(namespace(u).linalg.vector_norm(u, axis=1)) == 0
    return rows.decide(best, confidence, (confidence >= tau) & ~silent, tau, "prototype rule, tau")


def _class_means(
    X: Float[Array, "l d"], codes: Int64[NDArray[Any], " l"], n_classes: int
) -> Float[Array, "{n_classes} d"]:
    onehot = (codes == np.arange(n_classes)[:, None]).astype(np.float64)
    weights = onehot / onehot.sum(axis=1, keepdims=True)
    return namespace(X).astype(like(weights, X), X.dtype) @ X


def _unit(X: Float[Array, "n d"]) -> Float[Array, "n d"]:
    xp = namespace(X)
    norms = xp.linalg.vector_norm(X, axis=1, keepdims=True)
    return X / xp.where(norms > 0, norms, xp.ones_like(norms))


def client_svd(H: Float[Array, "n M"], r: int) -> tuple[Float[Array, "M r"], Loss]:
    """Algorithm "Client-Side Truncated SVD Summary": V diag(sigma), and what was discarded.

    The paper takes a thin SVD of the smaller side of H. Eigenvectors of the Gram of the smaller
    side give the same directions in a fraction of the time, and an SVD is the fallback.
    ``summarize(H, y, r, center=None)`` computes exactly this, beside B and the accounts.
    """
    found = leading(H.T, positive_integer(r, "r"), "H")
    return found.factor, found.loss


def merge_svd(
    a: Float[Array, "M r_a"] | None, b: Float[Array, "M r_b"], r: int
) -> tuple[Float[Array, "M r"], Loss]:
    """Algorithm "Server-Side QR-SVD Subspace Merge" of two scaled bases, at most r columns.

    A = [V_a diag(sigma_a), V_b diag(sigma_b)] = QR and R = U_R diag(sigma) W_R' give
    V = Q U_R[:, :r]. Returned are V diag(sigma) and what was discarded. While A has at most r
    columns, A itself is returned: the rotation would change no product.

    2 M w^2 + O(w^3) operations with large constants, for w columns of A.
    """
    A = b if a is None else namespace(b).concat([a, b], axis=1)
    if A.shape[1] > A.shape[0]:
        A = square_factor(A)
    if A.shape[1] <= r:
        return contiguous(A), Loss()
    xp = namespace(A)
    if is_numpy_array(A):
        Q, R = scipy.linalg.qr(A, mode="economic", check_finite=False)
        U, sigma, _ = scipy.linalg.svd(R, full_matrices=False, check_finite=False)
    else:  # GPU drivers for the SVD of a large R may not return; float64 eigenvectors do
        Q, R = xp.linalg.qr(A, mode="reduced")
        R64 = cast(R, "float64")
        values, U = xp.linalg.eigh(R64 @ R64.T)
        sigma = xp.astype(xp.sqrt(xp.clip(xp.flip(values, axis=0), min=0)), A.dtype)
        U = xp.astype(xp.flip(U, axis=1), A.dtype)
    spectrum = cast(sigma, "float64") ** 2
    k = min(r, sigma.shape[0], resolved(spectrum, (RESOLVED * eps(A)) ** 2))
    return contiguous(Q @ (U[:, :k] * sigma[:k])), loss_beyond(spectrum, k)


def merge(a: Summary | None, b: Summary, r: int) -> Summary:
    """Two summaries in one: V and sigma by ``merge_svd``, B added by class, and the accounts.

    Classes that only one side has are the paper's "zero columns". An empty a is b.
    """
    if a is None or not a.accounts.n_rows:
        a, sums, accounts = None, b.sums, b.accounts
    else:
        sums, accounts = a.sums + b.sums, a.accounts + b.accounts
    factor, lost = merge_svd(None if a is None else a.factor, b.factor, r)
    return replace(
        b, factor=factor, sums=sums, accounts=accounts.after_merge_cut(lost), digest=None
    )


def spatial(summaries: Iterable[Summary], r: int, device: str | None = None) -> Summary:
    """(V_t, sigma_t, B_t): the summaries of one task, merged client after client.

    In float32, on a torch device or (None) in NumPy.
    """
    task: Summary | None = None
    for s in summaries:
        factor = contiguous(to_device(s.factor, device, "float32"), copy=True)
        sums = ClassSums.empty(s.out_features, device) + s.sums
        task = merge(task, replace(s, factor=factor, sums=sums), r)
    if task is None:
        raise ValueError("a task needs the summary of at least one client, got none")
    return task


def temporal(past: Summary | None, task: Summary, r: int) -> Summary:
    """(V_1:t, sigma_1:t, B_1:t): the task, merged with everything before it."""
    return merge(past, task, r)


def subspace_ridge(F: Float[Array, "M w"], B: Float64[Array, "M C"], lam: float) -> Solution:
    r"""Eq. "FedRAN classifier": W = V (diag(sigma^2) + lambda I)^-1 V'B, zero outside span(V).

    F = V diag(sigma). V and sigma are taken from the eigenvectors of F'F in float64, so F need
    not have orthogonal columns. ``outside`` of the solution is ||(I - VV')B||_F of Theorem 2.
    """
    xp = namespace(B)
    K, FtB = inner(F, B)
    if F.shape[1] == 0:
        return Solution(B * 0.0, "no features", 0.0, 0.0, 0.0, frobenius(B))
    with linalg_errors():
        values, U = xp.linalg.eigh(K)  # sigma^2, and V = F U diag(1 / sigma)
    keep = values > K.shape[0] * eps(K) * values[-1]
    values, U = values[keep], U[:, keep]
    projected = (U.T @ FtB) / xp.sqrt(values)[:, None]  # V'B
    scaled = U / xp.sqrt(values)  # V = F @ scaled
    W = times(F, scaled @ (projected / (values + lam)[:, None]))
    outside = B - times(F, scaled @ projected)
    return Solution(W, "subspace", float(values[-1]), effective_rank(K), 0.0, frobenius(outside))


def solve(total: Summary, lam: float = LAMBDA, fingerprint: Fingerprint | None = None) -> Head:
    """The head of (V_1:t, sigma_1:t, B_1:t), with its diagnosis. It predicts argmax_c (h W)_c."""
    solution = subspace_ridge(total.factor, total.class_sums, lam)
    return make_head(solution, total.sums, lam, total.accounts, fingerprint)


def fedran(
    stream: Iterable[Sequence[tuple[Float[Array, "n M"], Any]]], r: int, lam: float = LAMBDA
) -> Head:
    """Algorithm 1 on random features: ``stream[t][k]`` holds H and the labels of one client.

    >>> rng = np.random.default_rng(0)
    >>> H = np.eye(4)[[0, 1, 2, 3]] + 0.1 * rng.random((4, 4))
    >>> head = fedran([[(H[:1], ["a"]), (H[1:2], ["b"])], [(H[2:], ["c", "d"])]], r=4)
    >>> head.predict(H).tolist()
    ['a', 'b', 'c', 'd']
    """
    tasks = ([summarize(H, y, r, center=None) for H, y in task] for task in stream)
    merged = (spatial(task, r) for task in tasks)
    return solve(reduce(lambda past, task: temporal(past, task, r), merged), lam)


def gram_error_bound(
    discarded_locally: Iterable[float], discarded_in_merges: Iterable[float]
) -> float:
    """Theorem 1, eps_G(t) >= ||G* - G~||_2.

    The sum of the first discarded s^2_{r+1} of every client and task, and of the first discarded
    eigenvalue of every merge. ``Accounts.eps_G`` is this sum, plus the rounding of the messages.
    """
    return float(sum(discarded_locally) + sum(discarded_in_merges))


def relative_tail_bound(eta_loc: float, eta_merge: float, L: int, E: float) -> float:
    """Corollary "relative-tail Gram bound": (eta_loc + eta_merge L_t) E_t >= tr(G* - G~).

    Every client discards at most the share eta_loc of its energy, every merge at most eta_merge
    of its trace; E is the energy of all rows and L the most merges that any summary went through.
    """
    return (eta_loc + eta_merge * L) * E


def weight_error_bound(eps_G: float, norm_B: float, outside: float, lam: float) -> float:
    """Theorem 2, eps_W(t) >= ||W* - W||_F: eps_G ||B||_F / lambda^2 + ||(I - VV')B||_F / lambda."""
    return eps_G / lam * norm_B / lam + outside / lam


def score_error_bound(h: Float[NDArray[Any], "n M"], eps_W: float) -> Float[NDArray[Any], " n"]:
    """Corollary "score and prediction stability": ||h||_2 eps_W >= ||s* - s||_2 of each row."""
    return np.linalg.norm(h, axis=1) * eps_W


def same_prediction(
    scores: Float[NDArray[Any], "n C"], h: Float[NDArray[Any], "n M"], eps_W: float
) -> Bool[NDArray[Any], " n"]:
    """The same corollary: rows whose margin exceeds 2 ||h|| eps_W are predicted alike by both.

    The proof is symmetric, so the scores may be those of the full ridge or ours.
    """
    if scores.shape[1] < 2:
        return np.ones(len(scores), dtype=bool)
    top = np.partition(scores, -2, axis=1)
    return np.asarray(top[:, -1] - top[:, -2] > 2 * score_error_bound(h, eps_W))
