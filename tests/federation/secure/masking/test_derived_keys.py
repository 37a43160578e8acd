"""Keys and texts as docs/explanation/secure-sums.md specifies them, written a second time here."""

from __future__ import annotations

import hashlib
import hmac
import json
import random

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedran.federation.protocol.identity import is_signed
from fedran.federation.secure.masking.attempt import STAGES, Answer, Stage
from fedran.federation.secure.masking.ciphers import (
    open_shares,
    pair_mask_key,
    participants_digest,
    private_key,
    seed_commitment,
    self_mask_key,
    survivors_text,
)
from helpers.federation.secure_sums import KEYS, made_cohort


def text(attempt, purpose: str, **values) -> bytes:
    fields = {
        "scheme": "fedran secure sum 1",
        "for": purpose,
        "federation": attempt.federation,
        "task": attempt.task,
        "number": attempt.number,
        "fingerprint": attempt.fingerprint,
        "content": attempt.content,
        "length": attempt.length,
        "roster": attempt.roster,
        "min_sites": attempt.min_sites,
        **values,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def hkdf(secret: bytes, info: bytes) -> bytes:
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def x25519(private: bytes, public: bytes) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))


def test_every_derived_value_is_as_specified():
    cohort = made_cohort(4, random=random.Random(1).randbytes).run(until=Stage.MASK)
    attempt, state = cohort.server.attempt, cohort.states["s01"]
    participants, secrets = state.participants, state.secrets
    listed = {c: {k: v.hex() for k, v in keys.items()} for c, keys in participants.items()}
    joined = json.dumps(listed, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(joined).hexdigest()
    assert participants_digest(participants) == digest
    expected = hkdf(secrets["seed"], text(attempt, "self-mask", client="s01"))
    assert self_mask_key(attempt, "s01", secrets["seed"]) == expected
    expected = hkdf(secrets["seed"], text(attempt, "commitment", client="s01"))
    assert seed_commitment(attempt, "s01", secrets["seed"]) == expected
    assert participants["s01"]["seed"] == expected
    shared = x25519(secrets["mask"], participants["s00"]["mask"])
    info = text(attempt, "pair mask", participants=digest, sites=["s00", "s01"])
    key = private_key(secrets["mask"])
    found = pair_mask_key(attempt, digest, key, participants["s00"]["mask"], ("s01", "s00"))
    assert found == hkdf(shared, info)
    shared = x25519(secrets["channel"], participants["s00"]["channel"])
    info = text(attempt, "shares", participants=digest, sender="s00", receiver="s01")
    envelope = cohort.server.answers[Stage.SHARE]["s00"].parts["s01"]
    cohort.ask("s01")
    held = cohort.states["s01"].held["s00"]
    assert open_shares(hkdf(shared, info), envelope, "s00") == held
    assert survivors_text(participants, ["s02", "s01"], ["s01"]) == (
        b'{"participants":"%s","sharers":["s01","s02"],"survivors":["s01"]}' % digest.encode()
    )


def test_signatures_are_as_specified():
    cohort = made_cohort(4, random=random.Random(1).randbytes).run()
    for stage in STAGES:
        blob = cohort.states["s02"].answers[stage]
        attempt, roster = cohort.server.attempt, cohort.server.roster
        answer = Answer.read(blob, attempt, stage, "s02", roster)
        digests = {name: hashlib.sha256(part).hexdigest() for name, part in answer.parts.items()}
        signed = text(attempt, "answer", stage=str(stage), client="s02", parts=digests)
        assert is_signed(KEYS[2].public, signed, answer.signature)


def test_the_bytes_of_a_sum_are_the_same_in_every_version():
    """Another digest means that sites with this version and an older one cannot sum together."""
    cohort = made_cohort(4, random=random.Random(1).randbytes).run({Stage.MASK: ["s03"]})
    sha = hashlib.sha256()
    for client, state in sorted(cohort.states.items()):
        for stage, blob in state.answers.items():
            answer = Answer.read(blob, cohort.server.attempt, stage, client, cohort.server.roster)
            sha.update(answer.signature)  # covers the attempt and every byte of the answer
    assert sha.hexdigest() == ("81ccaa2744e20efef868bfc26dfa28a7808f9d006fc2fa93b23520ad5aea0017")
