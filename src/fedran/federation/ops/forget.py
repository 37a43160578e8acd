"""Removes a site's uploads from a federation, with a signed record of what was removed."""

from __future__ import annotations

import base64
import getpass
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedran.core.errors import Refused
from fedran.core.ids import check_id
from fedran.federation.protocol.identity import SiteKey, check_public, check_task, is_signed
from fedran.federation.server.entries import Tombstone
from fedran.federation.server.forgetting import Forgotten
from fedran.federation.server.head import HEAD, clear_held, update_head
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store import locked_store
from fedran.federation.server.validation_set import ValidationSet
from fedran.wire.files import write_atomically

PURPOSE = "fedran record 1"
"""Part of every signed record, so that no signature can be used for another purpose."""
KEY = "record.key"
RECORDS = "records"
"""Folder of the signed records in the server's folder. The database has a copy of each."""


def forget(paths: ServerPaths, client: str, task: str | None = None) -> tuple[Forgotten, Path]:
    """Remove a site's uploads, for one task or all; returns what was removed and its record.

    The state is rebuilt from the remaining uploads. A running server sends the new head to all
    sites. The record is signed with the server's ``record.key``, which is made here if needed.
    """
    check_id(client, "client")
    if task is not None:
        check_task(task)
    settings, key = paths.settings(), SiteKey.load_or_make(paths.folder / KEY)
    with locked_store(paths.folder, settings, "forget") as store:
        validation = ValidationSet.load(settings, paths.folder)
        found = store.forget(
            client, task, _user(), lambda found: sign_record(settings.federation, found, key)
        )
        if store.aggregator.absorbed:
            update_head(store, validation, "forget")
        else:  # no head can be solved, and the last one must not stay
            (store.folder / HEAD).unlink(missing_ok=True)
            clear_held(store)
    folder = paths.folder / RECORDS
    folder.mkdir(exist_ok=True, mode=0o700)
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(found.tombstones[0].at))
    path = folder / f"{when}-{client}.json"
    write_atomically(path, found.record.encode())
    return found, path


def sign_record(federation: str, found: Forgotten, key: SiteKey) -> str:
    """What was removed, and which heads were solved with it, as signed JSON."""
    record = {
        "purpose": PURPOSE,
        "federation": federation,
        "removed": [asdict(t) for t in found.tombstones],
        "sums": [{"client": s.client, "task": s.task, "digest": s.digest} for s in found.sums],
        "heads": [{"digest": h.digest, "task": h.task, "at": h.at} for h in found.heads],
    }
    signature = base64.b64encode(key.sign_bytes(_canonical(record))).decode("ascii")
    return json.dumps({"record": record, "key": key.public, "signature": signature}, indent=1)


def check_record(content: str, public: str | None = None) -> list[Tombstone]:
    """The tombstones in a signed record. An altered record, or one of another key, is refused.

    Without ``public``, the key in the record is used: then only alterations are noticed.
    """
    try:
        found = json.loads(content)
        record, key = found["record"], check_public(found["key"], "key")
        signature = base64.b64decode(found["signature"], validate=True)
        tombstones = [Tombstone(**fields) for fields in record["removed"]]
    except (ValueError, KeyError, TypeError) as reason:
        raise Refused("record", "a signed record of `fedran federation forget`", reason) from None
    if public not in (None, key) or record.get("purpose") != PURPOSE:
        raise Refused("record", "a record that this server signed", "another one")
    if not is_signed(key, _canonical(record), signature):
        raise Refused("record", "the text that was signed", "another text")
    return tombstones


def record_key(paths: ServerPaths) -> str | None:
    """The public key of the server's records; None before the first one."""
    path = paths.folder / KEY
    return SiteKey.load(path).public if path.is_file() else None


def _canonical(record: Any) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return "unknown"
