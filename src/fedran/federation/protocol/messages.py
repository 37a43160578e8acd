"""The messages of a task: the server's offer, a site's signed envelope, the server's receipt."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.ids import check_id
from fedran.federation.protocol.identity import SiteKey, Statement
from fedran.wire.container import Container, pack, unpack
from fedran.wire.validation import DEFAULT_LIMITS, Header, Limits

LARGEST_BUDGET = 2**31
LARGEST_WIDTH = 2**17
MOST_FIELDS = 16
MOST_EARLIER = 100
FeatureSource = str | dict[str, str]
"""What made the features: a name, or a table such as backbone, weights, preprocessing."""
ENVELOPE = "envelope"
MOST_MEMBERS = 10_000
Outcome = Literal["accepted", "duplicate", "quarantined", "refused"]
SETTLED: tuple[Outcome, ...] = ("accepted", "duplicate", "quarantined")
"""Outcomes after which a client need not send again; a refused one must be looked at first."""


@dataclass(frozen=True)
class Offer:
    """A task, the feature map that everyone shares, and how large an upload may be."""

    federation: str
    task: str
    in_features: int
    out_features: int
    seed: int
    source: FeatureSource
    """Part of the fingerprint."""
    budget_bytes: int
    earlier: tuple[str, ...] = ()
    """Tasks before it: a site that was away may still have rows for them."""

    @classmethod
    def read(cls, fields: object) -> Offer:
        """From a message: every field is checked, what else it holds is not looked at."""
        if not isinstance(fields, Mapping):
            raise Refused("offer", "an object", fields)
        header = Header(dict(fields))
        return cls(
            check_id(header.text("federation", 64), "federation"),
            check_id(header.text("task", 64), "task"),
            header.integer("in_features", 1, LARGEST_WIDTH),
            header.integer("out_features", 1, LARGEST_WIDTH),
            header.integer("seed", 0, 2**32 - 1),
            check_source(header.get("source")),
            header.integer("budget_bytes", 1024, LARGEST_BUDGET),
            _tasks(fields.get("earlier", ())),
        )

    def fields(self) -> dict[str, Any]:
        """As plain values, for a message."""
        return asdict(self)

    def features(self) -> RandomFeatures:
        """The feature map."""
        return RandomFeatures(self.in_features, self.out_features, self.seed, source=self.source)

    def require(self, federation: str, source: FeatureSource | None) -> None:
        """Refuse an offer of another federation, or for features that this site has not."""
        if self.federation != federation:
            raise Refused("federation", federation, self.federation)
        if source is not None:
            require_source(source, self.source)


def _tasks(given: object) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or len(given) > MOST_EARLIER:
        raise Refused("earlier", f"at most {MOST_EARLIER} tasks", given)
    return tuple(check_id(task, "task") for task in given)


def check_source(given: object) -> FeatureSource:
    """What a fingerprint can hold, and no more of it than a message should carry.

    >>> check_source({"backbone": "mine", "weights": "ab12"})
    {'backbone': 'mine', 'weights': 'ab12'}
    """
    texts = list(given.values()) if isinstance(given, dict) else [given]
    if not 0 < len(texts) <= MOST_FIELDS or not all(isinstance(text, str) for text in texts):
        raise Refused("source", f"text, or a table of 1 to {MOST_FIELDS} texts", given)
    assert isinstance(given, (str, dict))
    try:
        RandomFeatures(1, 1, source=given)
    except ValueError as reason:
        raise Refused("source", "what a fingerprint can hold", str(reason)) from None
    return given


def require_source(mine: FeatureSource, theirs: FeatureSource) -> None:
    """Refuse features that two sides make differently; the sentence names both.

    >>> require_source("a", {"backbone": "a"})
    """
    here, there = ({"backbone": s} if isinstance(s, str) else s for s in (mine, theirs))
    differing = [k for k in sorted({*here, *there}) if here.get(k) != there.get(k)]
    if differing:
        raise Refused(
            "source",
            "features made in the same way at the site and at the server",
            ", ".join(
                f"{k} {here.get(k, 'absent')!r} at the site and {there.get(k, 'absent')!r} at the "
                "server"
                for k in differing
            ),
            hint="correct source in the configuration of one of them",
        )


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
        arrays = {"signature": _u8(self.signature), "upload": _u8(self.upload)}
        return pack(ENVELOPE, fields, arrays)


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
    message = unpack(blob, limits).of_kind(ENVELOPE, hint="send what the client's outbox holds")
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


@dataclass(frozen=True)
class Receipt:
    """The server's answer to one envelope."""

    outcome: Outcome
    client: str
    task: str
    digest: str
    reason: str = ""

    @property
    def settled(self) -> bool:
        """Whether the server has the upload, or has it aside."""
        return self.outcome in SETTLED
