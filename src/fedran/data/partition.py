"""How the rows of one class are dealt out to the clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def dirichlet(rows: Rows, n_clients: int, beta: float, rng: np.random.Generator) -> list[Rows]:
    """Deal ``rows`` to the clients in shares p ~ Dirichlet(beta, ..., beta), shuffled first.

    The smaller beta, the fewer clients hold the class. Shares are rounded at their cumulative
    ends, so every row goes to exactly one client and a client may get none.

    >>> parts = dirichlet(np.arange(10), 3, beta=0.5, rng=np.random.default_rng(0))
    >>> sorted(np.concatenate(parts).tolist()) == list(range(10))
    True
    """
    if n_clients < 1:
        raise ValueError(f"n_clients must be at least 1, got {n_clients}")
    if not (np.isfinite(beta) and beta > 0):
        raise ValueError(f"beta must be positive and finite, got {beta}")
    shuffled = rng.permutation(rows)
    shares = rng.dirichlet([beta] * n_clients)
    cuts = (np.cumsum(shares) * len(rows)).astype(int)[:-1]
    return np.split(shuffled, cuts)
