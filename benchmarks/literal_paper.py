"""The paper's algorithms written down as printed, for comparison: thin SVDs and QR-SVD merges."""

from __future__ import annotations

import numpy as np


def client_svd(H, rank):
    """Algorithm "Client-Side Truncated SVD Summary": top right singular vectors and values."""
    k = min(rank, *H.shape)
    if H.shape[0] <= H.shape[1]:
        _, s, Vt = np.linalg.svd(H, full_matrices=False)
        return Vt[:k].T, s[:k]
    V, s, _ = np.linalg.svd(H.T, full_matrices=False)
    return V[:, :k], s[:k]


def merge_svd(a, b, rank):
    """Algorithm "Server-Side QR-SVD Subspace Merge"."""
    if a is None:
        return b[0][:, :rank], b[1][:rank]
    A = np.concatenate([a[0] * a[1], b[0] * b[1]], axis=1)
    Q, R = np.linalg.qr(A)
    U, s, _ = np.linalg.svd(R)
    return Q @ U[:, :rank], s[:rank]


def class_sums(H, y, classes):
    """B = H'Y for one-hot Y."""
    Y = (y[:, None] == classes).astype(H.dtype)
    return H.T @ Y


def subspace_head(V, s, B, lam):
    """W = V (diag(s^2) + lambda I)^-1 V'B."""
    return V @ ((V.T @ B) / (s**2 + lam)[:, None])
