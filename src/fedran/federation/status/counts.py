"""What a status is computed from: uploads and events, counted by task and by site, and who is
connected.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from fedran.federation.protocol.identity import base_task, is_cohort
from fedran.federation.server.schema import Cohort, Tombstone

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
    members: int = 0
    classes: Counter[str | int] = field(default_factory=Counter)
    tasks: dict[str, None] = field(default_factory=dict)
    """Those of its accepted uploads, in order of acceptance."""


class Counts:
    """What uploads and events say. Unsigned messages never count for a site or create a task."""

    def __init__(self) -> None:
        self.tasks: defaultdict[str, TaskCounts] = defaultdict(TaskCounts)
        self.sites: defaultdict[str, SiteCounts] = defaultdict(SiteCounts)
        self.declined: dict[str, dict[str, tuple[float, str]]] = {}
        """Task -> site -> when and why it had nothing to send, as it said itself."""
        self.failed: dict[str, set[str]] = {}
        """Task -> sites that had rows but could not make an upload, as they said themselves."""
        self.problems: list[Event] = []
        self.accepted: set[str] = set()
        """Digests of accepted uploads."""

    def add_uploads(
        self,
        sizes: Iterable[tuple[str, str, int, int, str]],
        lists: Iterable[tuple[str, str, str]],
    ) -> None:
        """Count accepted uploads, as ``upload_sizes`` and ``upload_lists`` describe them."""
        for client, name, size, rows, digest in sizes:
            self.accepted.add(digest)
            of_task = self.tasks[base_task(name)]
            of_task.uploads += 1
            of_task.rows += rows
            of_task.payload += size
            of_task.answered[client] = "accepted"
            of_site = self.sites[client]
            of_site.uploads += 1
            of_site.rows += rows
            of_site.bytes += size
            of_site.tasks[base_task(name)] = None
        for client, classes, members in lists:
            of_site = self.sites[client]
            of_site.members = sum(map(len, json.loads(members)))
            totals = of_site.classes
            for upload in json.loads(classes):
                for label, n in upload:
                    totals[label] = totals.get(label, 0) + n

    def add_cohorts(self, cohorts: Iterable[Cohort]) -> None:
        """Count the members of secure sums, whose uploads were counted for their cohort."""
        for found in cohorts:
            of_task = self.tasks[found.task]
            of_task.answered.pop(found.cohort, None)
            of_task.uploads += len(found.members) - 1
            for member in found.members:
                of_task.answered[member] = "accepted"
                self.sites[member].uploads += 1
                self.sites[member].tasks[found.task] = None

    def add_forgotten(self, tombstones: Iterable[Tombstone]) -> None:
        """Note forgotten uploads. Nothing is expected from their sites any more.

        The members of a forgotten cohort may make another sum.
        """
        for tombstone in tombstones:
            if not is_cohort(tombstone.client):
                of_task = self.tasks[base_task(tombstone.task)]
                of_task.answered.setdefault(tombstone.client, "forgotten")

    def add_event(self, event: Event) -> None:
        """Count an upload that was not accepted, or a site that had nothing to send."""
        client, task = str(event.get("client")), base_task(str(event.get("task")))
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
        of_task, size = self.tasks[task], event["bytes"]
        counted = outcome == "quarantined" and event.get("digest") in self.accepted
        if not counted and not event.get("released"):  # a decision moves no bytes
            of_task.payload += size
            self.sites[client].bytes += size
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
