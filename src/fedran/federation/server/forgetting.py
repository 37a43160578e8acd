"""What it means to forget a site: which uploads, sums and heads contain its rows."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import UploadId, base_task
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.database import Database
from fedran.federation.server.entries import SolvedHead, Tombstone, Upload


@dataclass(frozen=True)
class Forgotten:
    """What ``Store.forget`` removes."""

    tombstones: list[Tombstone]
    sums: list[Upload]
    """Sums that contained one of the removed uploads. Their edges are asked for revised ones."""
    heads: list[SolvedHead]
    """Heads that were solved with one of the removed uploads."""
    record: str = ""
    """Both as signed JSON."""


def to_forget(
    database: Database,
    roster: Roster,
    forgotten: Collection[UploadId],
    client: str,
    task: str | None,
    who: str,
) -> Forgotten:
    """What must be removed so that a site's uploads for a task, or for all (None), are forgotten.

    ``forgotten`` lists clients and tasks whose uploads were removed before.
    """

    def meant(key: UploadId) -> bool:
        return key[0] == client and task in (None, base_task(key[1]))

    gone = [u for u in database.uploads() if meant(u.key) or any(map(meant, u.members))]
    waiting = [w for key, w in database.quarantine().items() if meant(key)]
    digests = dict.fromkeys((m for u in gone for m in u.members if meant(m)), "")
    if any(client in members for members in roster.edges.values()):
        # Its rows may be in a sum that waits, or that an edge has not revised yet.
        tasks = [t.task for t in database.tasks()] if task is None else [task]
        digests |= {(client, name): "" for name in tasks if (client, name) not in forgotten}
    digests |= {u.key: u.digest for u in gone if meant(u.key)}
    digests |= {(w.client, w.task): w.digest for w in waiting}
    if not digests:
        which = "any task" if task is None else task
        raise Refused("upload", f"an upload of {client} for {which}", "none")
    now = time.time()
    return Forgotten(
        [Tombstone(*key, digest, now, who) for key, digest in digests.items()],
        [upload for upload in gone if not meant(upload.key)],
        [
            head
            for head in database.heads()
            if any(u.number <= head.last_upload and u.at <= head.at for u in gone)
        ],
    )
