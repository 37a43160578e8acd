"""What the owner decides about sites and heads: accept, forget, roll back."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from fedran.core.errors import Refused, check_id
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.server.head.head import update_head
from fedran.federation.server.head.validation import ValidationSet
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.forgetting import (
    KEY,
    Forgotten,
    sign_record,
    to_forget,
    write_record,
)
from fedran.federation.server.store.schema import Upload
from fedran.federation.server.store.store import PINNED, VOUCHED, Store, locked_store

T = TypeVar("T")


def _decide(paths: ServerPaths, task: str, change: Callable[[Store], T]) -> tuple[T, str]:
    """Change the store, and solve the head again. A running server sends it to all sites.

    Returns what ``change`` says, and the digest of the head.
    """
    settings = paths.settings()
    with locked_store(paths.folder, settings, task) as store:
        validation = ValidationSet.load(paths.folder, settings)
        said = change(store)
        _, digest = update_head(store, validation, task)
        store.database.set_outdated()
    return said, digest


def vouch_for(paths: ServerPaths, client: str, *, withdraw: bool = False) -> str:
    """Let everything of a site count, whatever others say about it; returns the head's digest.

    Classes that it alone has sent count too. With ``withdraw``, it is judged like the others again.
    """

    def change(store: Store) -> None:
        if all(upload.client != client for upload in store.state.uploads.values()):
            raise Refused("site", "one with an upload", client)
        names = {*store.vouched} - {client} if withdraw else {*store.vouched, client}
        store.database.set_fact(VOUCHED, json.dumps(sorted(names)))
        store.events.write("withdraw" if withdraw else "accept", client=client)

    return _decide(paths, "accept", change)[1]


def preview_forget(
    paths: ServerPaths, client: str, task: str | None = None
) -> tuple[Forgotten, list[Upload]]:
    """What ``forget`` would remove, and the secure sums that it would end. Nothing is changed."""
    check_id(client, "client")
    try:
        database = Database(paths.state, read_only=True)
    except FileNotFoundError:
        raise Refused("upload", f"an upload of {client}", "none yet") from None
    with closing(database):
        found = to_forget(database, client, task, "")
        removed = {(t.client, t.task) for t in found.tombstones} | {u.key for u in found.sums}
        return found, [u for u in database.uploads() if u.sum_number and u.key in removed]


def forget(paths: ServerPaths, client: str, task: str | None = None) -> tuple[Forgotten, Path]:
    """Remove a site's uploads, for one task or all; returns what was removed and its record.

    The state is rebuilt from the remaining uploads. A running server sends the new head to all
    sites. The record is signed with the server's ``record.key``, which is made here if needed.
    """
    check_id(client, "client")
    if task is not None:
        check_id(task, "task")
    try:
        who = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        who = "unknown"
    settings, key = paths.settings(), SiteKey.load_or_make(paths.folder / KEY)
    found, after = _decide(paths, "forget", lambda store: store.forget(client, task, who, key))
    record = sign_record(settings.federation, found, key, after)
    with closing(Database(paths.state)) as database:
        database.add_record(record)
    return found, write_record(paths.folder, client, record)


def record_key(paths: ServerPaths) -> str | None:
    """The public key of the server's records; None before the first one."""
    path = paths.folder / KEY
    return SiteKey.load(path).public if path.is_file() else None


def release_head(paths: ServerPaths) -> str:
    """End a rollback; returns the digest of the newest head."""

    def change(store: Store) -> None:
        if not store.pinned:
            raise Refused("head", "a head that was rolled back", "the newest one")
        store.database.set_fact(PINNED, "")

    return _decide(paths, "release", change)[1]


def roll_back(paths: ServerPaths, task: str) -> tuple[str, bool]:
    """Solve the head again as it was after a task. Later uploads wait until ``release_head``.

    Returns its digest, and whether it equals the earlier one bit for bit. If not, uploads in it
    were forgotten or revised since, another site or class is set aside now, or sites calibrate it,
    which they do again in the next run.
    """

    def change(store: Store) -> str:
        heads = [head for head in store.database.heads() if head.task == task]
        if not heads:
            solved = {head.task for head in store.database.heads()}
            known = [t.task for t in store.database.tasks() if t.task in solved]
            expected = f"a task after which a head was solved ({', '.join(known[-10:]) or 'none'})"
            raise Refused("task", expected, task)
        last = heads[-1].last_upload
        if all(upload.number > last for upload in store.state.uploads.values()):
            raise Refused("task", "a task whose uploads are still in the store", task)
        store.database.set_fact(PINNED, json.dumps({"task": task, "last_upload": last}))
        store.events.write("rollback", task=task, digest=heads[-1].digest)
        return heads[-1].digest

    before, digest = _decide(paths, task, change)
    return digest, digest == before
