"""Rebuilds a server's state at another width from the mixtures in its database."""

from __future__ import annotations

import re
import tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fedran.core.mixture import Mixture
from fedran.federation.protocol.lockfile import locked
from fedran.federation.server.database import Database
from fedran.federation.server.head import update_head
from fedran.federation.server.schema import SNAPSHOTS
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store import Store
from fedran.federation.server.validation_set import ValidationSet
from fedran.wire.files import write_atomically


class NotRebuildable(ValueError):
    """The database holds summaries, which exist only at the width at which they were made."""


def rebuild(paths: ServerPaths, out_features: int) -> int:
    """Change ``out_features`` of a server and lift all stored mixtures again; returns their number.

    The sites are not asked. Later uploads need no change either, because a mixture does not name
    the width. A running server hands the new classifier to all sites. After a crash at any moment,
    the uploads are complete and the settings name the old width or the new one.
    """
    settings = replace(paths.settings(), out_features=out_features)
    with locked(paths.state, 60.0, task="rebuild"):
        changed = _with_out_features(paths.settings_file, out_features)
        validation = ValidationSet.load(settings, paths.folder)
        count = _require_mixtures(paths.state)
        # Snapshots only save time, and those of another width are refused.
        for snapshot in paths.state.glob(SNAPSHOTS):
            snapshot.unlink()
        # The settings change after the lift, because memory may not suffice for the new width.
        with closing(Store.open(settings, paths.folder)) as store:
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
