"""The tables of the server's database, and what their rows say.

The fields of an entry are the columns of its table, in this order. Tuples are stored as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedran.core.labels import Label
from fedran.core.points import Points
from fedran.core.sums.aggregator import Message
from fedran.federation.protocol.identity import UploadId

FILE = "store.db"
VERSION = 1
"""Of the schema. A database of another version is refused."""
SCHEMA = """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE envelopes (sha256 TEXT PRIMARY KEY, content BLOB NOT NULL);
    CREATE TABLE uploads (
        number INTEGER PRIMARY KEY, client TEXT NOT NULL, task TEXT NOT NULL,
        digest TEXT NOT NULL, at REAL NOT NULL, bytes INTEGER NOT NULL, rows INTEGER NOT NULL,
        energy REAL NOT NULL, cut REAL NOT NULL, revision INTEGER NOT NULL, classes TEXT NOT NULL,
        members TEXT NOT NULL, sum_number INTEGER NOT NULL,
        envelope TEXT NOT NULL UNIQUE REFERENCES envelopes (sha256),
        UNIQUE (client, task)
    );
    CREATE TABLE tombstones (
        client TEXT NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL, at REAL NOT NULL,
        who TEXT NOT NULL, sum_number INTEGER NOT NULL, PRIMARY KEY (client, task, digest)
    );
    CREATE TABLE records (number INTEGER PRIMARY KEY, at REAL NOT NULL, content TEXT NOT NULL);
    CREATE TABLE ledger (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, task TEXT NOT NULL,
        attempt INTEGER NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
        sites TEXT NOT NULL, UNIQUE (task, attempt)
    );
    CREATE TABLE heads (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL,
        classes INTEGER NOT NULL, bytes INTEGER NOT NULL, accuracy REAL, seconds REAL NOT NULL,
        last_upload INTEGER NOT NULL
    );
    CREATE TABLE tasks (
        number INTEGER PRIMARY KEY, task TEXT NOT NULL UNIQUE, state TEXT NOT NULL,
        opened REAL NOT NULL, deadline REAL NOT NULL, min_clients INTEGER NOT NULL,
        asked TEXT NOT NULL, missing TEXT NOT NULL
    );
    CREATE TABLE runs (
        run TEXT PRIMARY KEY, task TEXT NOT NULL, status TEXT NOT NULL, received INTEGER NOT NULL,
        sent INTEGER NOT NULL
    );
    CREATE TABLE seen (client TEXT PRIMARY KEY, at REAL NOT NULL);
    CREATE TABLE nodes (client TEXT PRIMARY KEY, node TEXT NOT NULL UNIQUE, key TEXT NOT NULL);
    CREATE TABLE served (node TEXT PRIMARY KEY);
    CREATE TABLE events (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL,
        outcome TEXT NOT NULL, fields TEXT NOT NULL
    )
"""


@dataclass(frozen=True)
class Upload:
    """What the database says about an accepted upload, without the envelope itself."""

    number: int
    """In order of acceptance. Numbers of deleted uploads are missing."""
    client: str
    task: str
    digest: str
    """SHA-256 of the encoded message."""
    at: float
    bytes: int
    rows: int
    energy: float
    """Of a summary: of all rows together, as it states."""
    cut: float
    """Of a summary: energy that truncation removed, as it states."""
    revision: int
    """How often the site has replaced it."""
    classes: tuple[tuple[str | int, int], ...]
    """Labels and their numbers of rows."""
    members: tuple[UploadId, ...]
    """For a secure sum: the sites whose rows it adds up, each with the task."""
    sum_number: int
    """Of a secure sum among those of its task; 0: the upload of a site."""
    envelope: str
    """SHA-256 of the envelope."""

    @property
    def key(self) -> UploadId:
        """The id of the upload."""
        return self.client, self.task

    @property
    def sites(self) -> int:
        """The number of sites whose rows it describes."""
        return len(self.members) or 1


def class_rows(message: Message) -> tuple[tuple[Label, int], ...]:
    """Labels of a message and their numbers of rows."""
    if isinstance(message, Points):
        return tuple(message.rows_per_class().items())
    return tuple(zip(message.classes, map(int, message.counts), strict=True))


@dataclass(frozen=True)
class Tombstone:
    """An upload that was forgotten. No other one is accepted for its client and task."""

    client: str
    task: str
    digest: str
    """SHA-256 of the encoded message; empty if it was known only as part of a sum."""
    at: float
    who: str
    """The user of the server's machine who gave the command."""
    sum_number: int = 0
    """As in ``Upload``."""


@dataclass(frozen=True)
class Charge:
    """What the rows of a secure sum have spent. It is written before the sum is revealed."""

    number: int
    at: float
    task: str
    attempt: int
    epsilon: float
    """Infinite for a sum without noise."""
    delta: float
    sites: tuple[str, ...]


@dataclass(frozen=True)
class SolvedHead:
    """A head that was solved, tested and sent."""

    number: int
    at: float
    task: str
    digest: str
    """SHA-256 of the encoded head."""
    classes: int
    bytes: int
    accuracy: float | None
    """On the validation rows, from 0 to 1; None without them."""
    seconds: float
    last_upload: int
    """Number of the last upload in it."""


@dataclass(frozen=True)
class Task:
    """A task that was opened."""

    number: int
    task: str
    state: str
    """open, complete, quorum or short."""
    opened: float
    deadline: float
    """Seconds after it was opened."""
    min_clients: int
    asked: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run of Flower, with the bytes that its server received and sent."""

    run: str
    task: str
    status: str
    received: int
    sent: int
