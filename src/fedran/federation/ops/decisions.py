"""What the owner decides about uploads and heads: accept, reject, forget, roll back."""

from __future__ import annotations

import getpass
import hashlib
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fedran.core.errors import Refused, check_id
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.receipts import Receipt
from fedran.federation.server.head.gate import ValidationSet, gains_without
from fedran.federation.server.head.head import HEAD, clear_held, held_head, keep_held, update_head
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
from fedran.federation.server.store.store import locked_store
from fedran.wire.codec import encode
from fedran.wire.files import write_atomically


def decide_upload(
    paths: ServerPaths, client: str, task: str, *, reject: bool = False, reason: str = ""
) -> Receipt:
    """Accept or reject an upload in quarantine.

    A running server then tells the site, and sends a new head to all sites.
    """
    with locked_store(paths.folder, paths.settings(), task) as store:
        receipt = store.reject(client, task, reason) if reject else store.accept(client, task)
        store.database.set_outdated()
    return receipt


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
    with locked_store(paths.folder, settings, "forget") as store:
        validation = ValidationSet.load(paths.folder, settings)
        found = store.forget(client, task, who, key)
        after = ""
        if store.state.uploads:
            _, after = update_head(store, validation, "forget")
        else:  # no head can be solved, and the last one must not stay
            (store.folder / HEAD).unlink(missing_ok=True)
            clear_held(store)
        found = replace(found, record=sign_record(settings.federation, found, key, after))
        store.database.add_record(found.record)
    return found, write_record(paths.folder, client, found.record)


def record_key(paths: ServerPaths) -> str | None:
    """The public key of the server's records; None before the first one."""
    path = paths.folder / KEY
    return SiteKey.load(path).public if path.is_file() else None


def release_head(paths: ServerPaths) -> str:
    """Put a head that was held back into service; returns its digest."""
    settings = paths.settings()
    with locked_store(paths.folder, settings, "release") as store:
        if not held_head(store):
            raise Refused("head", "a head that is held back", "none")
        _, digest = update_head(store, ValidationSet.load(paths.folder, settings), "release")
        store.database.set_outdated()
    return digest


def influence_of_sites(paths: ServerPaths) -> dict[str, float]:
    """Points of accuracy that the head gains without each site. No task runs meanwhile."""
    settings = paths.settings()
    validation = ValidationSet.load(paths.folder, settings)
    if validation is None:
        raise ValueError(
            f"{paths.settings_file}: influence is measured on validation rows at the server, and "
            "counts of the sites (`site_validation`) are not used; name a file with `validation`"
        )
    with locked_store(paths.folder, settings, "influence") as store:
        if not store.state.uploads:
            raise Refused("store", "an accepted upload", "none")
        return gains_without(store, validation)


def roll_back(paths: ServerPaths, task: str) -> tuple[str, bool]:
    """Solve the classifier again as it was after a task, and hold newer ones back.

    Returns its digest, and whether it equals the earlier one bit for bit. If not, uploads in it
    were forgotten or revised since.

    Uploads stay in the store, and new ones are accepted. What was forgotten since is not in the
    classifier. `fedran federation rollback --release` ends the rollback.
    """
    with locked_store(paths.folder, paths.settings(), "rollback") as store:
        heads = [head for head in store.database.heads() if head.task == task]
        if not heads:
            solved = {head.task for head in store.database.heads()}
            known = [t.task for t in store.database.tasks() if t.task in solved]
            expected = f"a task after which a head was solved ({', '.join(known[-10:]) or 'none'})"
            raise Refused("task", expected, task)
        wanted = heads[-1]
        head = store.solve_until(wanted.last_upload)
        if head is None:
            raise Refused("task", "a task whose uploads are still in the store", task)
        blob = encode(head)
        digest = hashlib.sha256(blob).hexdigest()
        # Noted before anything changes: no newer head goes into service by itself.
        reason = f"rolled back to the classifier after task {task}"
        keep_held(store, task, encode(store.solve()), reason, pinned=True)
        write_atomically(store.folder / HEAD, blob)
        same = digest == wanted.digest
        with store.database.transaction():
            again = replace(
                wanted,
                number=store.database.next("heads"),
                at=time.time(),
                digest=digest,
                classes=len(head.classes),
                bytes=len(blob),
                accuracy=wanted.accuracy if same else None,
            )
            store.database.put("heads", **vars(again))
            store.database.set_outdated()
        store.events.write("rollback", task=task, digest=digest, identical=same)
    return digest, same
