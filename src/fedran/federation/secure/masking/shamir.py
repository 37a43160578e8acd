"""Shamir's secret sharing of 32-byte secrets: any ``threshold`` shares give the secret.

Fewer shares are independent of the secret, so they say nothing about it. Shares are values of a
random polynomial over the integers modulo the smallest prime above 2^256, at the points 1, 2, ...
Python's integers do not compute in constant time: whoever can time the computation on the same
machine is not defended against.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache

from fedran.core.errors import Refused

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
"""A value below the prime needs one bit more than a secret."""
Random = Callable[[int], bytes]
"""Returns the given number of random bytes, as ``os.urandom`` does."""


def split(secret: bytes, count: int, threshold: int, random: Random = os.urandom) -> list[bytes]:
    """Shares of a secret for the points 1 .. ``count``.

    >>> shares = split(b"k" * 32, count=5, threshold=3)
    >>> combine({2: shares[1], 5: shares[4], 3: shares[2]})
    b'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk'
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= count:
        raise ValueError(f"expected 1 <= threshold <= count, got {threshold} and {count}")
    # 16 bytes more than the prime: the remainder is uniform up to a bias of 2^-128.
    coefficients = [
        int.from_bytes(random(SECRET_BYTES + 16), "big") % PRIME for _ in range(threshold - 1)
    ]
    coefficients.append(int.from_bytes(secret, "big"))
    shares = []
    for point in range(1, count + 1):
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret behind shares (point -> share). Give at least ``threshold`` of them.

    Wrong shares, or fewer, give another secret or a refusal. The caller has to compare the secret
    with a commitment.
    """
    if not shares or any(not 0 < point < PRIME for point in shares):
        raise ValueError(f"expected points from 1, got {list(shares)}")
    weights = _lagrange(tuple(shares))
    secret = sum(w * read_share(s) for w, s in zip(weights, shares.values(), strict=True)) % PRIME
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise Refused("shares", "shares of one secret of 32 bytes", "shares that do not agree")
    return secret.to_bytes(SECRET_BYTES, "big")


def read_share(share: bytes) -> int:
    """The value of a share from outside."""
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise Refused("share", f"{SHARE_BYTES} bytes below the prime", f"{len(share)} other bytes")
    return value


@lru_cache(maxsize=256)
def _lagrange(points: tuple[int, ...]) -> tuple[int, ...]:
    """The weights of the values at these points in the polynomial's value at 0."""
    weights = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
