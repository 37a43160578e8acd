"""Verifies, backs up, restores, repairs and rebuilds the store of a server."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fedran.core.aggregator import Aggregator
from fedran.core.errors import Refused, shortened
from fedran.core.mixture import Mixture
from fedran.federation.ops.decisions import record_key
from fedran.federation.protocol.lockfile import lock_holder, locked
from fedran.federation.server.database import Database
from fedran.federation.server.events import EventLog
from fedran.federation.server.forgetting import check_record
from fedran.federation.server.gate import ValidationSet
from fedran.federation.server.head import update_head
from fedran.federation.server.integrity import salvage, verify
from fedran.federation.server.ledger import Ledger
from fedran.federation.server.schema import FILE, SNAPSHOTS, Tombstone
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.sqlite_file import StoreDamaged, StoreFailed
from fedran.federation.server.store import Store
from fedran.wire.files import load, sync_folder, write_atomically

COMPANIONS = ("", "-wal", "-shm")
"""A database and the files that SQLite has beside it."""


class ServerRunning(OSError):
    """The store of a running server cannot be replaced."""


class NotRebuildable(ValueError):
    """The database holds summaries, which exist only at the width at which they were made."""


def verify_store(paths: ServerPaths) -> list[str]:
    """Every damage of the database, its snapshots and its signed records, one sentence each.

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
    for path in sorted(paths.state.glob(SNAPSHOTS)):
        try:
            load(path, Aggregator)
        except (OSError, ValueError) as reason:
            found.append(f"{reason}; delete this snapshot, the server makes a new one")
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
    charged stays charged. The epoch is a new one, so that sites send again what the backup does not
    contain. The old database is kept beside it.
    """
    key = record_key(paths)
    tombstones = [t for path in records for t in check_record(path.read_text(), key)]
    with _stopped(paths):
        _require_intact(backup)
        try:
            with closing(Database(paths.state)) as present:
                tombstones += present.tombstones()
                charges, facts = present.ledger(), Ledger(present).facts()
        except (FileNotFoundError, StoreDamaged, StoreFailed):
            charges, facts = [], []
        with TemporaryDirectory(dir=paths.state, prefix=".restore-") as folder:
            shutil.copyfile(backup / FILE, Path(folder) / FILE)
            with closing(Database(folder)) as database:
                known = set(database.tombstones())
                again = [t for t in dict.fromkeys(tombstones) if t not in known]
                database.forget(again)
                Ledger(database).carry_over(charges, facts)
                database.new_epoch()
                database.set_outdated()
                EventLog(database).write("restore", forgotten=len(again))
            _replace(paths.state, Path(folder), "replaced")
    return again


def repair(paths: ServerPaths) -> list[str] | None:
    """Make a database of everything that is intact in a damaged one; returns what is lost.

    None: nothing was damaged, and nothing was changed. The damaged database is kept beside the
    new one.
    """
    with _stopped(paths):
        if not (paths.state / FILE).is_file():
            raise FileNotFoundError(f"{paths.state / FILE}: no such file; restore a backup")
        try:
            with closing(Database(paths.state)) as database:
                if not verify(database):
                    return None
        except (StoreDamaged, StoreFailed):
            pass
        with TemporaryDirectory(dir=paths.state, prefix=".repair-") as folder:
            with closing(Database(folder)) as database:
                lost = salvage(paths.state / FILE, database)
                database.set_outdated()
                EventLog(database).write("repair", lost=lost)
            _replace(paths.state, Path(folder), "damaged")
    return lost


def rebuild(paths: ServerPaths, out_features: int) -> int:
    """Change ``out_features`` of a server and lift all stored mixtures again; returns their number.

    The sites are not asked. Later uploads need no change either, because a mixture does not name
    the width. A running server hands the new classifier to all sites. After a crash at any moment,
    the uploads are complete and the settings name the old width or the new one.
    """
    settings = replace(paths.settings(), out_features=out_features)
    with locked(paths.state, 60.0, task="rebuild"):
        changed = _with_out_features(paths.settings_file, out_features)
        validation = ValidationSet.load(paths.folder, settings)
        count = _require_mixtures(paths.state)
        # Snapshots only save time, and those of another width are refused.
        for snapshot in paths.state.glob(SNAPSHOTS):
            snapshot.unlink()
        # The settings change after the lift, because memory may not suffice for the new width.
        with closing(Store.open(paths.folder, settings)) as store:
            store.database.set_outdated()
            write_atomically(paths.settings_file, changed.encode())
            store.snapshot()
            update_head(store, validation, "rebuild")
    return count


def _require_mixtures(state: Path) -> int:
    """The number of accepted uploads, all of which must be mixtures."""
    with closing(Database(state)) as database:
        for upload in database.uploads():
            if not isinstance(database.message(upload), Mixture):
                raise NotRebuildable(
                    "the database must hold mixtures only, but the upload of "
                    f"{upload.client} for {upload.task} is a summary, which cannot be lifted to "
                    "another width; start a new federation with the new out_features and ask the "
                    "sites again"
                )
        return database.count()


def _with_out_features(path: Path, out_features: int) -> str:
    """The text of a TOML file with one setting replaced. Comments and all other lines stay."""
    text = path.read_text(encoding="utf-8")
    line = f"out_features = {out_features}"
    changed, found = re.subn(r"(?m)^out_features[ \t]*=[ \t]*[0-9_]+", line, text, count=1)
    if not found:  # before the first table, where a top-level setting must be
        changed = f"{line}\n{text}"
    expected = {**tomllib.loads(text), "out_features": out_features}
    if tomllib.loads(changed) != expected:
        raise ValueError(f"{path}: write {line} into it by hand, then run rebuild again")
    return changed


def _require_intact(folder: Path) -> None:
    with closing(Database(folder, read_only=True)) as database:
        found = verify(database)
    if found:
        raise StoreDamaged(f"{folder / FILE}: {shortened(found, 1)}")


@contextmanager
def _stopped(paths: ServerPaths) -> Iterator[None]:
    """Hold the store's lock while no server runs."""
    if lock_holder(paths.folder / "log") is not None:
        raise ServerRunning(
            f"{paths.folder}: the server runs; stop it with `fedran federation down`"
        )
    with locked(paths.folder / "log", 2.0), locked(paths.state, 60.0, task="maintenance"):
        yield


def _replace(state: Path, new: Path, name: str) -> None:
    """Put a closed database in the place of the present one, which is renamed.

    The old log of changes must not meet the new database, so it is renamed first.
    """
    number = 1 + sum(path.name.startswith(f"{name}-") for path in state.iterdir())
    for suffix in reversed(COMPANIONS):
        old = state / f"{FILE}{suffix}"
        if old.exists():
            old.replace(state / f"{name}-{number}.db{suffix}")
    (new / FILE).replace(state / FILE)
    sync_folder(state)
