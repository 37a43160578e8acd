"""The server's database: one SQLite file with everything that the server must not lose.

Every row has a checksum, every envelope is stored under its SHA-256. Both are verified when they
are read; nothing is verified when the file is opened.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedran.core.labels import Label
from fedran.core.mixture import Mixture
from fedran.core.summary import Summary
from fedran.federation.protocol.identity import COHORT, SUM, Statement, UploadId, is_cohort
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.server.entries import (
    Charge,
    Run,
    SolvedHead,
    Task,
    Tombstone,
    Upload,
    Waiting,
)
from fedran.federation.server.schema import FILE, MIGRATIONS, SNAPSHOTS
from fedran.federation.server.sqlite_file import SqliteFile, StoreDamaged
from fedran.wire.validation import FILE_LIMITS


class Database(SqliteFile):
    """The tables of a store."""

    def __init__(self, folder: str | Path, *, read_only: bool = False) -> None:
        folder = Path(folder)
        missing = not (folder / FILE).exists() or not (folder / FILE).stat().st_size
        if missing and not read_only and any(folder.glob(SNAPSHOTS)):
            raise StoreDamaged(
                f"{folder / FILE}: the database is missing, but a snapshot of it exists; restore "
                "it from a backup, or delete the snapshots to begin anew"
            )
        super().__init__(folder / FILE, MIGRATIONS, read_only=read_only)
        if not read_only and not self.fact("epoch"):
            self.new_epoch()

    def fact(self, name: str) -> str:
        """A single value such as ``epoch`` or ``served_head``; empty if never set."""
        found = self.rows("facts", "WHERE name = ?", [name])
        return str(found[0][1]) if found else ""

    def set_fact(self, name: str, value: str) -> None:
        """Replace a single value."""
        self.put("facts", replace=True, name=name, value=value)

    def open_classes(self, task: str, labels: Sequence[Label]) -> None:
        """Let uploads for a task, and for later ones, contain these classes."""
        with self.transaction():
            opened = self.opened_classes()
            opened[task] = tuple(dict.fromkeys((*opened.get(task, ()), *labels)))
            self.set_fact("opened_classes", _json(opened))

    def opened_classes(self) -> dict[str, tuple[Label, ...]]:
        """The classes that were opened for each task."""
        found = json.loads(self.fact("opened_classes") or "{}")
        return {task: tuple(labels) for task, labels in found.items()}

    def add_upload(self, statement: Statement, message: Summary | Mixture, blob: bytes) -> Upload:
        """Write an accepted upload, and end its quarantine. A revision replaces the older one."""
        with self.transaction():
            upload = Upload(
                self.next("uploads"),
                statement.client,
                statement.task,
                statement.digest,
                time.time(),
                len(blob),
                int(message.accounts.n_rows),
                float(message.accounts.energy),
                float(message.accounts.cut),
                statement.revision,
                tuple(zip(message.classes, map(int, message.counts), strict=True)),
                statement.members,
                self._add_envelope(blob),
            )
            lists = {"classes": _json(upload.classes), "members": _json(upload.members)}
            older = "DELETE FROM uploads WHERE client = ? AND task = ? AND revision < ?"
            replaced = self.sql.execute(older, (*upload.key, upload.revision)).rowcount
            self.put("uploads", **{**vars(upload), **lists})
            ended = self.sql.execute(
                "DELETE FROM quarantine WHERE client = ? AND task = ?", upload.key
            )
            if replaced or ended.rowcount:  # another upload of the site may have waited
                self._drop_unused_envelopes()
        return upload

    def uploads(self) -> list[Upload]:
        """Accepted uploads in order of acceptance."""
        found = []
        for row in self.rows("uploads", "ORDER BY number"):
            row[10] = tuple(map(tuple, json.loads(row[10])))
            row[11] = tuple(map(tuple, json.loads(row[11])))
            found.append(Upload(*row))
        return found

    def upload_sizes(self) -> list[tuple[str, str, int, int, str]]:
        """Client, task, bytes, rows and digest of all accepted uploads, without verification.

        For a status, which is shown every few seconds.
        """
        with self.lock, self.named_errors():
            return self.sql.execute(
                "SELECT client, task, bytes, rows, digest FROM uploads"
            ).fetchall()

    def upload_lists(self) -> list[tuple[str, str, str, str]]:
        """Per client: its newest task, and classes and members of all its uploads as JSON.

        Checksums are not verified.
        """
        query = (
            "SELECT client, task, '[' || group_concat(classes) || ']', "
            "'[' || coalesce(group_concat(nullif(members, '[]')), '') || ']', max(number) "
            "FROM uploads GROUP BY client"
        )
        with self.lock, self.named_errors():
            return [row[:4] for row in self.sql.execute(query).fetchall()]

    def cohorts(self) -> list[tuple[str, str, int, list[str]]]:
        """Name, task, rows and members of every secure sum. Checksums are not verified."""
        columns = "client, task, rows, members"
        query = f"SELECT {columns} FROM uploads WHERE client LIKE ? ORDER BY number"  # noqa: S608
        with self.lock, self.named_errors():
            found = self.sql.execute(query, [f"{COHORT}%"]).fetchall()
        return [
            (client, task, rows, [member for member, _ in json.loads(members)])
            for client, task, rows, members in found
            if is_cohort(client)
        ]

    def count(self) -> int:
        """Number of accepted uploads."""
        with self.lock, self.named_errors():
            return int(self.sql.execute("SELECT count(*) FROM uploads").fetchone()[0])

    def envelopes(self) -> Iterator[bytes]:
        """The envelopes of accepted uploads in order of acceptance, one at a time in memory."""
        return (self.envelope(upload) for upload in self.uploads())

    def envelope(self, upload: Upload | Waiting) -> bytes:
        """The bytes of an upload, verified."""
        with self.lock, self.named_errors():
            found = self.sql.execute(
                "SELECT content FROM envelopes WHERE sha256 = ?", [upload.envelope]
            ).fetchone()
        if found is None or hashlib.sha256(found[0]).hexdigest() != upload.envelope:
            raise self.damaged(f"the upload of {upload.client} for {upload.task}")
        return bytes(found[0])

    def _add_envelope(self, blob: bytes) -> str:
        sha256 = hashlib.sha256(blob).hexdigest()
        self.sql.execute("INSERT OR IGNORE INTO envelopes VALUES (?, ?)", (sha256, blob))
        return sha256

    def add_waiting(self, statement: Statement, blob: bytes, reason: str) -> None:
        """Write an upload to quarantine."""
        with self.transaction():
            envelope = self._add_envelope(blob)
            waiting = Waiting(*statement.key, statement.digest, time.time(), reason, envelope)
            self.put("quarantine", replace=True, **vars(waiting))
            self._drop_unused_envelopes()  # of an upload that this one replaces

    def quarantine(self) -> dict[UploadId, Waiting]:
        """Uploads that wait for a decision, oldest first."""
        waiting = [Waiting(*row) for row in self.rows("quarantine", "ORDER BY at, client, task")]
        return {(w.client, w.task): w for w in waiting}

    def reject(self, waiting: Waiting, reason: str) -> None:
        """Remove an upload from quarantine for good: the same bytes are not accepted again."""
        with self.transaction():
            row = {"client": waiting.client, "task": waiting.task, "digest": waiting.digest}
            self.put("rejected", replace=True, **row, at=time.time(), reason=reason)
            key = waiting.client, waiting.task
            self.sql.execute("DELETE FROM quarantine WHERE client = ? AND task = ?", key)
            self._drop_unused_envelopes()

    def rejected(self) -> dict[tuple[str, str, str], str]:
        """Client, task and digest of rejected uploads -> the reason, oldest first."""
        rows = self.rows("rejected", "ORDER BY at, client, task")
        return {(client, task, digest): reason for client, task, digest, _, reason in rows}

    def add_charge(
        self, task: str, attempt: int, epsilon: float, delta: float, sites: Sequence[str]
    ) -> None:
        """Note what a sum spends, once per attempt."""
        with self.transaction():
            if not self.rows("ledger", "WHERE task = ? AND attempt = ?", [task, attempt]):
                self.put(
                    "ledger",
                    number=self.next("ledger"),
                    at=time.time(),
                    task=task,
                    attempt=attempt,
                    epsilon=epsilon,
                    delta=delta,
                    sites=_json(sites),
                )

    def ledger(self) -> list[Charge]:
        """What the secure sums have spent, oldest first."""
        found = []
        for *row, sites in self.rows("ledger", "ORDER BY number"):
            number, at, task, attempt, epsilon, delta = row
            members = tuple(json.loads(sites))
            found.append(Charge(number, at, task, attempt, epsilon, delta, members))
        return found

    def set_task(
        self,
        task: str,
        state: str = "open",
        *,
        deadline: float = 0.0,
        min_clients: int = 0,
        asked: Sequence[str] = (),
        missing: Sequence[str] = (),
    ) -> None:
        """Note the state of a task. The first time adds it to the tasks that were opened."""
        with self.transaction():
            found = self.rows("tasks", "WHERE task = ?", [task])
            number, opened = (found[0][0], found[0][3]) if found else (self.next("tasks"), 0.0)
            opened = time.time() if state == "open" or not found else opened
            noted = Task(
                number, task, state, opened, deadline, min_clients, tuple(asked), tuple(missing)
            )
            lists = {"asked": _json(noted.asked), "missing": _json(noted.missing)}
            self.put("tasks", replace=True, **{**vars(noted), **lists})

    def tasks(self) -> list[Task]:
        """The tasks that were opened, in this order."""
        rows = self.rows("tasks", "ORDER BY number")
        return [Task(*row[:6], *(tuple(json.loads(names)) for names in row[6:])) for row in rows]

    def set_run(self, run: str, task: str, status: str, received: int, sent: int) -> None:
        """Note the state of a run of Flower. A task ("": unknown) is kept, bytes never decrease."""
        with self.transaction():
            before = self.rows("runs", "WHERE run = ?", [run])
            noted = Run(run, task, status, received, sent)
            if before:
                old = Run(*before[0])
                more = max(received, old.received), max(sent, old.sent)
                noted = Run(run, task or old.task, status, *more)
                if noted == old:
                    return
            self.put("runs", replace=True, **vars(noted))

    def runs(self) -> list[Run]:
        """The runs of Flower that are known. Some have no task."""
        return [Run(*row) for row in self.rows("runs")]

    def set_seen(self, client: str) -> None:
        """Note that a site answered now."""
        self.put("seen", replace=True, client=client, at=time.time())

    def seen(self) -> dict[str, float]:
        """Clients and when they last answered."""
        return dict(map(tuple, self.rows("seen")))

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Clients with their node id at the SuperLink and the public key of the node."""
        return {client: (node, key) for client, node, key in self.rows("nodes")}

    def set_nodes(self, nodes: Mapping[str, tuple[str, str]]) -> None:
        """Replace the list of nodes."""
        with self.transaction():
            self.sql.execute("DELETE FROM nodes")
            for client, (node, key) in nodes.items():
                self.put("nodes", client=client, node=node, key=key)

    def node_owners(self) -> dict[str, str]:
        """Node ids at the SuperLink and the clients whose keys they have."""
        return {node: client for client, (node, _) in self.nodes().items()}

    def served(self) -> tuple[str, set[str]]:
        """The digest of the head that was sent last, and the nodes that have it."""
        return self.fact("served_head"), {node for (node,) in self.rows("served")}

    def set_served(self, head: str, nodes: Sequence[str] = ()) -> None:
        """Note which nodes have the newest head. The server sends it to all others."""
        with self.transaction():
            self.set_fact("served_head", head)
            self.sql.execute("DELETE FROM served")
            for node in nodes:
                self.put("served", node=node)

    def add_head(
        self,
        digest: str,
        *,
        task: str,
        classes: int,
        size: int,
        accuracy: float | None,
        seconds: float,
    ) -> None:
        """Note that a head was solved from all uploads that are accepted now."""
        with self.transaction():
            numbers = self.next("heads"), self.next("uploads") - 1
            at, shown = time.time(), None if accuracy is None else float(accuracy)
            head = SolvedHead(
                numbers[0], at, task, digest, classes, size, shown, float(seconds), numbers[1]
            )
            self.put("heads", **vars(head))

    def heads(self) -> list[SolvedHead]:
        """All heads, oldest first."""
        return [SolvedHead(*row) for row in self.rows("heads", "ORDER BY number")]

    def tombstones(self) -> list[Tombstone]:
        """What was forgotten, oldest first."""
        return [Tombstone(*row) for row in self.rows("tombstones", "ORDER BY at, client, task")]

    def forget(self, tombstones: Sequence[Tombstone]) -> None:
        """Write tombstones, and delete these uploads and all sums that contain one of them."""
        gone = {(tombstone.client, tombstone.task) for tombstone in tombstones}
        with self.transaction():
            for tombstone in tombstones:
                self.put("tombstones", replace=True, **vars(tombstone))
            for upload in self.uploads():
                if gone.intersection((upload.key, *upload.members)):
                    which = "DELETE FROM uploads WHERE client = ? AND task = ?"
                    self.sql.execute(which, upload.key)
            for key, waiting in self.quarantine().items():
                members: tuple[UploadId, ...] = ()
                if SUM in waiting.task:
                    members = open_envelope(self.envelope(waiting), FILE_LIMITS).statement.members
                if gone.intersection((key, *members)):
                    self.sql.execute("DELETE FROM quarantine WHERE client = ? AND task = ?", key)
            self._drop_unused_envelopes()

    def _drop_unused_envelopes(self) -> None:
        self.sql.execute(
            "DELETE FROM envelopes WHERE sha256 NOT IN "
            "(SELECT envelope FROM uploads UNION ALL SELECT envelope FROM quarantine)"
        )

    def add_record(self, content: str) -> None:
        """Keep a signed record."""
        with self.transaction():
            self.put("records", number=self.next("records"), at=time.time(), content=content)

    def records(self) -> list[str]:
        """All signed records, oldest first."""
        return [content for _, _, content in self.rows("records", "ORDER BY number")]

    def new_epoch(self) -> None:
        """Say that the state is no longer a continuation of the earlier one."""
        self.set_fact("epoch", secrets.token_hex(8))

    def delete_events(self, before: float, most: int) -> int:
        """Delete events from before a time, and the oldest beyond a number; returns how many."""
        with self.transaction():
            last = self.next("events") - 1 - most
            found = self.sql.execute(
                "DELETE FROM events WHERE at < ? OR number <= ?", (before, last)
            )
            return found.rowcount

    def add_event(self, event: str, fields: str, outcome: str = "") -> None:
        """Write one event with the current time. ``fields`` is a JSON object."""
        with self.transaction():
            number, at = self.next("events"), round(time.time(), 3)
            self.put("events", number=number, at=at, event=event, outcome=outcome, fields=fields)

    def events(
        self, after: int = 0, without: str | None = None
    ) -> list[tuple[int, float, str, str]]:
        """Number, time, kind and fields of the events with a larger number, oldest first.

        ``without`` leaves out events of uploads with this outcome.
        """
        query = "WHERE number > ? AND outcome IS NOT ? ORDER BY number"
        rows = self.rows("events", query, [after, without])
        return [(number, at, event, fields) for number, at, event, _, fields in rows]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
