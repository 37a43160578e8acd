"""Partitioners: how the rows of one task are distributed over the clients.

Each partitioner takes the task's rows per class and returns one array of rows per client. Every
row goes to exactly one client. A client may get no row unless the partitioner says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Partitioner = Callable[[Sequence[Rows], np.random.Generator], list[Rows]]
"""(rows of each class, generator) -> rows of each client."""

TRIES = 1000
"""Number of draws after which a partition is considered impossible."""


def dirichlet(
    rows_of_classes: Sequence[Rows], n_clients: int, beta: float, rng: np.random.Generator
) -> list[Rows]:
    """Split each class, shuffled, in shares p ~ Dirichlet(beta, ..., beta).

    The smaller beta, the fewer clients hold a class. Cumulative shares are rounded down to rows.
    Client sizes are not balanced: a client may hold most rows of a task, or none.

    >>> parts = dirichlet([np.arange(10)], 3, beta=0.5, rng=np.random.default_rng(0))
    >>> sorted(np.concatenate(parts).tolist()) == list(range(10))
    True
    """
    _check(n_clients, beta)
    split = []
    for rows in rows_of_classes:
        shuffled = rng.permutation(rows)
        split.append(_cut(shuffled, rng.dirichlet([beta] * n_clients)))
    empty = np.zeros(0, dtype=np.int64)
    return [np.concatenate([empty, *(parts[k] for parts in split)]) for k in range(n_clients)]


def capped(
    rows_of_classes: Sequence[Rows], n_clients: int, beta: float, rng: np.random.Generator
) -> list[Rows]:
    """Like ``dirichlet``, but a client that holds N/K rows gets no rows of further classes.

    This is the variant of the STSA code: sizes are nearly equal, labels are skewed. The draw is
    repeated until every client has a row. An impossible partition is a ValueError.

    >>> parts = capped([np.arange(50), np.arange(50, 99)], 3, 0.1, np.random.default_rng(0))
    >>> min(len(p) for p in parts) > 0
    True
    """
    _check(n_clients, beta)
    total = sum(len(rows) for rows in rows_of_classes)
    if total < n_clients:
        raise ValueError(
            f"the capped partition gives every client a row: {n_clients} clients, {total} rows; "
            "use fewer clients or partitioner 'dirichlet'"
        )
    for _ in range(TRIES):
        parts = _capped_once(rows_of_classes, n_clients, beta, total / n_clients, rng)
        if parts is not None and min(len(p) for p in parts) > 0:
            return [rng.permutation(p) for p in parts]
    raise ValueError(
        f"no capped partition of {total} rows gave every one of {n_clients} clients a row in "
        f"{TRIES} draws at beta {beta}; raise beta, use fewer clients or partitioner 'dirichlet'"
    )


def _capped_once(
    rows_of_classes: Sequence[Rows],
    n_clients: int,
    beta: float,
    cap: float,
    rng: np.random.Generator,
) -> list[Rows] | None:
    """One draw; None if every client with a share of some class is full already."""
    parts = [np.zeros(0, dtype=np.int64) for _ in range(n_clients)]
    for rows in rows_of_classes:
        shuffled = rng.permutation(rows)
        is_open = np.array([len(p) < cap for p in parts])
        shares = rng.dirichlet([beta] * n_clients) * is_open
        if not shares.sum() > 0:
            return None
        cut = _cut(shuffled, shares / shares.sum())
        parts = [np.concatenate(pair) for pair in zip(parts, cut, strict=True)]
    return parts


def iid(rows_of_classes: Sequence[Rows], n_clients: int, rng: np.random.Generator) -> list[Rows]:
    """Shuffle all rows of the task and split them evenly. Sizes differ by at most one.

    >>> [len(p) for p in iid([np.arange(5), np.arange(5, 8)], 3, np.random.default_rng(0))]
    [3, 3, 2]
    """
    _check(n_clients, 1.0)
    shuffled = rng.permutation(np.concatenate([*rows_of_classes, np.zeros(0, dtype=np.int64)]))
    return np.array_split(shuffled, n_clients)


def natural(rows_of_classes: Sequence[Rows], groups: NDArray[Any]) -> list[Rows]:
    """One client per group (subject, site, device), in sorted order of the groups' names.

    >>> natural([np.array([0, 1]), np.array([2, 3])], np.array(["b", "a", "a", "b"]))
    [array([1, 2]), array([0, 3])]
    """
    if groups.dtype.kind == "f" and np.isnan(groups).any():
        raise ValueError("partitioner 'natural' needs a group for every row, got NaN")
    rows = np.concatenate([*rows_of_classes, np.zeros(0, dtype=np.int64)])
    return [rows[groups[rows] == g] for g in np.unique(groups)]


def _cut(rows: Rows, shares: NDArray[np.float64]) -> list[Rows]:
    return np.split(rows, (np.cumsum(shares) * len(rows)).astype(int)[:-1])


def _check(n_clients: int, beta: float) -> None:
    if n_clients < 1:
        raise ValueError(f"n_clients must be at least 1, got {n_clients}")
    if not (np.isfinite(beta) and beta > 0):
        raise ValueError(f"beta must be positive and finite, got {beta}")
