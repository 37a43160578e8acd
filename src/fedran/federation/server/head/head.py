"""The newest head: judged, solved from what counts, tested, and written."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import replace
from typing import Any

from fedran.core.solve.head import Head
from fedran.federation.server.head.gate import Judgement, SetAside, Validation, judge
from fedran.federation.server.store.store import Store
from fedran.wire.codec import decode, encode
from fedran.wire.files import write_atomically

log = logging.getLogger(__name__)
HEAD = "head.fedran"
"""File of the head in service."""
JUDGED = "judged"
"""Fact in the database: what is set aside and what waits, and what the sites say about each
other."""


def update_head(store: Store, validation: Validation | None, task: str) -> tuple[bytes, str]:
    """Solve and encode the head over everything that counts; its bytes and their SHA-256.

    What does not count is found by ``judge`` and noted. The head is written to ``head.fedran``,
    tested on validation rows, calibrated by them if it is of groups of rows, and recorded in the
    database. Before the first class that counts, bytes and digest are empty. Nothing is solved if
    the head in service was solved from the same uploads and settings.
    """
    path = store.folder / HEAD
    in_service = path.read_bytes() if path.is_file() else b""
    served = hashlib.sha256(in_service).hexdigest() if in_service else ""
    solved_from = store.solved_from()
    if (
        in_service
        and store.database.fact("solved") == f"{solved_from} {served}"
        # Without rows for tests, or after ``forget``, nothing has calibrated a head so far.
        and (validation is None or decode(in_service, Head).calibration is not None)
    ):
        return in_service, served
    start = time.monotonic()
    before = [SetAside.read(aside) for aside in judged(store).get("set_aside", [])]
    found = judge(store, validation, before)
    head = store.solve([aside.part for aside in found.set_aside])
    seconds, accuracy = time.monotonic() - start, None
    if head is not None and validation is not None:
        accuracy, calibration = validation.test(head)
        if head.calibration is None and calibration is not None:
            head = replace(head, calibration=calibration, digest=None)
    blob = encode(head) if head is not None else b""
    digest = hashlib.sha256(blob).hexdigest() if blob else ""
    if head is None:  # the last one must not stay
        path.unlink(missing_ok=True)
    elif digest != served:
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
                bytes=len(blob),
                accuracy=accuracy,
                seconds=round(seconds, 3),
                last_upload=store.pinned.get("last_upload"),
            )
    with store.tolerating_a_full_disk(JUDGED):
        _note(store, before, found, head, digest)
        store.database.set_fact("solved", f"{solved_from} {digest}")
    return blob, digest


def judged(store: Store) -> dict[str, Any]:
    """What is noted about the newest head; empty before the first one."""
    return dict(json.loads(store.database.fact(JUDGED) or "{}"))


def _note(
    store: Store, before: list[SetAside], found: Judgement, head: Head | None, digest: str
) -> None:
    """Write what is set aside, and an event for each site or class that was not before."""
    for aside in found.set_aside:
        if aside.part not in [known.part for known in before] and not aside.waits:
            fields = {"client": aside.client, "label": aside.label, "reason": aside.reason}
            store.events.write("set_aside", digest=digest, **fields)
    said = {
        client: [
            [label, o.rows, round(o.rows * (1 - o.wrong / o.asked))] for label, o in of.items()
        ]
        for client, of in found.opinions.items()
    }
    note: dict[str, Any] = {"at": time.time(), "head": digest, "sites": said}
    if head is not None:
        note |= {
            "agreement": head.diagnosis.agreement,
            "largest_group": head.diagnosis.largest_group,
        }
    note["set_aside"] = [aside.to_json() for aside in found.set_aside]
    store.database.set_fact(JUDGED, json.dumps(note))
