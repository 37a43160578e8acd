"""What both sides derive from the messages: keys of masks, and texts that all sites must share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fedran.core.errors import Refused
from fedran.federation.secure.attempt import (
    Answer,
    Attempt,
    canonical_json,
    check_parts,
)
from fedran.federation.secure.ciphers import KEY_BYTES, agree, derive, is_usable

ADVERTISED = ("channel", "mask", "seed")
"""What a site advertises: two X25519 public keys, and a commitment to its self-mask seed."""
Participants = dict[str, dict[str, bytes]]
"""Client -> what it advertised, for the sites of a sum."""


def read_advertisements(answers: Iterable[Answer]) -> Participants:
    """The keys in signed advertisements. Unusable keys and keys that occur twice are refused."""
    found, owners = {}, dict[bytes, str]()
    for answer in answers:
        check_parts(answer.parts, KEY_BYTES, ADVERTISED)
        for name, key in answer.parts.items():
            owner = owners.setdefault(key, answer.client)
            if owner != answer.client or (name != "seed" and not is_usable(key)):
                raise Refused(
                    f"keys of {answer.client}", "fresh X25519 keys", f"{name} {key.hex()}"
                )
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
    attempt: Attempt, digest: str, private: bytes, public: bytes, sites: tuple[str, str]
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


def check_confirmation(answer: Answer, text: bytes) -> None:
    """Refuse the confirmation of another list of survivors than ``text``."""
    if answer.parts != {"survivors": text}:
        raise Refused(
            f"survivors that {answer.client} signed",
            "the list that is known here",
            "another list",
            hint="the server has shown different lists to different sites",
        )
