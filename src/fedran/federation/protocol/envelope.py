"""An upload on its way: the encoded summary, what is claimed about it, and the signature."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import SiteKey, Statement
from fedran.wire.container import Container, pack, unpack
from fedran.wire.validation import DEFAULT_LIMITS, Limits

KIND = "envelope"
MOST_MEMBERS = 10_000


@dataclass(frozen=True)
class Envelope:
    """A statement, its signature, and the upload it speaks of."""

    statement: Statement
    signature: bytes
    upload: bytes

    def to_bytes(self) -> bytes:
        """As it travels and lies in the journal; about 600 bytes more than the upload."""
        s = self.statement
        fields = {
            "federation": s.federation,
            "client": s.client,
            "task": s.task,
            "fingerprint": s.fingerprint,
            "digest": s.digest,
            "members": [list(m) for m in s.members],
        }
        return pack(KIND, fields, {"signature": _u8(self.signature), "upload": _u8(self.upload)})


def seal(
    upload: bytes,
    key: SiteKey,
    *,
    federation: str,
    client: str,
    task: str,
    fingerprint: str,
    members: tuple[tuple[str, str], ...] = (),
) -> Envelope:
    """Sign an upload."""
    digest = hashlib.sha256(upload).hexdigest()
    statement = Statement(federation, client, task, fingerprint, digest, members)
    return Envelope(statement, key.sign(statement), upload)


def open_envelope(blob: bytes, limits: Limits = DEFAULT_LIMITS) -> Envelope:
    """Parse and check that it holds together; who sent it is for ``verify`` to say."""
    message = unpack(blob, limits).of_kind(KIND, hint="send what the client's outbox holds")
    message.only("signature", "upload")
    statement = _statement(message)
    upload = message.stream("upload")
    if hashlib.sha256(upload).hexdigest() != statement.digest:
        raise Refused("digest", "that of the upload beside it", statement.digest)
    return Envelope(statement, message.stream("signature"), upload)


def _statement(message: Container) -> Statement:
    header = message.header
    try:
        return Statement(
            header.text("federation", 64),
            header.text("client", 64),
            header.text("task", 64),
            header.text("fingerprint", 64),
            header.text("digest", 64),
            tuple(_member(m) for m in header.items("members", MOST_MEMBERS)),
        )
    except Refused:
        raise
    except ValueError as reason:
        raise Refused("envelope", "valid ids", str(reason)) from None


def _member(given: object) -> tuple[str, str]:
    if not isinstance(given, list) or len(given) != 2 or not all(isinstance(g, str) for g in given):
        raise Refused("members", "pairs of client and task", given)
    return given[0], given[1]


def _u8(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(data, dtype=np.uint8)
