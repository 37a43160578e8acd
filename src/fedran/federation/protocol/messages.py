"""The two messages about a task: the server's offer and a site's signed envelope."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fedran.core.errors import Refused, check_id
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import Fingerprint, columns_hash
from fedran.core.labels import MAX_LENGTH, Label
from fedran.core.prepare import KernelFeatures, UnitKind
from fedran.core.sums.aggregator import Message
from fedran.federation.protocol.identity import SiteKey, Statement
from fedran.federation.protocol.limits import (
    MAX_BUDGET,
    MAX_CLASSES,
    MAX_COLUMN_NAMES,
    MAX_COLUMNS,
    MAX_EARLIER,
    MAX_GROUP_SIZE,
    MAX_MEMBERS,
    MAX_REVISION,
    MAX_ROWS,
    MAX_SETTLED,
    MAX_SOURCE_FIELDS,
    MAX_SUMS,
    MAX_WIDTH,
)
from fedran.federation.protocol.ranges import Ranges, check_ranges
from fedran.wire.codec import decode_message
from fedran.wire.container import pack, unpack
from fedran.wire.validation import DEFAULT_LIMITS, Header, Limits

PROTOCOL = 1
"""Version of the messages. It changes when a field changes its meaning; new fields are ignored by
programs that do not know them."""
ENVELOPE = "envelope"
Privacy = Literal["none", "secure", "dp"]
"""``none``: sites send points. ``secure``: they send masked vectors, of which the server learns
nothing but the sum. ``dp``: the sum has noise too."""
OF_POINTS, OF_SUMS = ("group_size", "min_group"), ("out_features", "seed")
"""Fields of an offer that one kind of upload needs."""
FeatureSource = str | dict[str, str]
"""What made the features: a name, or a table such as backbone, weights, preprocessing."""


class Question(StrEnum):
    """What the server asks of a site."""

    OFFER = "offer"
    """To send its uploads."""
    VALIDATE = "validate"
    """To test heads on rows of its own."""
    RESULTS = "results"
    """To keep receipts and the newest head."""


@dataclass(frozen=True)
class Offer:
    """The server's request for one task: the feature map that all sites share, and a byte budget.

    An offer names no data. Only the site's configuration says which rows the site reads.
    """

    federation: str
    task: str
    in_features: int
    kind: UnitKind
    source: FeatureSource
    """Part of the fingerprint."""
    budget_bytes: int
    group_size: int = 1
    """Of points: about how many rows a group has, where the budget allows it."""
    min_group: int = 1
    """Of points: the fewest rows of a group."""
    out_features: int = 0
    """Of secure sums: random features M."""
    seed: int = 0
    """Of secure sums: seed of the random features."""
    earlier: tuple[str, ...] = ()
    """Earlier tasks, for which a site that was offline may still have rows."""
    classes: tuple[Label, ...] = ()
    """The labels that may occur; empty: any."""
    known_classes: tuple[Label, ...] = ()
    """Where any label may occur: those that occurred so far."""
    protocol: int = PROTOCOL
    privacy: Privacy = "none"
    """With ``secure`` and ``dp``, the message also has the requests of secure sums."""
    columns: tuple[str, ...] = ()
    """Names of the columns of features, in the order of ``in_features``. Part of the fingerprint;
    empty: rows are taken as they are."""
    ranges: Ranges = ()
    """Usual values of columns. A site warns its own people of rows that do not fit."""

    @classmethod
    def read(cls, fields: object) -> Offer:
        """The offer in a message. Every field is checked, unknown fields are ignored."""
        header = read_object(fields, "offer")
        protocol = header.integer("protocol", 1)
        check_protocol(protocol, "this site", "the server")
        width = header.integer("in_features", 1, MAX_WIDTH)
        privacy, of_upload = header.one_of("privacy", *get_args(Privacy)), dict[str, int]()
        if privacy == "none":
            of_upload["group_size"] = header.integer("group_size", 1, MAX_GROUP_SIZE)
            of_upload["min_group"] = header.integer("min_group", 1, MAX_ROWS)
        else:
            of_upload["out_features"] = header.integer("out_features", 1, MAX_WIDTH)
            of_upload["seed"] = header.integer("seed", 0, 2**32 - 1)
        return cls(
            check_id(header.text("federation", 64), "federation"),
            check_id(header.text("task", 64), "task"),
            width,
            header.one_of("kind", *get_args(UnitKind)),
            check_source(header.get("source")),
            header.integer("budget_bytes", 1024, MAX_BUDGET),
            earlier=read_tasks(header, "earlier", MAX_EARLIER),
            classes=read_labels(header, "classes"),
            known_classes=read_labels(header, "known_classes"),
            protocol=protocol,
            privacy=privacy,
            columns=check_columns(header.items("columns", MAX_COLUMNS), width),
            ranges=check_ranges(header.fields.get("ranges", ())),
            **of_upload,
        )

    @classmethod
    def load(cls, path: Path) -> Offer:
        """The offer in a file, as a site keeps it in its folder ``state``."""
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; expected a site's state/offer.json")
        try:
            return cls.read(json.loads(path.read_bytes()))
        except (ValueError, RecursionError) as reason:
            raise Refused(str(path), "a site's state/offer.json", str(reason)) from None

    def fields(self) -> dict[str, Any]:
        """The offer as plain values, for a message, without what is of another kind of upload."""
        other = OF_SUMS if self.privacy == "none" else OF_POINTS
        given = {k: v for k, v in asdict(self).items() if k not in other}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}

    def features(self) -> KernelFeatures | RandomFeatures:
        """The feature map. Under differential privacy there are no random features."""
        source = {"backbone": self.source} if isinstance(self.source, str) else self.source
        if self.columns:
            source = {**source, "columns": columns_hash(self.columns)}
        if self.privacy == "none":
            return KernelFeatures(self.in_features, self.kind, source=source)
        projected = self.privacy != "dp"
        width, seed = self.out_features, self.seed
        return RandomFeatures(
            self.in_features, width, self.kind, seed, source=source, projected=projected
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of uploads and heads."""
        return self.features().fingerprint

    def require_plain(self) -> None:
        """Refuse to make an upload of one site where sums are masked."""
        if self.privacy != "none":
            raise Refused(
                "privacy",
                'a server with privacy = "none"',
                self.privacy,
                hint="the server of this federation learns only the sum of all sites: a site takes "
                "part while it is connected, and corrected rows need a new task id",
            )

    def require(self, federation: str, source: FeatureSource | None) -> None:
        """Refuse an offer of another federation, or for features that this site does not have."""
        if self.federation != federation:
            raise Refused("federation", federation, self.federation)
        if source is not None:
            require_same_source(source, self.source)


def read_object(given: object, name: str) -> Header:
    """An object in a message. Anything else is refused."""
    if not isinstance(given, Mapping):
        raise Refused(name, "an object", type(given).__name__)
    return Header(dict(given))


def check_protocol(given: object, here: str, there: str) -> None:
    """Refuse messages of a later version of the protocol, whose fields may have another meaning."""
    if type(given) is not int or given > PROTOCOL:
        raise Refused(
            "protocol",
            f"version {PROTOCOL} or earlier, which {here} knows",
            given,
            hint=f"install the version of fedran that {there} has",
        )


def read_labels(header: Header, key: str) -> tuple[Label, ...]:
    """A list of labels in a message; empty if it is missing."""
    found = header.items(key, MAX_CLASSES) if key in header.fields else []
    if not all(type(c) is int or (isinstance(c, str) and len(c) <= MAX_LENGTH) for c in found):
        raise Refused(key, f"integers and texts of at most {MAX_LENGTH} characters", found)
    return tuple(found)


def check_columns(given: Sequence[object], width: int) -> tuple[str, ...]:
    """A list of all names of columns, or an empty list."""
    names = tuple(name for name in given if isinstance(name, str) and name)
    if len(names) != len(given):
        raise Refused("columns", "a list of texts", "other or empty values")
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        raise Refused("columns", "every name once", f"{twice[0]!r} twice")
    if len(names) not in (0, width):
        raise Refused("columns", f"{width} names, as many as in_features", len(names))
    if len(names) > MAX_COLUMNS or sum(map(len, names)) > MAX_COLUMN_NAMES:
        expected = f"at most {MAX_COLUMNS:,} names of {MAX_COLUMN_NAMES:,} characters together"
        raise Refused("columns", expected, f"{len(names):,} of {sum(map(len, names)):,}")
    return names


def check_source(given: object) -> FeatureSource:
    """A feature source that a fingerprint can hold and that is small enough for a message.

    >>> check_source({"backbone": "mine", "weights": "ab12"})
    {'backbone': 'mine', 'weights': 'ab12'}
    """
    texts = list(given.values()) if isinstance(given, dict) else [given]
    if not 0 < len(texts) <= MAX_SOURCE_FIELDS or not all(isinstance(text, str) for text in texts):
        raise Refused("source", f"text, or a table of 1 to {MAX_SOURCE_FIELDS} texts", given)
    assert isinstance(given, (str, dict))
    try:
        KernelFeatures(1, source=given)
    except ValueError as reason:
        raise Refused("source", "values that a fingerprint can hold", str(reason)) from None
    return given


def require_same_source(site: FeatureSource, server: FeatureSource) -> None:
    """Refuse features that site and server make differently. The message names the differences.

    >>> require_same_source("a", {"backbone": "a"})
    """
    here, there = ({"backbone": s} if isinstance(s, str) else s for s in (site, server))
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


def read_settled(header: Header) -> list[tuple[str, str]]:
    """Tasks and digests of the uploads that a site believes to be at the server.

    >>> read_settled(Header({"settled": [["may", "ab" * 32]]}))[0][0]
    'may'
    """
    given = header.items("settled", MAX_SETTLED) if "settled" in header.fields else []
    found = _read_pairs(given, "settled", "task and digest")
    for task, digest in found:
        check_id(task, "task")
        if len(digest) != 64:
            raise Refused("settled", "digests of 64 characters", digest)
    return found


def read_tasks(header: Header, key: str, most: int) -> tuple[str, ...]:
    """A list of tasks in a message; empty if it is missing."""
    found = header.items(key, most) if key in header.fields else []
    return tuple(check_id(task, "task") for task in found)


@dataclass(frozen=True)
class Envelope:
    """An upload with the statement about it and the sender's signature."""

    statement: Statement
    signature: bytes
    upload: bytes
    """The encoded points of a site, or a secure sum."""

    def message(self, limits: Limits = DEFAULT_LIMITS) -> Message:
        """The upload, decoded."""
        return decode_message(unpack(self.upload, limits), limits)

    def to_bytes(self) -> bytes:
        """The bytes that travel and are stored: 600 more than the upload."""
        parts = {"signature": self.signature, "upload": self.upload}
        arrays = {name: np.frombuffer(part, dtype=np.uint8) for name, part in parts.items()}
        return pack(ENVELOPE, asdict(self.statement), arrays)


def seal(
    upload: bytes,
    key: SiteKey,
    *,
    federation: str,
    client: str,
    task: str,
    fingerprint: str,
    revision: int = 0,
) -> Envelope:
    """Sign an upload of a site."""
    digest = hashlib.sha256(upload).hexdigest()
    statement = Statement(federation, client, task, fingerprint, digest, revision=revision)
    return Envelope(statement, key.sign(statement), upload)


def open_envelope(blob: bytes, limits: Limits = DEFAULT_LIMITS) -> Envelope:
    """Parse an envelope and check that its parts agree. ``Roster.check`` verifies the sender."""
    message = unpack(blob, limits).of_kind(ENVELOPE, hint="send what the client's outbox holds")
    header = message.header
    message.only("signature", "upload")
    statement = Statement(
        header.text("federation", 64),
        header.text("client", 64),
        header.text("task", 64),
        header.text("fingerprint", 64),
        header.text("digest", 64),
        tuple(_read_pairs(header.items("members", MAX_MEMBERS), "members", "client and task")),
        header.integer("revision", 0, MAX_REVISION),
        header.integer("sum_number", 0, MAX_SUMS),
    )
    upload = message.stream("upload")
    if hashlib.sha256(upload).hexdigest() != statement.digest:
        raise Refused("digest", "the SHA-256 of the upload in the envelope", statement.digest)
    return Envelope(statement, message.stream("signature"), upload)


def _read_pairs(given: list[Any], name: str, what: str) -> list[tuple[str, str]]:
    for pair in given:
        if not isinstance(pair, list) or [type(p) for p in pair] != [str, str]:
            raise Refused(name, f"pairs of {what}", pair)
    return [(first, second) for first, second in given]
