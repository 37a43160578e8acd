"""Verifies, backs up and restores the store of a server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from fedran.core.errors import Refused, shortened
from fedran.federation.ops.decisions import record_key
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.head.head import HEAD, update_head
from fedran.federation.server.head.validation import ValidationSet
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from fedran.federation.server.store.forgetting import check_record
from fedran.federation.server.store.schema import FILE, Tombstone
from fedran.federation.server.store.sqlite_file import StoreDamaged, StoreFailed
from fedran.federation.server.store.store import RESTORED, Store
from fedran.wire.files import sync_folder

COMPANIONS = ("", "-wal", "-shm")
"""A database and the files that SQLite has beside it."""


def verify(database: Database) -> list[str]:
    """Every damage of a database, one sentence each; empty if it is what was written.

    SQLite checks its pages, indices and references. Every upload is compared with its digest.
    """
    with database.lock:
        database.sql.execute("BEGIN")  # one moment, while other processes write
        try:
            return list(_damage(database))
        finally:
            database.sql.execute("ROLLBACK")


def _damage(database: Database) -> Iterator[str]:
    try:
        for (line,) in database.query("PRAGMA integrity_check(20)"):
            if line != "ok":
                yield f"pages of the database: {line}"
        for table, row, *_ in database.query("PRAGMA foreign_key_check"):
            yield f"row {row} of the table {table} names an upload that does not exist"
        for upload in database.uploads():
            try:
                statement = database.opened(upload).statement
            except (StoreDamaged, Refused):
                yield f"the upload of {upload.client} for {upload.task} is not what was written"
                continue
            if (*statement.key, statement.digest) != (upload.client, upload.task, upload.digest):
                yield f"the upload of {upload.client} for {upload.task} belongs to another row"
    except (StoreDamaged, StoreFailed) as reason:
        yield str(reason)


def verify_store(paths: ServerPaths) -> list[str]:
    """Every damage of the database and of the signed records in it, one sentence each.

    Of a backup, the database alone: the key of its records is at the server.
    """
    is_backup = (paths.folder / FILE).is_file()
    folder = paths.folder if is_backup else paths.state
    try:
        with closing(Database(folder, read_only=True)) as database:
            found = verify(database)
            for content in [] if found or is_backup else database.records():
                check_record(content, record_key(paths))
    except (StoreDamaged, Refused) as reason:
        return [str(reason)]
    if found and not is_backup:
        found.append("`fedran federation restore` puts a backup in the place of the database")
    return found


def back_up(paths: ServerPaths, destination: Path) -> None:
    """Copy the database, the settings, the roster and the nodes' public keys to a new folder.

    The server may run. The copy is of one moment, and is verified. Private keys are not copied.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise FileExistsError(f"{destination}: is not an empty folder; name a new one")
    destination.mkdir(parents=True, exist_ok=True, mode=0o700)
    with closing(Database(paths.state, read_only=True)) as database:
        database.copy_to(destination / FILE)
    _require_intact(destination)
    shutil.copy2(paths.settings_file, destination)
    shutil.copy2(paths.roster, destination)
    shutil.copytree(paths.nodes, destination / "nodes")
    sync_folder(destination)


def restore(paths: ServerPaths, backup: Path, records: Sequence[Path] = ()) -> list[Tombstone]:
    """Replace the database by that of a backup; returns what was forgotten again.

    What was forgotten after the backup was made stays forgotten: by the tombstones in the present
    database, and by signed records, for the case that it is lost. What the present ledger has
    charged stays charged. The classifier is solved from what the backup contains, and is sent to
    nobody before the sites have sent again what is missing. The old database is kept beside it.
    """
    key, settings = record_key(paths), paths.settings()
    validation = ValidationSet.load(paths.folder, settings)
    tombstones = [t for path in records for t in check_record(path.read_text(), key)]
    with locked(paths.folder / "log", 2.0), locked(paths.state, 60.0, task="restore"):
        _require_intact(backup)
        try:
            with closing(Database(paths.state, read_only=True)) as present:
                tombstones += present.tombstones()
                charges = present.ledger()
        except (FileNotFoundError, StoreDamaged, StoreFailed):
            charges = []
        with TemporaryDirectory(dir=paths.state, prefix=".restore-") as folder:
            shutil.copyfile(backup / FILE, Path(folder) / FILE)
            roster = Roster.load(paths.roster)
            with closing(Database(folder)) as database:
                known = set(database.tombstones())
                again = [t for t in dict.fromkeys(tombstones) if t not in known]
                database.forget(again)
                for c in charges:
                    database.add_charge(c.task, c.attempt, c.epsilon, c.delta, c.sites)
                database.set_outdated()
                if settings.privacy == "none":
                    database.set_fact(RESTORED, json.dumps([*roster.clients]))
                EventLog(database).write("restore", forgotten=len(again))
            with closing(Store(folder, settings, roster)) as store:
                update_head(store, validation, "restore")
            _replace(paths.state, Path(folder))
    return again


def _require_intact(folder: Path) -> None:
    with closing(Database(folder, read_only=True)) as database:
        found = verify(database)
    if found:
        raise StoreDamaged(f"{folder / FILE}: {shortened(found, 1)}")


def _replace(state: Path, new: Path) -> None:
    """Put a closed database and its head in the place of the present ones.

    The present database is renamed: its log of changes first, which must not meet the new one.
    """
    (state / HEAD).unlink(missing_ok=True)
    number = 1 + sum(path.name.startswith("replaced-") for path in state.iterdir())
    for suffix in reversed(COMPANIONS):
        old = state / f"{FILE}{suffix}"
        if old.exists():
            old.replace(state / f"replaced-{number}.db{suffix}")
    for name in (FILE, HEAD):
        if (new / name).exists():
            (new / name).replace(state / name)
    sync_folder(state)
