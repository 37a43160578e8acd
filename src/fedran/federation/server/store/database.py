"""The server's database: one SQLite file with everything that the server must not lose.

Every envelope is stored under its SHA-256, which is verified when it is read. Nothing is verified
when the file is opened.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from fedran.core.sums.aggregator import Message
from fedran.federation.protocol.identity import Statement
from fedran.federation.protocol.messages import Envelope, open_envelope
from fedran.federation.server.store.schema import (
    FILE,
    SCHEMA,
    VERSION,
    Charge,
    Run,
    SolvedHead,
    Task,
    Tombstone,
    Upload,
    class_rows,
)
from fedran.federation.server.store.sqlite_file import SqliteFile, StoreDamaged
from fedran.wire.validation import FILE_LIMITS

Entry = TypeVar("Entry", Charge, Run, SolvedHead, Task, Tombstone, Upload)


class Database(SqliteFile):
    """The tables of a store."""

    def __init__(self, folder: str | Path, *, read_only: bool = False) -> None:
        folder = Path(folder)
        missing = not (folder / FILE).exists() or not (folder / FILE).stat().st_size
        if missing and not read_only and (solved := sorted(folder.glob("*.fedran"))):
            raise StoreDamaged(
                f"{folder / FILE}: the database is missing, but {solved[0].name} was made from it; "
                "restore it from a backup, or delete all *.fedran to begin anew"
            )
        super().__init__(folder / FILE, SCHEMA, VERSION, read_only=read_only)

    def require_sound(self) -> None:
        """StoreDamaged if SQLite finds damage. Envelopes are left out, which may be gigabytes."""
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'envelopes'"
        for (table,) in self.query(tables):
            for (line,) in self.query(f"PRAGMA integrity_check({table})"):
                if line != "ok":
                    raise self.damaged(f"the database is damaged ({line})")

    def _entries(
        self, kind: type[Entry], table: str, rest: str = "", values: Sequence[Any] = ()
    ) -> list[Entry]:
        """The rows of a table as entries."""
        lists = [i for i, f in enumerate(fields(kind)) if str(f.type).startswith("tuple")]
        found = []
        for row in map(list, self.rows(table, rest, values)):
            for i in lists:
                try:
                    items = json.loads(row[i])
                except ValueError as reason:
                    raise self.damaged(f"the database is damaged ({reason})") from None
                row[i] = tuple(tuple(x) if isinstance(x, list) else x for x in items)
            found.append(kind(*row))
        return found

    def _put_entry(self, table: str, entry: object, *, replace: bool = False) -> None:
        row = {k: json.dumps(v) if isinstance(v, tuple) else v for k, v in vars(entry).items()}
        self.put(table, replace=replace, **row)

    def fact(self, name: str) -> str:
        """A single value such as ``served_head``; empty if never set."""
        found = self.rows("facts", "WHERE name = ?", [name])
        return str(found[0][1]) if found else ""

    def set_fact(self, name: str, value: str) -> None:
        """Replace a single value."""
        self.put("facts", replace=True, name=name, value=value)

    def add_upload(self, statement: Statement, message: Message, blob: bytes) -> Upload:
        """Write an accepted upload. A revision replaces the older one."""
        with self.transaction():
            sha256, accounts = hashlib.sha256(blob).hexdigest(), message.accounts
            upload = Upload(
                self.next("uploads"),
                statement.client,
                statement.task,
                statement.digest,
                time.time(),
                len(blob),
                int(accounts.n_rows),
                float(accounts.energy),
                float(accounts.cut),
                statement.revision,
                class_rows(message),
                statement.members,
                statement.sum_number,
                sha256,
            )
            self.sql.execute("INSERT OR IGNORE INTO envelopes VALUES (?, ?)", (sha256, blob))
            older = "DELETE FROM uploads WHERE client = ? AND task = ? AND revision < ?"
            replaced = self.sql.execute(older, (*upload.key, upload.revision)).rowcount
            self._put_entry("uploads", upload)
            if replaced:
                self._drop_unused_envelopes()
        return upload

    def uploads(self) -> list[Upload]:
        """Accepted uploads in order of acceptance."""
        return self._entries(Upload, "uploads", "ORDER BY number")

    def envelope(self, upload: Upload) -> bytes:
        """The bytes of an upload, verified."""
        query = "SELECT content FROM envelopes WHERE sha256 = ?"
        for (content,) in self.query(query, [upload.envelope]):
            if hashlib.sha256(content).hexdigest() == upload.envelope:
                return bytes(content)
        raise self.damaged(
            f"the upload of {upload.client} for {upload.task} is not what was written"
        )

    def opened(self, upload: Upload) -> Envelope:
        """The envelope of an upload."""
        return open_envelope(self.envelope(upload), FILE_LIMITS)

    def message(self, upload: Upload) -> Message:
        """The message of an upload."""
        return self.opened(upload).message(FILE_LIMITS)

    def add_charge(
        self, task: str, attempt: int, epsilon: float, delta: float, sites: Sequence[str]
    ) -> None:
        """Note what a sum spends, once per attempt."""
        with self.transaction():
            if not self.rows("ledger", "WHERE task = ? AND attempt = ?", [task, attempt]):
                number, at = self.next("ledger"), time.time()
                charge = Charge(number, at, task, attempt, epsilon, delta, tuple(sites))
                self._put_entry("ledger", charge)

    def ledger(self) -> list[Charge]:
        """What the secure sums have spent, oldest first."""
        return self._entries(Charge, "ledger", "ORDER BY number")

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
            self._put_entry("tasks", noted, replace=True)

    def tasks(self) -> list[Task]:
        """The tasks that were opened, in this order."""
        return self._entries(Task, "tasks", "ORDER BY number")

    def set_run(self, run: str, task: str, status: str, received: int, sent: int) -> None:
        """Note the state of a run of Flower. A task ("": unknown) is kept, bytes never decrease."""
        with self.transaction():
            noted = Run(run, task, status, received, sent)
            for old in self._entries(Run, "runs", "WHERE run = ?", [run]):
                more = max(received, old.received), max(sent, old.sent)
                noted = Run(run, task or old.task, status, *more)
                if noted == old:
                    return
            self._put_entry("runs", noted, replace=True)

    def runs(self) -> list[Run]:
        """The runs of Flower that are known. Some have no task."""
        return self._entries(Run, "runs")

    def set_seen(self, client: str) -> None:
        """Note that a site answered now."""
        self.put("seen", replace=True, client=client, at=time.time())

    def seen(self) -> dict[str, float]:
        """Clients and when they last answered."""
        return dict(self.rows("seen"))

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

    def set_outdated(self) -> None:
        """Say that no node has the newest head: the server's next update sends it to all."""
        self.set_served("outdated")

    def add_head(self, digest: str, *, last_upload: int | None = None, **fields: Any) -> None:
        """Note that a head was solved, by default from all uploads that are accepted now."""
        with self.transaction():
            last = self.next("uploads") - 1 if last_upload is None else last_upload
            fields |= {"number": self.next("heads"), "at": time.time(), "last_upload": last}
            self._put_entry("heads", SolvedHead(digest=digest, **fields))

    def heads(self) -> list[SolvedHead]:
        """All heads, oldest first."""
        return self._entries(SolvedHead, "heads", "ORDER BY number")

    def tombstones(self) -> list[Tombstone]:
        """What was forgotten, oldest first."""
        return self._entries(Tombstone, "tombstones", "ORDER BY at, client, task")

    def forget(self, tombstones: Sequence[Tombstone]) -> None:
        """Write tombstones, and delete these uploads and all sums that contain one of them."""
        gone = {(tombstone.client, tombstone.task) for tombstone in tombstones}
        with self.transaction():
            for tombstone in tombstones:
                self._put_entry("tombstones", tombstone, replace=True)
            for upload in self.uploads():
                if gone.intersection((upload.key, *upload.members)):
                    which = "DELETE FROM uploads WHERE client = ? AND task = ?"
                    self.sql.execute(which, upload.key)
            self._drop_unused_envelopes()

    def _drop_unused_envelopes(self) -> None:
        self.sql.execute("DELETE FROM envelopes WHERE sha256 NOT IN (SELECT envelope FROM uploads)")

    def add_record(self, content: str) -> None:
        """Keep a signed record."""
        with self.transaction():
            self.put("records", number=self.next("records"), at=time.time(), content=content)

    def records(self) -> list[str]:
        """All signed records, oldest first."""
        return [content for _, _, content in self.rows("records", "ORDER BY number")]
