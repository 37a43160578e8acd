"""The newest head: solved from the store, tested on the server's validation rows, and written."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from fedran.core.solve.head import Head
from fedran.federation.server.head.gate import Validation, check_head
from fedran.federation.server.store.store import Store
from fedran.wire.codec import decode, encode
from fedran.wire.files import write_atomically

log = logging.getLogger(__name__)
HEAD, HELD = "head.fedran", "held.fedran"
"""Files of the head in service, and of one that is held back."""
LEFT_OUT = "left_out"
"""Fact in the database: what leave-one-out says about the newest head and about each site."""


def update_head(
    store: Store, validation: Validation | None, task: str, margin: float | None = None
) -> tuple[bytes, str]:
    """Solve and encode the head over everything in the store; its bytes and their SHA-256.

    A head that differs from the one in service is tested, written to ``head.fedran`` and recorded
    in the database. Before the first upload with a class, bytes and digest are empty.

    Validation rows calibrate a head of groups of rows, of which leave-one-out tells no more than an
    agreement. With ``margin``, one that is worse on earlier classes of them is held back: it is
    written to ``held.fedran``, and the one in service stays. Without ``margin`` the new head
    goes into service whatever its accuracy. After a rollback, the head in service stays until
    then. Nothing is solved if the head in service was solved from the same uploads and settings.
    """
    if not store.state.classes:
        return b"", ""
    path = store.folder / HEAD
    in_service = path.read_bytes() if path.is_file() else b""
    served = hashlib.sha256(in_service).hexdigest() if in_service else ""
    if margin is not None and in_service and held_head(store).get("pinned"):
        return in_service, served
    solved_from = store.solved_from()
    # Without rows for tests, or after ``forget``, nothing has calibrated a head so far.
    if (
        in_service
        and store.database.fact("solved") == f"{solved_from} {served}"
        and (validation is None or decode(in_service, Head).calibration is not None)
    ):
        clear_held(store)
        return in_service, served
    start = time.monotonic()
    head = store.solve()
    seconds = time.monotonic() - start
    blob = encode(head)
    digest = hashlib.sha256(blob).hexdigest()
    if digest != served and validation is not None and margin is not None:
        previous = decode(in_service, Head) if in_service else None
        if _is_held_back(store, validation, task, previous, head, blob=blob, margin=margin):
            return in_service, served
    accuracy = None
    if validation is not None:
        found = validation.calibration(head) if head.calibration is None else None
        accuracy = validation.accuracy(head)  # of the head that was tested
        if found is not None:
            head = store.calibrated(head, found)
            blob = encode(head)
            digest = hashlib.sha256(blob).hexdigest()
    if digest != served:
        with store.tolerating_a_full_disk(path.name):
            write_atomically(path, blob)
        shown = "" if accuracy is None else f", accuracy {100 * accuracy:.2f} %"
        told = {"task": task, "decision": "new head", "seconds": round(seconds, 3)}
        log.info("new head: %d classes%s", len(head.classes), shown, extra=told)
        with store.tolerating_a_full_disk("record of the head"):
            store.database.add_head(
                digest,
                task=task,
                classes=len(head.classes),
                size=len(blob),
                accuracy=accuracy,
                seconds=round(seconds, 3),
            )
    clear_held(store)
    with store.tolerating_a_full_disk(LEFT_OUT):
        store.database.set_fact(LEFT_OUT, json.dumps(_left_out(store, head, digest)))
        store.database.set_fact("solved", f"{solved_from} {digest}")
    return blob, digest


def _left_out(store: Store, head: Head, digest: str) -> dict[str, Any]:
    """What all other points say about a point, and all other sites about a site.

    Empty for summaries, which cannot be left out in closed form.
    """
    if store.settings.message != "points":
        return {}
    said = store.aggregator.what_others_say(head.diagnosis.lam)
    return {
        "head": digest,
        "agreement": head.diagnosis.agreement,
        "largest_group": head.diagnosis.largest_group,
        "sites": {
            client: [[label, *counts] for label, counts in labels.items()]
            for client, labels in said.items()
        },
    }


def _is_held_back(
    store: Store,
    validation: Validation,
    task: str,
    previous: Head | None,
    head: Head,
    *,
    blob: bytes,
    margin: float,
) -> bool:
    """Whether a new head is worse than the one in service. It is kept then, with the reason."""
    digest = hashlib.sha256(blob).hexdigest()
    if held_head(store).get("digest") == digest:
        return True
    heads = store.database.heads()
    since = heads[-1].at if heads else 0.0
    new = [upload for upload in store.database.uploads() if upload.at > since]
    held = check_head(store, validation, previous, head, margin, new)
    if held is None:
        return False
    log.error("the new head is held back: %s", held.reason)
    uploads = [[b.client, b.task, round(b.gain, 2)] for b in held.uploads]
    store.events.write("held", task=task, digest=digest, reason=held.reason, uploads=uploads)
    with store.tolerating_a_full_disk(HELD):
        keep_held(store, task, blob, held.reason, uploads)
    return True


def held_head(store: Store) -> dict[str, Any]:
    """What is noted about the head that is held back; empty if none is."""
    return dict(json.loads(store.database.fact("held") or "{}"))


def keep_held(
    store: Store,
    task: str,
    blob: bytes,
    reason: str,
    uploads: Sequence[Sequence[object]] = (),
    **more: object,
) -> None:
    """Write a head that must not go into service, and why; ``uploads`` explain it."""
    write_atomically(store.folder / HELD, blob)
    digest = hashlib.sha256(blob).hexdigest()
    note = {"at": time.time(), "task": task, "digest": digest, "reason": reason}
    store.database.set_fact("held", json.dumps({**note, "uploads": uploads, **more}))


def clear_held(store: Store) -> None:
    """Delete the head that was held back, if there is one."""
    if store.database.fact("held"):
        with store.tolerating_a_full_disk("held"):
            (store.folder / HELD).unlink(missing_ok=True)
            store.database.set_fact("held", "")
