"""Sums of data that outgrow one machine: states are bytes, which any cluster can add and merge.

``merge`` is associative and commutative to rounding, so that partitions may be reduced in any tree:
two trees over up to a million rows differ by at most 1e-12 of the Gram's norm. Nothing is truncated
before ``finish``.

>>> import numpy as np, fedran
>>> phi = fedran.RandomFeatures(2, 16)
>>> Z, y = np.eye(2), ["a", "b"]
>>> parts = [add(start(phi), Z[i : i + 1], y[i : i + 1]) for i in range(2)]
>>> finish(merge(*parts), rank=4).counts
(1, 1)
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import Field, Fingerprint, require_same
from fedran.core.labels import MISSING, encode_labels
from fedran.core.summary import Summary
from fedran.core.sums.aggregator import Aggregator
from fedran.wire.codec import decode, encode

BLOCK_BYTES = 16 * 2**20
"""Block of random features of one ``add``."""


def start(phi: RandomFeatures) -> bytes:
    """The state of no rows under a feature map. With M random features it grows to 4 M^2 bytes."""
    if not isinstance(phi, RandomFeatures):
        raise TypeError(f"only sums over RandomFeatures add, got {type(phi).__name__}")
    return encode(Aggregator(fingerprint=phi.fingerprint, dtype="float64"))


def add(state: bytes, Z: Any, y: Any) -> bytes:
    """The state with more rows Z (n, d), dense or sparse, and labels y; None is no label.

    Reading and writing a state takes as long as some hundred rows: add thousands at once.
    """
    total = decode(state, Aggregator)
    assert total.fingerprint is not None
    phi = _feature_map(tuple(total.fingerprint.fields.items()))
    classes, codes = encode_labels(y, int(Z.shape[0]))
    if (kept := codes != MISSING).any():
        total.sums.add_rows(phi.blocks(Z[kept], BLOCK_BYTES), classes, codes[kept])
        total.sums.accounts = replace(total.sums.accounts, parts=1)
    return encode(total)


def merge(a: bytes, b: bytes) -> bytes:
    """The state of the rows of both. States of other features are refused."""
    total, other = decode(a, Aggregator), decode(b, Aggregator)
    require_same(total.fingerprint, other.fingerprint, "both states")
    total.sums.add_sum(other.sums)
    total.sums.accounts = replace(total.sums.accounts, parts=min(1, total.accounts.parts))
    return encode(total)


def finish(state: bytes, rank: int | None = 256) -> Summary:
    """A summary of the given rank (None: all) of all rows, to send or to solve."""
    total = decode(state, Aggregator)
    return total.sums.summary(rank, total.fingerprint)


@lru_cache(maxsize=2)
def _feature_map(fields: tuple[tuple[str, Field], ...]) -> RandomFeatures:
    """The map of a fingerprint. Its P is drawn once per process."""
    return RandomFeatures.from_fingerprint(Fingerprint(dict(fields)))
