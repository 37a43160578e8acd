"""Cryptography of a secure sum: X25519, HKDF-SHA256, AES-256-CTR masks, AES-256-GCM envelopes, and
Shamir's secret sharing.

Then follows what both sides derive from the messages: keys of masks, and texts that all sites must
share. Every derived key depends on a text that names its purpose, the attempt and the sites, so
that no key of one attempt has a meaning in another.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.federation.secure.masking.attempt import (
    Answer,
    Attempt,
    canonical_json,
    check_parts,
)

ADVERTISED = ("channel", "mask", "seed")
"""What a site advertises: two X25519 public keys, and a commitment to its self-mask seed."""
Participants = dict[str, dict[str, bytes]]
"""Client -> what it advertised, for the sites of a sum."""
KEY_BYTES = 32
PRIME = 2**256 + 297
SHARE_BYTES = 33
"""A value below the prime needs one bit more than a secret."""
Random = Callable[[int], bytes]
"""Returns the given number of random bytes, as ``os.urandom`` does."""
NONCE_BYTES = 12
ENVELOPE_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + 16
"""Nonce, two shares, and the tag."""
_BLOCK = 2**18
"""Numbers per block of a mask: the key stream stays in the processor's cache."""
_ZEROS = memoryview(bytes(4 * _BLOCK))


def private_key(secret: bytes) -> X25519PrivateKey:
    """The X25519 key with these 32 bytes."""
    return X25519PrivateKey.from_private_bytes(secret)


def public_bytes(private: X25519PrivateKey) -> bytes:
    """The public key, 32 bytes."""
    return private.public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, public: bytes, info: bytes) -> bytes:
    """The 32-byte key that two sites derive from their keys and the same ``info``."""
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of low order, whose secrets everybody knows
        raise Refused("public key", "an X25519 key", f"{public.hex()}, which is unsafe") from None
    return derive(secret, info)


def derive(secret: bytes, info: bytes) -> bytes:
    """A 32-byte key from a secret, with HKDF-SHA256."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def add_mask(total: NDArray[np.uint32], key: bytes, sign: int) -> None:
    """Add the mask of a key to ``total`` in place (sign 1), or subtract it (sign -1), modulo 2^32.

    The mask is the key stream of AES-256 in counter mode, read as little-endian numbers. The
    counter starts at zero, so a key must be used for one vector only.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    buffer = bytearray(4 * _BLOCK)
    mask: NDArray[Any] = np.frombuffer(buffer, dtype="<u4")
    for start in range(0, total.size, _BLOCK):
        part = total[start : start + _BLOCK]
        stream.update_into(_ZEROS[: 4 * part.size], buffer)
        if sign > 0:
            part += mask[: part.size]
        else:
            part -= mask[: part.size]


def seal_shares(key: bytes, shares: tuple[bytes, bytes], random: Random = os.urandom) -> bytes:
    """Encrypt two shares for one site."""
    nonce = random(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, b"".join(shares), None)


def open_shares(key: bytes, envelope: bytes, sender: str) -> tuple[bytes, bytes]:
    """The two shares in an envelope. An envelope made with another key is refused."""
    try:
        plain = AESGCM(key).decrypt(envelope[:NONCE_BYTES], envelope[NONCE_BYTES:], None)
    except (InvalidTag, ValueError):
        plain = b""
    if len(plain) != 2 * SHARE_BYTES:
        raise Refused(
            f"shares of {sender}",
            "an envelope that this site can open",
            "one that was altered, or made for another attempt or another list of sites",
        )
    return plain[:SHARE_BYTES], plain[SHARE_BYTES:]


def split(secret: bytes, count: int, threshold: int, random: Random = os.urandom) -> list[bytes]:
    """Shares of a 32-byte secret for the points 1 .. ``count``: any ``threshold`` of them give it.

    Fewer are independent of the secret. Shares are values of a random polynomial over the integers
    modulo the smallest prime above 2^256. Python's integers do not compute in constant time:
    whoever can time the computation on the same machine is not defended against.

    >>> shares = split(b"k" * 32, count=5, threshold=3)
    >>> combine({2: shares[1], 5: shares[4], 3: shares[2]})
    b'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk'
    """
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a secret has {KEY_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= count:
        raise ValueError(f"expected 1 <= threshold <= count, got {threshold} and {count}")
    # 16 bytes more than the prime: the remainder is uniform up to a bias of 2^-128.
    coefficients = [
        int.from_bytes(random(KEY_BYTES + 16), "big") % PRIME for _ in range(threshold - 1)
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
    if secret >= 2 ** (8 * KEY_BYTES):
        raise Refused("shares", "shares of one secret of 32 bytes", "shares that do not agree")
    return secret.to_bytes(KEY_BYTES, "big")


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


def advertised_keys(
    attempt: Attempt, client: str, secrets: Mapping[str, bytes]
) -> dict[str, bytes]:
    """What a site with these secrets advertises."""
    keys = {name: public_bytes(private_key(secrets[name])) for name in ("channel", "mask")}
    return {**keys, "seed": seed_commitment(attempt, client, secrets["seed"])}


def pack_keys(keys: Mapping[str, bytes]) -> bytes:
    """What a site advertises as three times 32 bytes."""
    return b"".join(keys[name] for name in ADVERTISED)


def unpack_keys(blob: bytes) -> dict[str, bytes]:
    """The first three times 32 bytes."""
    return {name: blob[32 * k : 32 * (k + 1)] for k, name in enumerate(ADVERTISED)}


def check_advertisements(answers: Iterable[Answer]) -> Participants:
    """The keys in advertisements. Incomplete ones and keys that occur twice are refused."""
    found, owners = {}, dict[bytes, str]()
    for answer in answers:
        check_parts(answer.parts, KEY_BYTES, ADVERTISED)
        for key in answer.parts.values():
            owner = owners.setdefault(key, answer.client)
            if owner != answer.client:
                raise Refused(f"keys of {answer.client}", "fresh keys", f"a key of {owner}")
        found[answer.client] = answer.parts
    return found


def participants_digest(participants: Participants) -> str:
    """SHA-256 of the sites of a sum and their keys. Sites with other lists derive other keys."""
    texts = {c: {name: k.hex() for name, k in keys.items()} for c, keys in participants.items()}
    return hashlib.sha256(canonical_json(texts)).hexdigest()


def seed_commitment(attempt: Attempt, client: str, seed: bytes) -> bytes:
    """What a site advertises about its self-mask seed. It does not reveal the seed."""
    return derive(seed, attempt.info("commitment", client=client))


def self_mask_key(attempt: Attempt, client: str, seed: bytes) -> bytes:
    """The key of a site's self-mask."""
    return derive(seed, attempt.info("self-mask", client=client))


def pair_mask_key(
    attempt: Attempt, digest: str, private: X25519PrivateKey, public: bytes, sites: tuple[str, str]
) -> bytes:
    """The key of the mask that two sites share: the first in order adds it, the other subtracts it.

    ``digest`` is ``participants_digest``; one of the keys belongs to each of the sites.
    """
    info = attempt.info("pair mask", participants=digest, sites=sorted(sites))
    return agree(private, public, info)


def survivors_text(
    participants: Participants, sharers: Iterable[str], survivors: Iterable[str]
) -> bytes:
    """What every survivor signs: who took part with which keys, who sent shares, who survived."""
    return canonical_json(
        {
            "participants": participants_digest(participants),
            "sharers": sorted(sharers),
            "survivors": sorted(survivors),
        }
    )
