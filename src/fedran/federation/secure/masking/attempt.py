"""What an attempt at a secure sum agrees on, and its messages: requests, signed answers.

An attempt has five stages. In each the server sends a request to every site, and every site answers
once. The server starts another attempt with a higher number when too few sites answer.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any

from fedran.core.errors import Refused, check_id
from fedran.federation.protocol.identity import SiteKey, check_public, is_signed
from fedran.federation.protocol.limits import MAX_ATTEMPT_NUMBER, MAX_NUMBERS, MAX_SITES, MIN_SITES
from fedran.wire.container import pack, unpack
from fedran.wire.validation import DEFAULT_LIMITS, FILE_LIMITS, Header, Limits

PURPOSE = "fedran secure sum 1"
"""Part of every signed text and every derived key."""
ALTERED = "the message was altered, or made for another attempt or by another site"


class Stage(StrEnum):
    """The stages of an attempt, in order."""

    ADVERTISE = "advertise"
    """Sites publish fresh public keys, signed with their identity keys."""
    SHARE = "share"
    """Sites send encrypted shares of their mask key and self-mask seed to each other."""
    MASK = "mask"
    """Sites send their masked vectors."""
    CONFIRM = "confirm"
    """Sites sign the list of sites whose vectors arrived."""
    REVEAL = "reveal"
    """Sites send the shares that remove the masks from the sum."""

    @property
    def next(self) -> Stage | None:
        """The following stage; None after the last."""
        return STAGES[STAGES.index(self) + 1] if self is not Stage.REVEAL else None


STAGES = tuple(Stage)


class AttemptFailed(RuntimeError):
    """An attempt cannot give a sum, and no vector is known. Start another attempt."""


def threshold(n_sites: int) -> int:
    """How many of the sites that advertised keys must answer every later stage: above 2/3.

    Two lists of survivors that each have this many signatures share more than a third of the
    sites. So a server to which at most a third of the sites lend their signatures cannot obtain
    both secrets of one site, and almost a third of the sites may drop out.

    >>> [threshold(n) for n in (3, 4, 5, 10, 20, 100)]
    [3, 3, 4, 7, 14, 67]
    """
    return 2 * n_sites // 3 + 1


def helpers(min_sites: int) -> int:
    """How many sites of the roster may work with the server: a third of ``min_sites``, at least 1.

    >>> [helpers(n) for n in (2, 3, 5, 6, 10)]
    [1, 1, 1, 2, 3]
    """
    return max(1, min_sites // 3)


def canonical_json(value: object) -> bytes:
    """JSON that is the same on every machine."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def roster_digest(roster: Mapping[str, str]) -> str:
    """SHA-256 of a roster (client -> public key): what sites and server compare.

    >>> roster_digest({"a": SiteKey.generate().public}) == roster_digest({})
    False
    """
    for client, public in roster.items():
        check_public(public, check_id(client, "client"))
    return hashlib.sha256(canonical_json(["fedran roster 1", dict(roster)])).hexdigest()


@dataclass(frozen=True)
class Attempt:
    """What all sites of a sum must agree on. It is part of every signature and every key."""

    federation: str
    task: str
    number: int
    """1 for the first attempt of a task, then higher. No number is used twice, also not for
    another group of sites of the same task."""
    fingerprint: str
    """Hash of the feature map's fingerprint."""
    content: str
    """SHA-256 of what the numbers of the vector mean: class list, layout, scales, noise."""
    length: int
    """Numbers of the vector."""
    roster: str
    """``roster_digest`` of the pinned roster."""
    min_sites: int = MIN_SITES
    """The fewest sites whose vectors are summed."""

    def __post_init__(self) -> None:
        check_id(self.federation, "federation")
        check_id(self.task, "task")
        values = Header(self.fields)
        values.integer("number", 1, MAX_ATTEMPT_NUMBER)
        values.integer("length", 1, MAX_NUMBERS)
        values.integer("min_sites", 2, MAX_SITES)
        for name in ("fingerprint", "content", "roster"):
            check_digest(values.get(name), name)

    @classmethod
    def read(cls, header: Header) -> Attempt:
        """The attempt in a message. Every field is checked when the object is made."""
        return cls(*(header.get(entry.name) for entry in fields(cls)))

    @cached_property
    def fields(self) -> dict[str, Any]:
        """All fields, for messages and derived keys."""
        return asdict(self)

    def info(self, purpose: str, **details: Any) -> bytes:
        """The text for HKDF and for signatures: the purpose, every field, and details."""
        return canonical_json({"scheme": PURPOSE, "for": purpose, **self.fields, **details})

    def require(self, other: Attempt) -> None:
        """Refuse a message of another attempt. The refusal names the fields that differ."""
        for name, value in self.fields.items():
            if other.fields[name] != value:
                lost = "a server that has lost attempts needs a new task id for the rows"
                hint = lost if name == "number" else ""
                raise Refused(f"{name} of the attempt", str(value), other.fields[name], hint)

    def needed(self, n_sites: int) -> int:
        """How many of ``n_sites`` that advertised keys must share, mask and survive."""
        return max(self.min_sites, threshold(n_sites))


@dataclass(frozen=True)
class SiteIdentity:
    """Who a site is and whom it believes."""

    client: str
    key: SiteKey
    roster: Mapping[str, str]
    """The pinned roster: client -> public key, this site included."""

    def __post_init__(self) -> None:
        if self.roster.get(self.client) != self.key.public:
            raise ValueError(f"the pinned roster has another key for {self.client}, or none")

    def require_roster(self, attempt: Attempt) -> None:
        """Refuse an attempt with another roster than the pinned one."""
        pinned = roster_digest(self.roster)
        if attempt.roster != pinned:
            raise Refused(
                "roster of the attempt",
                f"the pinned roster {pinned[:16]}",
                attempt.roster[:16],
                hint="compare the two by telephone before you pin the new one",
            )


def check_digest(value: object, what: str) -> str:
    """A SHA-256 in lower-case hexadecimal. Anything else is refused."""
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise Refused(what, "a SHA-256 of 64 hexadecimal digits", value)
    return value


@dataclass(frozen=True)
class Request:
    """What the server sends to one site in one stage."""

    attempt: Attempt
    stage: Stage
    parts: dict[str, bytes] = field(default_factory=dict)
    """Client -> its advertisement (share), its envelope for this site (mask), nothing (confirm: the
    clients are the survivors), the signature of its confirmation (reveal)."""

    def to_bytes(self) -> bytes:
        """The bytes that travel."""
        fields = {"attempt": self.attempt.fields, "stage": self.stage}
        return pack("secure request", fields, self.parts)

    @classmethod
    def read(cls, blob: bytes) -> Request:
        """Parse a request from anyone."""
        header, parts = unpack_parts("secure request", blob)
        for client in parts:
            check_id(client, "client")
        attempt = Attempt.read(header.section("attempt"))
        return cls(attempt, Stage(header.one_of("stage", *STAGES)), parts)


@dataclass(frozen=True)
class Answer:
    """What one site sends in one stage, signed with its identity key.

    The signature covers the attempt, the stage, the client and all bytes, so an answer of another
    attempt or of another site is refused.
    """

    client: str
    stage: Stage
    parts: dict[str, bytes]
    signature: bytes = field(repr=False)

    @classmethod
    def sign(
        cls, attempt: Attempt, stage: Stage, client: str, parts: dict[str, bytes], key: SiteKey
    ) -> Answer:
        """Make an answer."""
        return cls(client, stage, parts, key.sign_bytes(_signed(attempt, stage, client, parts)))

    def to_bytes(self) -> bytes:
        """The bytes that travel."""
        fields = {"client": self.client, "stage": self.stage, "signature": self.signature.hex()}
        return pack("secure answer", fields, self.parts)

    @classmethod
    def read(
        cls, blob: bytes, attempt: Attempt, stage: Stage, client: str, roster: Mapping[str, str]
    ) -> Answer:
        """Parse the answer of a known site, for this attempt and stage. Others are refused."""
        header, parts = unpack_parts("secure answer", blob)
        for name, expected in (("client", client), ("stage", str(stage))):
            if header.text(name, 64) != expected:
                raise Refused(f"{name} of the answer", expected, header.text(name, 64))
        try:
            signature = bytes.fromhex(header.text("signature", 128))
        except ValueError:
            signature = b""
        answer = cls(client, stage, parts, signature)
        answer.verify(attempt, roster)
        return answer

    def verify(self, attempt: Attempt, roster: Mapping[str, str], hint: str = ALTERED) -> None:
        """Refuse an answer that its site did not sign for this attempt."""
        public = roster.get(self.client)
        if public is None:
            raise Refused("client", "a site of the pinned roster", self.client)
        text = _signed(attempt, self.stage, self.client, self.parts)
        if not is_signed(public, text, self.signature):
            raise Refused(
                f"signature of {self.client}",
                f"one by its key in the roster, for stage {self.stage} of this attempt",
                "another",
                hint=hint,
            )


def _signed(attempt: Attempt, stage: Stage, client: str, parts: Mapping[str, bytes]) -> bytes:
    digests = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    return attempt.info("answer", stage=stage, client=client, parts=digests)


def unpack_parts(
    kind: str, blob: bytes, limits: Limits = DEFAULT_LIMITS
) -> tuple[Header, dict[str, bytes]]:
    """The fields and the byte strings of a container from anyone."""
    message = unpack(blob, limits).of_kind(kind)
    return message.header, {name: message.stream(name) for name in sorted(message.tensors)}


def pack_groups(
    kind: str, fields: Mapping[str, Any], groups: Mapping[str, Mapping[Any, bytes]]
) -> bytes:
    """JSON fields and groups of named byte strings, for a state file."""
    parts = {f"{group}:{name}": part for group, of in groups.items() for name, part in of.items()}
    return pack(kind, fields, parts)


def unpack_groups(kind: str, blob: bytes) -> tuple[Header, defaultdict[str, dict[str, bytes]]]:
    """Inverse of ``pack_groups``. A damaged file is refused."""
    header, parts = unpack_parts(kind, blob, FILE_LIMITS)
    groups: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    for name, part in parts.items():
        group, _, rest = name.partition(":")
        groups[group][rest] = part
    return header, groups


def check_parts(parts: Mapping[str, bytes], length: int, expected: Iterable[str]) -> None:
    """Refuse parts with other names, or of another length."""
    names = sorted(expected)
    if sorted(parts) != names:
        raise Refused("parts of the answer", f"one for each of {', '.join(names)}", sorted(parts))
    for name, part in parts.items():
        if len(part) != length:
            raise Refused(f"part {name} of the answer", f"{length} bytes", len(part))
