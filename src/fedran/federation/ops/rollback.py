"""Puts an earlier classifier back into service, until the owner releases the newest one."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from fedran.core.errors import Refused
from fedran.federation.protocol.lockfile import locked
from fedran.federation.server.head import HEAD, HELD
from fedran.federation.server.influence import replay
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store import Store
from fedran.wire.codec import encode
from fedran.wire.files import write_atomically


@dataclass(frozen=True)
class RolledBack:
    """The classifier that is in service again."""

    task: str
    digest: str
    accuracy: float | None
    identical: bool
    """Whether it equals the earlier one bit for bit. If not, uploads in it were forgotten or
    revised since."""


def roll_back(paths: ServerPaths, task: str) -> RolledBack:
    """Solve the classifier again as it was after a task, and hold newer ones back.

    Uploads stay in the store, and new ones are accepted. What was forgotten since is not in the
    classifier. `fedran federation release` ends the rollback.
    """
    with (
        locked(paths.state, 60.0, task="rollback"),
        closing(Store.open(paths.settings(), paths.folder)) as store,
    ):
        heads = [head for head in store.database.heads() if head.task == task]
        if not heads:
            solved = {head.task for head in store.database.heads()}
            known = [t.task for t in store.database.tasks() if t.task in solved]
            expected = f"a task after which a head was solved ({', '.join(known[-10:]) or 'none'})"
            raise Refused("task", expected, task)
        wanted = heads[-1]
        later = [u for u in store.database.uploads() if u.number > wanted.last_upload]
        head = replay(store, later)
        if head is None:
            raise Refused("task", "a task whose uploads are still in the store", task)
        blob = encode(head)
        digest = hashlib.sha256(blob).hexdigest()
        _hold_newest(store, task)
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
            # No node has this classifier: the server's next update sends it to all.
            store.database.set_served("outdated")
        store.events.write("rollback", task=task, digest=digest, identical=same)
    return RolledBack(task, digest, again.accuracy, same)


def _hold_newest(store: Store, task: str) -> None:
    """Note, before anything changes, that no newer head goes into service by itself."""
    newest = encode(store.solve())
    write_atomically(Path(store.folder) / HELD, newest)
    fields = {
        "at": time.time(),
        "task": task,
        "digest": hashlib.sha256(newest).hexdigest(),
        "reason": f"rolled back to the classifier after task {task}",
        "uploads": [],
        "pinned": True,
    }
    store.database.set_fact("held", json.dumps(fields))
