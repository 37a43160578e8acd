"""What a status is computed from: the tables of the database, uploads and events counted by task
and by site, and who is connected.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from fedran.federation.protocol.identity import is_cohort
from fedran.federation.server.database import Database
from fedran.federation.server.events import EventLog
from fedran.federation.server.ledger import Ledger
from fedran.federation.server.schema import Charge, Run, SolvedHead, Task, Waiting
from fedran.federation.status.model import Cohort

Event = dict[str, Any]


@dataclass
class TaskCounts:
    """The uploads for one task."""

    uploads: int = 0
    rows: int = 0
    refused: int = 0
    payload: int = 0
    """Bytes of all signed envelopes that arrived, as far as events are kept."""
    answered: dict[str, str] = field(default_factory=dict)
    """Site -> outcome of its upload. A refused upload does not replace an accepted one."""


@dataclass
class SiteCounts:
    """The uploads of one site."""

    uploads: int = 0
    rows: int = 0
    bytes: int = 0
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
    unfinished: dict[str, tuple[str, ...]] = field(default_factory=dict)
    flower: str = ""
    held: str = ""
    influence: str = ""
    epoch: str = ""
    cohorts: list[Cohort] = field(default_factory=list)
    by_task: defaultdict[str, TaskCounts] = field(default_factory=lambda: defaultdict(TaskCounts))
    by_site: defaultdict[str, SiteCounts] = field(default_factory=lambda: defaultdict(SiteCounts))
    declined: dict[str, dict[str, tuple[float, str]]] = field(default_factory=dict)
    """Task -> site -> when and why it had nothing to send, as it said itself."""
    failed: dict[str, set[str]] = field(default_factory=dict)
    """Task -> sites that had rows but could not make an upload, as they said themselves."""
    problems: list[Event] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)
    """Digests of accepted uploads."""
    equal: list[str] = field(default_factory=list)
    """What the owner is told about messages that equal one another."""

    @classmethod
    def read(cls, database: Database) -> Stored:
        """Read the tables, and count."""
        found = cls(
            database.count(),
            database.tasks(),
            database.heads(),
            database.runs(),
            list(database.quarantine().values()),
            database.seen(),
            database.ledger(),
            Ledger(database).members_of_unfinished(),
            database.fact("flower"),
            database.fact("held"),
            database.fact("influence"),
            database.fact("epoch"),
        )
        for client, task, size, rows, digest, classes, members in database.upload_lines():
            found.accepted.add(digest)
            found._add_upload(client, task, size, rows, json.loads(members))
            totals = found.by_site[client].classes
            for label, n in json.loads(classes):
                totals[label] += n
        found.equal = database.equal_uploads()
        for tombstone in database.tombstones():  # nothing is expected from their sites any more
            if not is_cohort(tombstone.client):  # its members may make another sum
                of_task = found.by_task[tombstone.task]
                of_task.answered.setdefault(tombstone.client, "forgotten")
        for event in EventLog(database).read(without="accepted"):
            found._add_event(event)
        return found

    def _add_upload(
        self, client: str, task: str, size: int, rows: int, members: list[list[str]]
    ) -> None:
        """Count an accepted upload: a secure sum for its members, any other for its sender."""
        cohort = [member for member, _ in members] if is_cohort(client) else []
        if cohort:
            self.cohorts.append(Cohort(client, task, cohort, rows))
        of_task, of_site = self.by_task[task], self.by_site[client]
        of_task.rows += rows
        of_task.payload += size
        of_site.uploads += 1
        of_site.rows += rows
        of_site.bytes += size
        of_site.tasks[task] = None
        of_task.uploads += len(cohort) or 1
        for member in cohort or [client]:
            of_task.answered[member] = "accepted"
        for member in cohort:
            self.by_site[member].uploads += 1
            self.by_site[member].tasks[task] = None

    def _add_event(self, event: Event) -> None:
        """Count an upload that was not accepted, or a site that had nothing to send."""
        client, task = str(event.get("client")), str(event.get("task"))
        if event["event"] == "declined":
            self.problems.append(event)
            reason = event["at"], str(event.get("reason"))
            self.declined.setdefault(task, {})[client] = reason
            failed = self.failed.setdefault(task, set())
            (failed.add if event.get("failed") is True else failed.discard)(client)
        if event["event"] != "upload":
            return
        outcome = event.get("outcome")
        if outcome in ("refused", "quarantined"):
            self.problems.append(event)
        if event.get("verified") is not True:
            return
        of_task, size = self.by_task[task], event["bytes"]
        counted = outcome == "quarantined" and event.get("digest") in self.accepted
        if not counted and not event.get("released"):  # a decision moves no bytes
            of_task.payload += size
            self.by_site[client].bytes += size
        if of_task.answered.get(client) not in ("accepted", "duplicate", "forgotten"):
            of_task.answered[client] = str(outcome)
        of_task.refused += outcome == "refused"


@dataclass(frozen=True)
class Connections:
    """What the server last recorded about Flower's nodes."""

    at: float | None = None
    fresh: bool = False
    nodes: list[dict[str, Any]] = field(default_factory=list)
    foreign_runs: list[str] = field(default_factory=list)
    """Runs whose app is not ours."""
    answered: frozenset[str] = frozenset()
    """Sites that have answered since then, so they are connected too."""

    @classmethod
    def read(cls, text: str, oldest: float, seen: Mapping[str, float]) -> Connections:
        """The server's last record; everything is unknown without one.

        ``seen`` says when sites last answered.
        """
        if not text:
            return cls()
        found = json.loads(text)
        at, foreign = found["at"], found.get("foreign_runs", [])
        answered = frozenset(client for client, when in seen.items() if when > at)
        return cls(at, at >= oldest, found["nodes"], foreign, answered)

    @property
    def online(self) -> int | None:
        """Number of connected nodes; None: unknown."""
        later = 0 if "" in self._online else len(self.answered - self._online.keys())
        return sum(self._online.values()) + later if self.fresh else None

    def connected(self, client: str) -> bool | None:
        """Whether a node of this site is connected; None: unknown."""
        if not self.fresh:
            return None
        if client in self._online or client in self.answered:
            return True
        return None if "" in self._online else False  # a node of an unknown site may be its own

    def last_seen(self, client: str) -> float | None:
        """When Flower last heard from a node of this site."""
        return self.at if self.connected(client) else self._last_seen.get(client)

    @cached_property
    def _online(self) -> Counter[str]:
        return Counter(n["client"] for n in self.nodes if n["status"] == "online")

    @cached_property
    def _last_seen(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for node in self.nodes:
            at = _timestamp(node["last_seen"])
            if at is not None:
                found[node["client"]] = max(at, found.get(node["client"], at))
        return found


def _timestamp(text: object) -> float | None:
    """Unix seconds of an ISO 8601 time with a time zone."""
    try:
        found = datetime.fromisoformat(str(text))
        return found.timestamp() if found.tzinfo else None
    except (ValueError, OverflowError):
        return None
