"""A SQLite file whose errors are those of a store."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedran.federation.protocol.limits import BUSY_SECONDS
from fedran.federation.protocol.lockfile import require_space

APPLICATION_ID = 0x66656472


class StoreDamaged(OSError):
    """The database is not what was written."""


class StoreFailed(OSError):
    """The disk is full or fails, or another process kept the database for too long."""


class StoreVersion(OSError):
    """Another version of fedran wrote the database."""


class SqliteFile:
    """An open file. Several processes may use it at the same time, each with its own object.

    After ``transaction`` has ended without an exception, its changes are on disk. With an
    exception, none of them is there. ``schema`` makes the tables of a new file.
    """

    def __init__(self, path: Path, schema: str, version: int, *, read_only: bool = False) -> None:
        self.path = path
        self.lock = threading.RLock()
        if read_only and not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; expected the database of a server")
        if not read_only:  # only its owner can read it
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.fchmod(handle, 0o600)  # a copy may have another mode
            os.close(handle)
        mode = "ro" if read_only else "rw"
        with self.named_errors():
            self.sql = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            with self.named_errors():
                self._open(schema, version, read_only)
        except BaseException:
            self.sql.close()
            raise

    def _open(self, schema: str, version: int, read_only: bool) -> None:
        if not read_only:
            self.sql.execute("PRAGMA journal_mode = WAL")
            self.sql.execute("PRAGMA synchronous = FULL")
            self.sql.execute("PRAGMA foreign_keys = ON")
            self.sql.execute("PRAGMA secure_delete = ON")
            if self._version() == 0:
                with self.transaction():  # another process may make the tables first
                    self._create(schema, version)
        (application,) = self.sql.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise StoreDamaged(f"{self.path}: expected a fedran database, got another one")
        if self._version() != version:
            raise StoreVersion(
                f"{self.path}: expected schema version {version}, got {self._version()}; use the "
                "version of fedran that wrote it"
            )

    def _version(self) -> int:
        return int(self.sql.execute("PRAGMA user_version").fetchone()[0])

    def _create(self, schema: str, version: int) -> None:
        """Make the tables if the file is empty."""
        (tables,) = self.sql.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            for statement in schema.split(";"):
                self.sql.execute(statement)
            self.sql.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.sql.execute(f"PRAGMA user_version = {version}")

    def close(self) -> None:
        """Close the file. Nothing is lost without it."""
        with self.lock:
            self.sql.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of the block or none. Inside another transaction, join that one."""
        with self.lock, self.named_errors():
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
    def named_errors(self) -> Iterator[None]:
        """Raise errors of SQLite as errors of the store, with the file's name."""
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as reason:
            if isinstance(reason, (sqlite3.ProgrammingError, sqlite3.IntegrityError)):
                raise
            code = getattr(reason, "sqlite_errorcode", None)  # None: text that is not UTF-8
            if code is None or code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise self.damaged(f"the database is damaged ({reason})") from None
            if not isinstance(reason, sqlite3.OperationalError):
                raise
            require_space(self.path.parent)
            raise StoreFailed(f"{self.path}: {reason}") from None

    def put(self, table: str, *, replace: bool = False, **row: Any) -> None:
        """Write one row."""
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        with self.transaction():
            self.sql.execute(
                f"{verb} INTO {table} ({names}) VALUES ({marks})",
                tuple(row.values()),
            )

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows that a query finds."""
        with self.lock, self.named_errors():
            return self.sql.execute(sql, values).fetchall()

    def rows(self, table: str, rest: str = "", values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a table."""
        return self.query(f"SELECT * FROM {table} {rest}", values)  # noqa: S608

    def damaged(self, what: str) -> StoreDamaged:
        """The error for something that is not what was written, with the remedy."""
        return StoreDamaged(
            f"{self.path}: {what}; `fedran federation verify` lists all damage, and "
            "`fedran federation restore` puts a backup in its place"
        )

    def next(self, table: str) -> int:
        """The number of the next row of a table."""
        (last,) = self.sql.execute(f"SELECT max(number) FROM {table}").fetchone()  # noqa: S608
        return (last or 0) + 1

    def checkpoint(self) -> None:
        """Empty the log of changes, so that deleted data is in no file any more."""
        with self.lock, self.named_errors():
            self.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy, one file, while other processes read and write."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with self.lock, self.named_errors():
            target = sqlite3.connect(path)
            try:
                self.sql.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")
            finally:
                target.close()
