"""Groups of nearby rows by Ward's method, with a least number of rows per group.

Distances come from inner products of rows rounded to integers, which are exact in any order of
summation. So groups do not depend on threads, processor or library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fedran.core._linalg.arrays import Float32, Float64, Int64
from fedran.core._linalg.blas import gram

BLOCK_ROWS = 4096
"""Rows that are grouped together; more rows are grouped block by block, unless a block would
then be smaller than the smallest group. Time and memory grow with the square of a block."""
EXACT = 2**12
"""Norm of a row of integers up to which every partial sum of an inner product fits in the 24 bits
of a float32."""


def group_rows(
    X: Float32[NDArray[Any], "n d"], group_size: float, min_group: int = 1
) -> Int64[NDArray[Any], " n"]:
    """The group of each row, numbered from 0, for groups of about ``group_size`` nearby rows.

    Groups of fewer than ``min_group`` rows join another group, the smallest first, where that adds
    least to the squared distances from the means, which is Ward's criterion again. Rows have norms
    of at most 1.
    """
    n = len(X)
    groups = np.empty(n, dtype=np.int64)
    n_blocks = max(1, min(-(-n // BLOCK_ROWS), n // min_group))
    start = 0
    for rows in np.array_split(np.arange(n), n_blocks):
        k = max(1, round((rows[-1] + 1) / group_size) - round(rows[0] / group_size))
        if k == len(rows) and 1 in (k, min_group):
            found = np.arange(k)
        else:
            K = exact_products(X[rows])
            found = _merge_small(K, _cut(K, k), min_group)
        groups[rows] = start + found
        start += int(found.max(initial=-1)) + 1
    return groups


def group_means(
    X: Float32[NDArray[Any], "n d"], groups: Int64[NDArray[Any], " n"], counts: NDArray[Any]
) -> tuple[Float32[NDArray[Any], "g d"], NDArray[Any]]:
    """The mean of each group and its total count, where row i stands for ``counts[i]`` rows."""
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(groups.max(initial=-1) + 1))
    sums = np.add.reduceat((X * counts[:, None])[order], starts, axis=0, dtype=np.float64)
    totals = np.add.reduceat(counts[order], starts)
    return (sums / totals[:, None]).astype(np.float32), totals


def exact_products(X: Float32[NDArray[Any], "n d"]) -> Float64[NDArray[Any], "n n"]:
    """Inner products of rows of norm at most 1, rounded to integers."""
    size = EXACT - np.sqrt(X.shape[1]) / 2 - 8
    return gram(np.rint(X * np.float32(size)).T).astype(np.float64)


def _cut(K: Float64[NDArray[Any], "n n"], k: int) -> Int64[NDArray[Any], " n"]:
    """Ward's k groups of rows with inner products K."""
    norms = np.diagonal(K)
    distances = np.sqrt(norms[:, None] + norms - 2 * K)
    found = fcluster(linkage(squareform(distances, checks=False), "ward"), k, "maxclust")
    return np.unique(found, return_inverse=True)[1]


def _merge_small(
    K: Float64[NDArray[Any], "n n"], groups: Int64[NDArray[Any], " n"], min_group: int
) -> Int64[NDArray[Any], " n"]:
    """Let every group below ``min_group`` rows join another by Ward's criterion.

    Joining groups of n and m rows adds n m / (n + m) times the squared distance of their means to
    the squared residuals. The nearest mean alone would let outliers join the largest groups. The
    inner products of the sums of groups are exact, and those of two groups that join add.
    """
    counts = np.bincount(groups)
    if counts.min() >= min_group:
        return groups
    order = np.argsort(groups, kind="stable")
    starts = np.cumsum(counts) - counts
    sums = np.add.reduceat(np.add.reduceat(K[:, order], starts, axis=1)[order], starts, axis=0)
    target = np.arange(len(counts))
    while True:
        alive = np.flatnonzero(counts)
        small = alive[np.argmin(counts[alive])]
        if len(alive) < 2 or counts[small] >= min_group:
            break
        others = alive[alive != small]
        n, m = counts[small], counts[others]
        distance = sums[small, small] / n**2 - 2 * sums[small, others] / (n * m)
        distance += sums[others, others] / m**2
        into = others[np.argmin(distance * n * m / (n + m))]
        sums[into] += sums[small]
        sums[:, into] += sums[:, small]
        counts[into] += counts[small]
        counts[small] = 0
        target[target == small] = into
    return np.unique(target[groups], return_inverse=True)[1]
