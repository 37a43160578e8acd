"""What a status is computed from: the tables of the database, uploads and events counted by task
and by site, and who is connected.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from fedran.federation.server.store.schema import Charge, Run, SolvedHead, Task, Upload, Waiting
from fedran.federation.status.model import Outcome


@dataclass
class Counts:
    """The uploads for one task, or those of one site."""

    uploads: int = 0
    rows: int = 0
    payload: int = 0
    """Bytes of all signed envelopes that arrived, as far as events are kept."""
    refused: int = 0
    answered: dict[str, str] = field(default_factory=dict)
    """Site -> outcome of its upload. A refused upload does not replace an accepted one."""
    classes: Counter[str | int] = field(default_factory=Counter)
    tasks: dict[str, None] = field(default_factory=dict)
    """Those of its accepted uploads, in order of acceptance."""


@dataclass
class Stored:
    """What the database says. Unsigned messages never count for a site or create a task."""

    records: int | None = 0
    """Accepted uploads; None if the database cannot be read."""
    tasks: list[Task] = field(default_factory=list)
    heads: list[SolvedHead] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    quarantine: list[Waiting] = field(default_factory=list)
    seen: dict[str, float] = field(default_factory=dict)
    ledger: list[Charge] = field(default_factory=list)
    flower: str = ""
    held: str = ""
    epoch: str = ""
    cohorts: list[Outcome] = field(default_factory=list)
    by_task: defaultdict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))
    by_site: defaultdict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))
    declined: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    """Task -> site -> why it sent nothing, as it said itself."""
    problems: dict[tuple[str | bool, ...], Outcome] = field(default_factory=dict)
    """Oldest first. Identical ones are counted, not repeated."""
    digests: set[str] = field(default_factory=set)
    """Of accepted uploads."""

    @classmethod
    def read(cls, database: Database) -> Stored:
        """Read the tables, and count."""
        found = cls(
            records=database.count(),
            tasks=database.tasks(),
            heads=database.heads(),
            runs=database.runs(),
            quarantine=list(database.quarantine().values()),
            seen=database.seen(),
            ledger=database.ledger(),
            flower=database.fact("flower"),
            held=database.fact("held"),
            epoch=database.fact("epoch"),
        )
        for upload in database.uploads():
            found._add_upload(upload)
        for tombstone in database.tombstones():  # nothing is expected from their sites any more
            if not tombstone.sum_number:  # its members may make another sum
                of_task = found.by_task[tombstone.task]
                of_task.answered.setdefault(tombstone.client, "forgotten")
        for event in EventLog(database).read(without="accepted"):
            found._add_event(event)
        return found

    def _add_upload(self, upload: Upload) -> None:
        """Count an accepted upload: a secure sum for its members, any other for its sender."""
        client, task, rows, size = upload.client, upload.task, upload.rows, upload.bytes
        cohort = [member for member, _ in upload.members]
        self.digests.add(upload.digest)
        if cohort:
            self.cohorts.append(
                Outcome(None, client, task, "accepted", rows=rows, bytes=size, members=cohort)
            )
        for counts in (self.by_task[task], self.by_site[client]):
            counts.rows += rows
            counts.payload += size
        for label, n in upload.classes:
            self.by_site[client].classes[label] += n
        for site in dict.fromkeys((client, *cohort)):
            self.by_site[site].uploads += 1
            self.by_site[site].tasks[task] = None
        self.by_task[task].uploads += len(cohort) or 1
        self.by_task[task].answered |= dict.fromkeys(cohort or [client], "accepted")

    def _add_event(self, event: dict[str, Any]) -> None:
        """Count an upload that was not accepted, or a site that had nothing to send."""
        client, task = str(event.get("client")), str(event.get("task"))
        if event["event"] == "declined":
            state = "failed" if event.get("failed") is True else "declined"
            self.declined.setdefault(task, {})[client] = self._add_problem(event, state)
        if event["event"] != "upload":
            return
        outcome = str(event.get("outcome"))
        if outcome in ("refused", "quarantined"):
            self._add_problem(event, outcome)
        if event.get("verified") is not True:
            return
        of_task = self.by_task[task]
        counted = outcome == "quarantined" and event.get("digest") in self.digests
        if not counted and not event.get("released"):  # a decision moves no bytes
            of_task.payload += event["bytes"]
            self.by_site[client].payload += event["bytes"]
        if of_task.answered.get(client) not in ("accepted", "duplicate", "forgotten"):
            of_task.answered[client] = outcome
        of_task.refused += outcome == "refused"

    def _add_problem(self, event: dict[str, Any], state: str) -> Outcome:
        who = str(event["client"]), str(event["task"]), state
        reason, verified = str(event.get("reason", "")), event.get("verified") is True
        key = (*who, reason, verified)
        times = self.problems.pop(key).times + 1 if key in self.problems else 1
        found = Outcome(float(event["at"]), *who, reason, verified, times)
        self.problems[key] = found
        return found


@dataclass(frozen=True)
class Connections:
    """What the server last recorded about Flower's nodes. Without a record, all is unknown."""

    at: float | None = None
    nodes: int | None = None
    """Connected nodes; None: unknown, because there is no record, or an old one."""
    online: frozenset[str] = frozenset()
    """Sites with a connected node; "" stands for a site that is not known."""
    last_seen: dict[str, float] = field(default_factory=dict)
    foreign_runs: list[str] = field(default_factory=list)
    """Runs whose app is not ours."""

    @classmethod
    def read(cls, text: str, oldest: float, seen: Mapping[str, float]) -> Connections:
        """The record, and the sites that have answered since: they are connected too.

        ``seen`` says when sites last answered. A record from before ``oldest`` is too old.
        """
        if not text:
            return cls()
        found, last_seen = json.loads(text), dict[str, float]()
        at, foreign = found["at"], found.get("foreign_runs", [])
        for node in found["nodes"]:
            if (when := _timestamp(node["last_seen"])) is not None:
                last_seen[node["client"]] = max(when, last_seen.get(node["client"], when))
        if at < oldest:
            return cls(at, last_seen=last_seen, foreign_runs=foreign)
        online = [node["client"] for node in found["nodes"] if node["status"] == "online"]
        answered = {client for client, when in seen.items() if when > at}
        known = frozenset((*online, *answered))
        later = 0 if "" in online else len(answered - set(online))
        last_seen |= dict.fromkeys(known, at)
        return cls(at, len(online) + later, known, last_seen, foreign)

    def connected(self, client: str) -> bool | None:
        """Whether a node of this site is connected; None: unknown."""
        if self.nodes is None:
            return None
        if client in self.online:
            return True
        return None if "" in self.online else False  # a node of an unknown site may be its own


def _timestamp(text: object) -> float | None:
    """Unix seconds of an ISO 8601 time with a time zone."""
    try:
        found = datetime.fromisoformat(str(text))
        return found.timestamp() if found.tzinfo else None
    except (ValueError, OverflowError):
        return None
