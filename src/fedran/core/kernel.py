"""The kernel by which a head compares rows of unit norm, and means of groups of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedran.core._linalg.arrays import Array, Float, is_numpy_array, namespace
from fedran.core._linalg.blas import matmul

BLOCK_BYTES = 64 * 2**20
"""Largest block of kernel values, or of features, that is computed at a time."""


def kernel(A: Float[Array, "n d"], B: Float[Array, "m d"], scale: float) -> Float[Array, "n m"]:
    """exp((a'b - 1) / scale) for all pairs: the Gaussian kernel where rows have unit norm.

    With the mean of a group in place of a row it is, to first order, the mean of the kernel over
    the group, because the members have unit norm.
    """
    xp = namespace(A)
    K = matmul(A, B.T)
    K -= 1
    K /= scale
    return xp.exp(K, out=K) if is_numpy_array(K) else xp.exp(K)


def blocks(
    n: int, columns: int, bytes_per_value: int = 4, most: int = BLOCK_BYTES
) -> Iterator[slice]:
    """Slices of n rows of which ``columns`` values each take at most so many bytes, or one row."""
    step = max(1, most // (bytes_per_value * max(1, columns)))
    return (slice(i, min(i + step, n)) for i in range(0, n, step))


def diagonal(
    squares: Float[Array, " n"], counts: Float[Array, " n"], scale: float
) -> Float[Array, " n"]:
    """The kernel of each group with itself, from the squared norm of its mean and its rows.

    Of a single row it is 1. Of n rows it is d + max(0, 1 - d) / n with d = exp((mu'mu - 1) /
    scale): the mean over pairs of members, n of which are pairs of a row with itself.
    """
    xp = namespace(squares)
    d = xp.exp((squares - 1) / scale)
    return d + xp.clip(1 - d, min=0.0) / counts


def kernel_scale(means: Float[Array, "n d"], counts: Float[Array, " n"], factor: float) -> float:
    """``factor`` times the mean squared distance of two rows, 2 - 2 ||mean row||^2."""
    xp = namespace(means)
    weights = counts / xp.sum(counts)
    mean = xp.astype(weights, means.dtype) @ means
    distance = 2 - 2 * float(xp.sum(mean * mean))
    return factor * max(distance, 1e-3) if math.isfinite(distance) else factor
