"""Verifies every byte of a database, and saves what is intact of a damaged one."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import Statement, UploadId
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.server.database import Database
from fedran.federation.server.events import EventLog
from fedran.federation.server.schema import MIGRATIONS
from fedran.federation.server.sqlite_file import StoreDamaged, checksum
from fedran.wire.validation import FILE_LIMITS

Row = tuple[Any, ...]
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading a damaged file raises. Messages of SQLite quote it, and may not be UTF-8."""
UNRECORDED = "the disk damaged the record of this upload; accept it if it was accepted before"


def verify(database: Database) -> list[str]:
    """Every damage of a database, one sentence each; empty if it is what was written.

    SQLite checks its pages and indices. Then all checksums of rows and envelopes are computed
    again, and every envelope is compared with the row that describes it.
    """
    sql, found = database.sql, list[str]()
    with database.lock:
        sql.execute("BEGIN")  # one moment, while other processes write
        try:
            found += _verify_pages(sql)
            intact = {}
            for table in table_names():
                intact[table], problems = _intact_rows(sql, table)
                found += problems
            found += _verify_envelopes(sql, intact)
        finally:
            sql.execute("ROLLBACK")
    return found


def _verify_pages(sql: sqlite3.Connection) -> Iterator[str]:
    try:
        if set(sql.execute("SELECT name, sql FROM sqlite_master")) != set(_schema()):
            yield "the schema of the database is not what was written"
        for (line,) in sql.execute("PRAGMA integrity_check(20)"):
            if line != "ok":
                yield f"pages of the database: {line}"
        for table, row, *_ in sql.execute("PRAGMA foreign_key_check"):
            yield f"row {row} of the table {table} names an envelope that does not exist"
    except DAMAGE as reason:
        yield f"pages of the database: {reason}"


def _verify_envelopes(sql: sqlite3.Connection, intact: dict[str, dict[int, Row]]) -> Iterator[str]:
    """Compare each upload with its envelope, one envelope in memory at a time."""
    used = set()
    for table, start in (("uploads", 1), ("quarantine", 0)):
        for row in intact[table].values():
            client, task, digest = row[start : start + 3]
            envelope = row[-2]
            used.add(envelope)
            statement = _statement(_content(sql, envelope), envelope)
            expected = client, task, digest
            if statement is None:
                yield f"the envelope of {client} for {task} is not what was written"
            elif (*statement.key, statement.digest) != expected:
                yield f"the envelope of {client} for {task} belongs to another upload"
    for (sha256,) in _tolerant(sql, "SELECT sha256 FROM envelopes"):
        if sha256 not in used:
            yield f"the envelope {str(sha256)[:12]} belongs to no upload"


def salvage(path: Path, new: Database) -> list[str]:
    """Copy everything that is intact into a new database; returns what is lost, in sentences.

    An envelope whose record is lost goes to quarantine, because nobody knows whether it was
    accepted. Uploads are named as lost if a record, an envelope or an event still names them.
    """
    lost = list[str]()
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as sql:
        try:
            sql.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except DAMAGE as reason:
            raise StoreDamaged(
                f"{path}: nothing can be saved ({reason}); restore a backup with "
                "`fedran federation restore`"
            ) from None
        with new.transaction():
            known = _save_uploads(sql, new, lost)
            for table in table_names():
                if table in ("envelopes", "uploads", "quarantine"):
                    continue
                rows, problems = _intact_rows(sql, table)
                lost += problems
                for row in rows.values():
                    _insert(new, table, row)
            gone = {(t.client, t.task) for t in new.tombstones()}
            lost += _named_in_events(new, known | gone)
            new.new_epoch()
    return lost


def _save_uploads(sql: sqlite3.Connection, new: Database, lost: list[str]) -> set[UploadId]:
    """Copy uploads whose record and envelope are intact, and envelopes without a record.

    Returns the uploads that were saved, or named as lost.
    """
    saved, named, used = set[UploadId](), set[UploadId](), set[str]()
    for table, start in (("uploads", 1), ("quarantine", 0)):
        rows, problems = _intact_rows(sql, table)
        lost += problems
        for row in rows.values():
            (client, task), sha256 = row[start : start + 2], row[-2]
            content = _content(sql, sha256)
            statement = _statement(content, sha256)
            used.add(sha256)
            if statement is None or statement.key != (client, task):
                lost.append(f"the upload of {client} for {task}: its envelope is damaged")
                named.add((client, task))
            else:
                _insert(new, "envelopes", (sha256, content))
                _insert(new, table, row)
                saved.add((client, task))
    for (sha256,) in _tolerant(sql, "SELECT sha256 FROM envelopes"):
        content = None if sha256 in used else _content(sql, sha256)
        statement = _statement(content, sha256)
        if statement is not None and content is not None and statement.key not in saved:
            new.add_waiting(statement, content, UNRECORDED)
            client, task = statement.key
            saved.add(statement.key)
            lost.append(f"the record of {client} for {task}; the upload itself is in quarantine")
    return saved | named


def _named_in_events(new: Database, known: set[UploadId]) -> Iterator[str]:
    """Accepted uploads that only the event log still names."""
    for event in EventLog(new).read():
        key = str(event.get("client")), str(event.get("task"))
        accepted = event["event"] == "upload" and event.get("outcome") == "accepted"
        if accepted and key not in known:
            known.add(key)
            yield f"the upload of {key[0]} for {key[1]}: only its event is left"


def _intact_rows(sql: sqlite3.Connection, table: str) -> tuple[dict[int, Row], list[str]]:
    """Rows by their internal number whose checksum is right, and the problems with the others.

    The table is read from both ends, so that only rows in damaged pages are unreadable.
    """
    if table == "envelopes":
        return {}, []
    numbers, problems, rows = set[int](), list[str](), dict[int, Row]()
    for order in ("ASC", "DESC"):
        found = _tolerant(sql, f"SELECT rowid FROM {table} ORDER BY rowid {order}")  # noqa: S608
        numbers.update(number for (number,) in found)
    for number in sorted(numbers):
        query = f"SELECT * FROM {table} WHERE rowid = {number}"  # noqa: S608
        row = next(iter(_tolerant(sql, query)), None)
        if row is None or checksum(row[:-1]) != row[-1]:
            name = "" if row is None else f" ({str(row[0])[:64]!a})"
            problems.append(f"row {number}{name} of the table {table} is not what was written")
        else:
            rows[number] = row
    try:
        sql.execute(f"SELECT count(*) FROM (SELECT * FROM {table})").fetchone()  # noqa: S608
    except DAMAGE as reason:
        problems.append(f"the table {table} cannot be read completely: {reason}")
    return rows, problems


def _tolerant(sql: sqlite3.Connection, query: str) -> Iterator[Row]:
    """The rows of a query up to the first damage."""
    try:
        yield from sql.execute(query)
    except DAMAGE:
        return


def _content(sql: sqlite3.Connection, sha256: str) -> bytes | None:
    try:
        query = "SELECT content FROM envelopes WHERE sha256 = ?"
        found = sql.execute(query, [sha256]).fetchone()
    except DAMAGE:
        return None
    return bytes(found[0]) if found is not None and isinstance(found[0], bytes) else None


def _statement(content: bytes | None, sha256: str) -> Statement | None:
    """What an envelope says; None unless it is intact."""
    if content is None or hashlib.sha256(content).hexdigest() != sha256:
        return None
    try:
        return open_envelope(content, FILE_LIMITS).statement
    except Refused:
        return None


def _insert(new: Database, table: str, row: Row) -> None:
    marks = ", ".join("?" * len(row))
    new.sql.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", row)  # noqa: S608


def table_names() -> list[str]:
    """The tables of the newest schema."""
    return [name for name, text in _schema() if text is not None and "CREATE TABLE" in text]


def _schema() -> list[tuple[str, str | None]]:
    with closing(sqlite3.connect(":memory:")) as sql:
        for migration in MIGRATIONS:
            sql.executescript(migration)
        return sql.execute("SELECT name, sql FROM sqlite_master").fetchall()
