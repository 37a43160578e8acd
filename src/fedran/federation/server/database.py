"""The server's database: one SQLite file with everything that the server must not lose.

Every row has a checksum, every envelope is stored under its SHA-256. Both are verified when a row
is read and by ``Database.verify``; nothing is verified when the file is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedran.core.mixture import Mixture
from fedran.core.summary import Summary
from fedran.federation.protocol.identity import Statement, UploadId

FILE = "store.db"
APPLICATION_ID = 0x66656472
BUSY_SECONDS = 60.0
"""How long a process waits for another one that writes."""
SNAPSHOTS = "snapshot-*.fedran"
MIGRATIONS = (
    """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL);
    CREATE TABLE envelopes (sha256 TEXT PRIMARY KEY, content BLOB NOT NULL);
    CREATE TABLE uploads (
        number INTEGER PRIMARY KEY, client TEXT NOT NULL, task TEXT NOT NULL,
        digest TEXT NOT NULL, at REAL NOT NULL, bytes INTEGER NOT NULL, rows INTEGER NOT NULL,
        energy REAL NOT NULL, cut REAL NOT NULL, classes TEXT NOT NULL, members TEXT NOT NULL,
        envelope TEXT NOT NULL UNIQUE REFERENCES envelopes (sha256), crc INTEGER NOT NULL,
        UNIQUE (client, task)
    );
    CREATE TABLE quarantine (
        client TEXT NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL, at REAL NOT NULL,
        reason TEXT NOT NULL, envelope TEXT NOT NULL UNIQUE REFERENCES envelopes (sha256),
        crc INTEGER NOT NULL, PRIMARY KEY (client, task)
    );
    CREATE TABLE tombstones (
        client TEXT NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL, at REAL NOT NULL,
        who TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (client, task, digest)
    );
    CREATE TABLE records (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, content TEXT NOT NULL, crc INTEGER NOT NULL
    );
    CREATE TABLE heads (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL,
        classes INTEGER NOT NULL, bytes INTEGER NOT NULL, accuracy REAL, seconds REAL NOT NULL,
        last_upload INTEGER NOT NULL, crc INTEGER NOT NULL
    );
    CREATE TABLE tasks (
        number INTEGER PRIMARY KEY, task TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL
    );
    CREATE TABLE nodes (
        client TEXT PRIMARY KEY, node TEXT NOT NULL UNIQUE, key TEXT NOT NULL, crc INTEGER NOT NULL
    );
    CREATE TABLE served (node TEXT PRIMARY KEY, crc INTEGER NOT NULL);
    CREATE TABLE events (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL, fields TEXT NOT NULL,
        crc INTEGER NOT NULL
    );
    """,
    """
    CREATE TABLE rejected (
        client TEXT NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL, at REAL NOT NULL,
        reason TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (client, task, digest)
    )
    """,
)
"""``MIGRATIONS[v]`` changes a database of schema version v into one of version v + 1."""


class StoreDamaged(OSError):
    """The database is not what was written."""


class StoreFailed(OSError):
    """The disk is full or fails, or another process kept the database for too long."""


class StoreVersion(OSError):
    """A newer version of fedran wrote the database."""


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
    """Of all rows together, as the upload states it."""
    cut: float
    """Energy that truncation removed, as the upload states it."""
    classes: tuple[tuple[str | int, int], ...]
    """Labels and their numbers of rows."""
    members: tuple[UploadId, ...]
    """For a forwarded sum: the uploads that it adds up."""
    envelope: str
    """SHA-256 of the envelope."""

    @property
    def key(self) -> UploadId:
        """The id of the upload."""
        return self.client, self.task


@dataclass(frozen=True)
class Waiting:
    """An upload in quarantine."""

    client: str
    task: str
    digest: str
    at: float
    reason: str
    envelope: str


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
    seconds: float
    last_upload: int
    """Number of the last upload in it."""


class Database:
    """The tables of a store. Several processes may use one at the same time, each with its own.

    After ``transaction`` has ended without an exception, its changes are on disk. With an
    exception, none of them is there.
    """

    def __init__(self, folder: str | Path, *, read_only: bool = False) -> None:
        self.folder, self.path = Path(folder), Path(folder) / FILE
        self.lock = threading.RLock()
        if not read_only:
            self._create()
        elif not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such file; expected the database of a server")
        mode = "ro" if read_only else "rw"
        with self._named_errors():
            self.sql = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            with self._named_errors():
                self._open(read_only)
        except BaseException:
            self.sql.close()
            raise

    def _create(self) -> None:
        """Make an empty file that only its owner can read, unless the database exists."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.path.exists() and self.path.stat().st_size:
            return
        if any(self.folder.glob(SNAPSHOTS)):
            raise StoreDamaged(
                f"{self.path}: the database is missing, but a snapshot of it exists; restore it "
                "from a backup, or delete the snapshots to begin anew"
            )
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))

    def _open(self, read_only: bool) -> None:
        self.sql.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        if not read_only:
            self.sql.execute("PRAGMA journal_mode = WAL")
            self.sql.execute("PRAGMA synchronous = FULL")
            self.sql.execute("PRAGMA foreign_keys = ON")
            self.sql.execute("PRAGMA secure_delete = ON")
        (version,) = self.sql.execute("PRAGMA user_version").fetchone()
        if version < len(MIGRATIONS) and not read_only:
            with self.transaction():
                version = self._migrate()
        if version != len(MIGRATIONS):
            raise StoreVersion(
                f"{self.path}: expected schema version {len(MIGRATIONS)}, got {version}; use the "
                "version of fedran that wrote it"
            )
        (application,) = self.sql.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise StoreDamaged(f"{self.path}: expected a fedran database, got another one")

    def _migrate(self) -> int:
        """Bring the schema to the newest version, inside a transaction; returns the version."""
        (version,) = self.sql.execute("PRAGMA user_version").fetchone()
        (tables,) = self.sql.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version == 0 and tables:
            raise StoreDamaged(f"{self.path}: expected a fedran database, got another one")
        for migration in MIGRATIONS[version:]:
            for statement in filter(str.strip, migration.split(";")):
                self.sql.execute(statement)
        if version == 0:
            self.sql.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.new_epoch()
        self.sql.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        return len(MIGRATIONS)

    def close(self) -> None:
        """Close the file. Nothing is lost without it."""
        with self.lock:
            self.sql.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of the block or none. Inside another transaction, join that one."""
        with self.lock, self._named_errors():
            if self.sql.in_transaction:
                yield
                return
            self.sql.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.sql.execute("COMMIT")
            except BaseException:
                if self.sql.in_transaction:
                    self.sql.execute("ROLLBACK")
                raise

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raise errors of SQLite as errors of the store, with the file's name."""
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.DatabaseError) as reason:
            code = getattr(reason, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise StoreDamaged(
                    f"{self.path}: the database is damaged ({reason}); "
                    "`fedran federation repair` says what can be saved"
                ) from None
            if not isinstance(reason, sqlite3.OperationalError):
                raise
            raise StoreFailed(f"{self.path}: {reason}") from None

    def _put(self, table: str, *, replace: bool = False, **row: Any) -> None:
        """Write one row with its checksum."""
        row["crc"] = checksum(row.values())
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        with self.transaction():
            self.sql.execute(
                f"{verb} INTO {table} ({names}) VALUES ({marks})",
                tuple(row.values()),
            )

    def _rows(self, table: str, rest: str = "", values: Sequence[Any] = ()) -> list[list[Any]]:
        """Rows of a table without their checksums, which are verified."""
        with self.lock, self._named_errors():
            found = self.sql.execute(f"SELECT * FROM {table} {rest}", values).fetchall()  # noqa: S608
        for row in found:
            if checksum(row[:-1]) != row[-1]:
                raise self._damaged(f"a row of the table {table} ({str(row[0])[:64]!a})")
        return [list(row[:-1]) for row in found]

    def _damaged(self, what: str) -> StoreDamaged:
        return StoreDamaged(
            f"{self.path}: {what} is not what was written; the disk altered it, restore the "
            "database from a backup, or see what `fedran federation repair` can save"
        )

    def _next(self, table: str) -> int:
        (last,) = self.sql.execute(f"SELECT max(number) FROM {table}").fetchone()  # noqa: S608
        return (last or 0) + 1

    def fact(self, name: str) -> str:
        """A single value such as ``epoch`` or ``served_head``; empty if never set."""
        found = self._rows("facts", "WHERE name = ?", [name])
        return str(found[0][1]) if found else ""

    def set_fact(self, name: str, value: str) -> None:
        """Replace a single value."""
        self._put("facts", replace=True, name=name, value=value)

    def add_upload(self, statement: Statement, message: Summary | Mixture, blob: bytes) -> Upload:
        """Write an accepted upload, and end its quarantine."""
        with self.transaction():
            upload = Upload(
                self._next("uploads"),
                statement.client,
                statement.task,
                statement.digest,
                time.time(),
                len(blob),
                int(message.accounts.n_rows),
                float(message.accounts.energy),
                float(message.accounts.cut),
                tuple(zip(message.classes, map(int, message.counts), strict=True)),
                statement.members,
                self._add_envelope(blob),
            )
            lists = {"classes": _json(upload.classes), "members": _json(upload.members)}
            self._put("uploads", **{**vars(upload), **lists})
            ended = self.sql.execute(
                "DELETE FROM quarantine WHERE client = ? AND task = ?", upload.key
            )
            if ended.rowcount:  # another upload of the site may have waited
                self._drop_unused_envelopes()
        return upload

    def uploads(self) -> list[Upload]:
        """Accepted uploads in order of acceptance."""
        found = []
        for row in self._rows("uploads", "ORDER BY number"):
            row[9] = tuple((label, rows) for label, rows in json.loads(row[9]))
            row[10] = tuple((client, task) for client, task in json.loads(row[10]))
            found.append(Upload(*row))
        return found

    def count(self) -> int:
        """Number of accepted uploads."""
        with self.lock, self._named_errors():
            return int(self.sql.execute("SELECT count(*) FROM uploads").fetchone()[0])

    def envelopes(self) -> Iterator[bytes]:
        """The envelopes of accepted uploads in order of acceptance, one at a time in memory."""
        return (self.envelope(upload) for upload in self.uploads())

    def envelope(self, upload: Upload | Waiting) -> bytes:
        """The bytes of an upload, verified."""
        with self.lock, self._named_errors():
            found = self.sql.execute(
                "SELECT content FROM envelopes WHERE sha256 = ?", [upload.envelope]
            ).fetchone()
        if found is None or hashlib.sha256(found[0]).hexdigest() != upload.envelope:
            raise self._damaged(f"the upload of {upload.client} for {upload.task}")
        return bytes(found[0])

    def _add_envelope(self, blob: bytes) -> str:
        sha256 = hashlib.sha256(blob).hexdigest()
        self.sql.execute("INSERT OR IGNORE INTO envelopes VALUES (?, ?)", (sha256, blob))
        return sha256

    def add_waiting(self, statement: Statement, blob: bytes, reason: str) -> None:
        """Write an upload to quarantine."""
        with self.transaction():
            envelope = self._add_envelope(blob)
            waiting = Waiting(*statement.key, statement.digest, time.time(), reason, envelope)
            self._put("quarantine", replace=True, **vars(waiting))
            self._drop_unused_envelopes()  # of an upload that this one replaces

    def quarantine(self) -> dict[UploadId, Waiting]:
        """Uploads that wait for a decision, oldest first."""
        waiting = [Waiting(*row) for row in self._rows("quarantine", "ORDER BY at, client, task")]
        return {(w.client, w.task): w for w in waiting}

    def reject(self, waiting: Waiting, reason: str) -> None:
        """Remove an upload from quarantine for good: the same bytes are not accepted again."""
        with self.transaction():
            row = {"client": waiting.client, "task": waiting.task, "digest": waiting.digest}
            self._put("rejected", replace=True, **row, at=time.time(), reason=reason)
            key = waiting.client, waiting.task
            self.sql.execute("DELETE FROM quarantine WHERE client = ? AND task = ?", key)
            self._drop_unused_envelopes()

    def rejected(self) -> dict[tuple[str, str, str], str]:
        """Client, task and digest of rejected uploads -> the reason, oldest first."""
        rows = self._rows("rejected", "ORDER BY at, client, task")
        return {(client, task, digest): reason for client, task, digest, _, reason in rows}

    def add_task(self, task: str) -> None:
        """Add a task to the list of opened ones, unless it is there."""
        with self.transaction():
            if task not in self.tasks():
                self._put("tasks", number=self._next("tasks"), task=task)

    def tasks(self) -> list[str]:
        """The tasks that were opened, in this order."""
        return [task for _, task in self._rows("tasks", "ORDER BY number")]

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Clients with their node id at the SuperLink and the public key of the node."""
        return {client: (node, key) for client, node, key in self._rows("nodes")}

    def set_nodes(self, nodes: Mapping[str, tuple[str, str]]) -> None:
        """Replace the list of nodes."""
        with self.transaction():
            self.sql.execute("DELETE FROM nodes")
            for client, (node, key) in nodes.items():
                self._put("nodes", client=client, node=node, key=key)

    def node_owners(self) -> dict[str, str]:
        """Node ids at the SuperLink and the clients whose keys they have."""
        return {node: client for client, (node, _) in self.nodes().items()}

    def served(self) -> tuple[str, set[str]]:
        """The digest of the head that was sent last, and the nodes that have it."""
        return self.fact("served_head"), {node for (node,) in self._rows("served")}

    def set_served(self, head: str, nodes: Sequence[str] = ()) -> None:
        """Note which nodes have the newest head. The server sends it to all others."""
        with self.transaction():
            self.set_fact("served_head", head)
            self.sql.execute("DELETE FROM served")
            for node in nodes:
                self._put("served", node=node)

    def add_head(
        self,
        digest: str,
        *,
        task: str,
        classes: int,
        size: int,
        accuracy: float | None,
        seconds: float,
    ) -> None:
        """Note that a head was solved from all uploads that are accepted now."""
        with self.transaction():
            numbers = self._next("heads"), self._next("uploads") - 1
            at, shown = time.time(), None if accuracy is None else float(accuracy)
            head = SolvedHead(
                numbers[0], at, task, digest, classes, size, shown, float(seconds), numbers[1]
            )
            self._put("heads", **vars(head))

    def heads(self) -> list[SolvedHead]:
        """All heads, oldest first."""
        return [SolvedHead(*row) for row in self._rows("heads", "ORDER BY number")]

    def tombstones(self) -> list[Tombstone]:
        """What was forgotten, oldest first."""
        return [Tombstone(*row) for row in self._rows("tombstones", "ORDER BY at, client, task")]

    def forget(self, tombstones: Sequence[Tombstone]) -> None:
        """Write tombstones, and delete the uploads of their clients and tasks."""
        with self.transaction():
            for tombstone in tombstones:
                self._put("tombstones", replace=True, **vars(tombstone))
                key = tombstone.client, tombstone.task
                self.sql.execute("DELETE FROM uploads WHERE client = ? AND task = ?", key)
                self.sql.execute("DELETE FROM quarantine WHERE client = ? AND task = ?", key)
            self._drop_unused_envelopes()

    def _drop_unused_envelopes(self) -> None:
        self.sql.execute(
            "DELETE FROM envelopes WHERE sha256 NOT IN "
            "(SELECT envelope FROM uploads UNION ALL SELECT envelope FROM quarantine)"
        )

    def add_record(self, content: str) -> None:
        """Keep a signed record."""
        with self.transaction():
            self._put("records", number=self._next("records"), at=time.time(), content=content)

    def records(self) -> list[str]:
        """All signed records, oldest first."""
        return [content for _, _, content in self._rows("records", "ORDER BY number")]

    def new_epoch(self) -> None:
        """Say that the state is no longer a continuation of the earlier one."""
        self.set_fact("epoch", secrets.token_hex(8))

    def checkpoint(self) -> None:
        """Empty the log of changes, so that deleted data is in no file any more."""
        with self.lock, self._named_errors():
            self.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy, one file, while other processes read and write."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with self.lock, self._named_errors():
            target = sqlite3.connect(path)
            try:
                self.sql.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")
            finally:
                target.close()

    def delete_events(self, before: float, most: int) -> int:
        """Delete events from before a time, and the oldest beyond a number; returns how many."""
        with self.transaction():
            last = self._next("events") - 1 - most
            found = self.sql.execute(
                "DELETE FROM events WHERE at < ? OR number <= ?", (before, last)
            )
            return found.rowcount

    def add_event(self, event: str, fields: str) -> None:
        """Write one event with the current time. ``fields`` is a JSON object."""
        with self.transaction():
            at = round(time.time(), 3)
            self._put("events", number=self._next("events"), at=at, event=event, fields=fields)

    def events(self, after: int = 0) -> list[tuple[int, float, str, str]]:
        """Number, time, kind and fields of the events with a larger number, oldest first."""
        rows = self._rows("events", "WHERE number > ? ORDER BY number", [after])
        return [(number, at, event, fields) for number, at, event, fields in rows]


def checksum(values: Any) -> int:
    """The checksum of a row: CRC-32 of its other values as a JSON list."""
    return zlib.crc32(json.dumps(list(values), default=repr).encode())


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
