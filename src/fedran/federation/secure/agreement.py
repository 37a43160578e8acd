"""What both sides derive from the messages: keys of masks, and texts that all sites must share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedran.core.errors import Refused
from fedran.federation.secure.attempt import (
    Answer,
    Attempt,
    canonical_json,
    check_parts,
)
from fedran.federation.secure.ciphers import KEY_BYTES, agree, derive, private_key, public_bytes

ADVERTISED = ("channel", "mask", "seed")
"""What a site advertises: two X25519 public keys, and a commitment to its self-mask seed."""
Participants = dict[str, dict[str, bytes]]
"""Client -> what it advertised, for the sites of a sum."""


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
