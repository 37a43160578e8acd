"""Groups of nearby rows: k-means by inner products, with a least number of rows per group."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Float32, Float64, Int64
from fedran.core._linalg.blas import gram

BLOCK_ROWS = 4096
"""Rows that are grouped together; more rows are grouped block by block, unless a block would
then be smaller than the smallest group."""
STEPS = 25
"""Most steps of Lloyd's iteration."""


def group_rows(
    X: Float32[NDArray[Any], "n d"], group_size: int, min_group: int
) -> Int64[NDArray[Any], " n"]:
    """The group of each row, numbered from 0, for groups of about ``group_size`` nearby rows.

    k-means++ seeds and Lloyd's iteration make groups of ``group_size - min_group + 1`` rows on
    average. Groups of fewer than ``min_group`` rows then join another group, the smallest first,
    where that adds least to the squared distances from the means (Ward's criterion). Only inner
    products of the rows are used: d n^2 operations for them, and n^2 k per step. The result
    depends on the rows alone.
    """
    n = len(X)
    groups = np.empty(n, dtype=np.int64)
    n_blocks = max(1, min(-(-n // BLOCK_ROWS), n // min_group))
    start = 0
    for rows in np.array_split(np.arange(n), n_blocks):
        K = gram(X[rows].T).astype(np.float64)
        k = max(1, round(len(rows) / max(1, group_size - min_group + 1)))
        groups[rows] = start + _merge_small(K, _lloyd(K, _seeds(K, k)), min_group)
        start = int(groups[rows].max(initial=-1)) + 1
    return groups


def _seeds(K: Float64[NDArray[Any], "n n"], k: int) -> Int64[NDArray[Any], " n"]:
    """The nearest of k rows, chosen by k-means++, for each row."""
    generator = np.random.RandomState(0)
    norms = np.diagonal(K)
    nearest = np.zeros(len(K), dtype=np.int64)
    chosen = int(generator.randint(len(K)))
    distance = norms - 2 * K[chosen] + norms[chosen]
    for seed in range(1, k):
        total = np.cumsum(np.maximum(distance, 0.0))
        if total[-1] <= 0:
            break
        chosen = int(np.searchsorted(total, generator.random_sample() * total[-1]))
        other = norms - 2 * K[chosen] + norms[chosen]
        closer = other < distance
        nearest[closer], distance[closer] = seed, other[closer]
    return nearest


def _lloyd(
    K: Float64[NDArray[Any], "n n"], groups: Int64[NDArray[Any], " n"]
) -> Int64[NDArray[Any], " n"]:
    """Move every row to the group with the nearest mean until nothing moves."""
    for _ in range(STEPS):
        products, squares, _ = _to_means(K, groups)
        moved = np.argmin(squares - 2 * products, axis=1)
        if np.array_equal(moved, groups):
            break
        groups = moved
    return np.unique(groups, return_inverse=True)[1]


def _merge_small(
    K: Float64[NDArray[Any], "n n"], groups: Int64[NDArray[Any], " n"], min_group: int
) -> Int64[NDArray[Any], " n"]:
    """Let every group below ``min_group`` rows join another."""
    products, _, counts = _to_means(K, groups)
    onehot = groups[:, None] == np.arange(len(counts))
    return join_small(onehot.T.astype(np.float64) @ (products * counts), groups, min_group)


def join_small(
    sums: Float64[NDArray[Any], "k k"], groups: Int64[NDArray[Any], " n"], min_group: int
) -> Int64[NDArray[Any], " n"]:
    """Let every group below ``min_group`` rows join another by Ward's criterion.

    ``sums`` has the inner products of the sums of the groups, and is changed: joining two groups
    adds their rows and columns. Joining groups of n and m rows adds n m / (n + m) times the squared
    distance of their means to the squared residuals. The nearest mean alone would let outliers
    join the largest groups.
    """
    counts = np.bincount(groups)
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


def _to_means(
    K: Float64[NDArray[Any], "n n"], groups: Int64[NDArray[Any], " n"]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Inner products of rows and group means (n, k), squared norms of the means, rows per group.

    Groups without rows are left out of the numbering by an infinite squared norm.
    """
    k = int(groups.max()) + 1
    counts = np.bincount(groups, minlength=k)
    order = np.argsort(groups, kind="stable")
    filled = np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[filled]
    products = np.zeros((len(K), k))
    products[:, filled] = np.add.reduceat(K[:, order], starts, axis=1) / counts[filled]
    squares = np.full(k, np.inf)
    squares[filled] = (
        np.add.reduceat(products[order], starts, axis=0)[np.arange(len(filled)), filled]
        / counts[filled]
    )
    return products, squares, counts
