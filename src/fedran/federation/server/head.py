"""The newest head: solved from the store, tested on the server's validation rows, and written."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable

from fedran.core.head import Head
from fedran.core.labels import Label
from fedran.federation.protocol.class_names import class_warnings
from fedran.federation.server.entries import Upload
from fedran.federation.server.gate import Held, Validation, check_head
from fedran.federation.server.store import Store
from fedran.wire.codec import decode, encode
from fedran.wire.files import write_atomically

log = logging.getLogger(__name__)
HEAD, HELD = "head.fedran", "held.fedran"
"""Files of the head in service, and of one that is held back."""


def update_head(
    store: Store, validation: Validation | None, task: str, margin: float | None = None
) -> tuple[bytes, str]:
    """Solve and encode the head over everything in the store; its bytes and their SHA-256.

    A head that differs from the one in service is tested, written to ``head.fedran`` and recorded
    in the database. Before the first upload with a class, bytes and digest are empty.

    With ``margin`` and validation rows, a head that is worse on earlier classes is held back: it
    is written to ``held.fedran``, and the one in service stays. Without ``margin`` the new head
    goes into service whatever its accuracy. After a rollback, the head in service stays until
    then.
    """
    if not store.aggregator.classes:
        return b"", ""
    path = store.folder / HEAD
    in_service = path.read_bytes() if path.is_file() else b""
    if margin is not None and in_service and is_rolled_back(store):
        return in_service, hashlib.sha256(in_service).hexdigest()
    start = time.monotonic()
    head = store.solve()
    seconds = time.monotonic() - start
    blob = encode(head)
    digest = hashlib.sha256(blob).hexdigest()
    if in_service == blob:
        clear_held(store)
        return blob, digest
    if validation is not None and margin is not None:
        known, held = held_digest(store) == digest, None
        if not known:
            previous = decode(in_service, Head) if in_service else None
            held = check_head(store, validation, previous, head, margin, _new_uploads(store))
        if held is not None:
            _hold(store, task, blob, digest, held)
        if known or held is not None:
            return in_service, hashlib.sha256(in_service).hexdigest() if in_service else ""
    with store.tolerating_a_full_disk(path.name):
        write_atomically(path, blob)
    clear_held(store)
    for warning in class_warnings(classes_by_site(store.database.uploads())):
        log.warning("%s", warning)
    accuracy = validation.accuracy(head) if validation else None
    shown = "" if accuracy is None else f", accuracy {100 * accuracy:.2f} %"
    log.info("new head: %d classes%s", len(head.classes), shown)
    with store.tolerating_a_full_disk("record of the head"):
        store.database.add_head(
            digest,
            task=task,
            classes=len(head.classes),
            size=len(blob),
            accuracy=accuracy,
            seconds=round(seconds, 3),
        )
    return blob, digest


def classes_by_site(uploads: Iterable[Upload]) -> dict[str, list[Label]]:
    """The classes of each site, or edge, over all its uploads."""
    found: dict[str, dict[Label, None]] = {}
    for upload in uploads:
        found.setdefault(upload.client, {}).update((label, None) for label, _ in upload.classes)
    return {site: list(labels) for site, labels in found.items()}


def _new_uploads(store: Store) -> list[Upload]:
    """Uploads that were accepted after the head in service was solved."""
    heads = store.database.heads()
    since = heads[-1].at if heads else 0.0
    return [upload for upload in store.database.uploads() if upload.at > since]


def held_digest(store: Store) -> str:
    """The digest of the head that is held back; empty if none is."""
    found = store.database.fact("held")
    return str(json.loads(found)["digest"]) if found else ""


def is_rolled_back(store: Store) -> bool:
    """Whether an earlier head was put back into service."""
    found = store.database.fact("held")
    return bool(found and json.loads(found).get("pinned"))


def _hold(store: Store, task: str, blob: bytes, digest: str, held: Held) -> None:
    """Keep a head that must not go into service, and tell the operator why."""
    log.error("the new head is held back: %s", held.reason)
    uploads = [[b.client, b.task, round(b.gain, 2)] for b in held.uploads]
    fields = {"task": task, "digest": digest, "reason": held.reason, "uploads": uploads}
    store.events.write("held", **fields)
    with store.tolerating_a_full_disk(HELD):
        write_atomically(store.folder / HELD, blob)
        store.database.set_fact("held", json.dumps({"at": time.time(), **fields}))


def clear_held(store: Store) -> None:
    """Delete the head that was held back, if there is one."""
    if store.database.fact("held"):
        with store.tolerating_a_full_disk("held"):
            (store.folder / HELD).unlink(missing_ok=True)
            store.database.set_fact("held", "")
