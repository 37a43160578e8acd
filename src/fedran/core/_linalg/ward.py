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
from fedran.core._linalg.kmeans import join_small

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
        k = max(1, round(len(rows) / group_size))
        if k == len(rows) and min_group == 1:
            found = np.arange(k)
        else:
            K = exact_products(X[rows])
            found = _merge_small(K, _cut(K, k), min_group)
        groups[rows] = start + found
        start += int(found.max(initial=-1)) + 1
    return groups


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
    """Let every group below ``min_group`` rows join another, by exact sums."""
    counts = np.bincount(groups)
    if counts.min() >= min_group:
        return groups
    order = np.argsort(groups, kind="stable")
    starts = np.cumsum(counts) - counts
    sums = np.add.reduceat(np.add.reduceat(K[:, order], starts, axis=1)[order], starts, axis=0)
    return join_small(sums, groups, min_group)
