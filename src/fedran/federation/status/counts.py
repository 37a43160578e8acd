"""The events of the server, counted by task and by site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fedran.federation.protocol.identity import UploadId, base_task

Event = dict[str, Any]
REQUIRED = {
    "upload": ("client", "task", "outcome"),
    "task": ("task", "state"),
    "declined": ("client", "task", "reason"),
    "seen": ("client",),
    "head": ("task",),
    "run": ("run_id",),
}
"""Text fields of each kind of event. An event without them is skipped."""


class EventCounts:
    """What the events say. Unsigned messages never count for a site and never create a task."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.tasks: dict[str, None] = {}
        """In the order of their first event."""
        self.task_events: dict[str, Event] = {}
        """Task -> its latest fields, and when it was ``opened``."""
        self.uploads: dict[str, list[Event]] = {}
        """Task -> signed uploads in the order of arrival, duplicates included."""
        self.accepted: dict[UploadId, Event] = {}
        """One event per accepted upload: the first that contains its classes."""
        self.quarantined: dict[UploadId, Event] = {}
        self.declined: dict[str, dict[str, str]] = {}
        """Task -> client -> reason."""
        self.clients: set[str] = set()
        self.last_seen: dict[str, float] = {}
        self.bytes: Counter[str] = Counter()
        self.newest_head: Event | None = None
        self.heads: dict[str, Event] = {}
        """Task -> its head."""
        self.runs: dict[str, Event] = {}
        """What is known of each run, by its id. Some runs have no task."""
        self.problems: list[Event] = []
        self._digests: set[str] = set()
        for event in events:
            kind = event["event"]
            if kind in REQUIRED and all(isinstance(event.get(n), str) for n in REQUIRED[kind]):
                self._add(kind, event)

    def transport(self, task: str | None = None, field: str = "transport") -> int | None:
        """Bytes at the transport in the runs of a task, or in all runs; None if not measured."""
        runs = [r for r in self.runs.values() if task is None or r.get("task") == task]
        known = [r[field] for r in runs if isinstance(r.get(field), int)]
        return sum(known) if known else None

    def _add(self, kind: str, event: Event) -> None:
        match kind:
            case "upload":
                self._add_upload(event)
            case "task":
                task, fields = event["task"], _known_fields(event)
                self.tasks.setdefault(task)
                if event["state"] == "open":
                    fields["opened"] = event["at"]
                    self.declined.pop(task, None)
                self.task_events[task] = {**self.task_events.get(task, {}), **fields}
            case "declined":
                self.problems.append(event)
                reasons = self.declined.setdefault(event["task"], {})
                reasons[event["client"]] = event["reason"]
            case "seen":
                self.last_seen[event["client"]] = event["at"]
            case "head":
                self.newest_head = self.heads[event["task"]] = event
            case "run":
                self._add_run(event)

    def _add_upload(self, event: Event) -> None:
        outcome = event["outcome"]
        if outcome in ("refused", "quarantined"):
            self.problems.append(event)
        if event.get("verified") is not True:
            return
        client, task = event["client"], base_task(event["task"])
        self.clients.add(client)
        self.tasks.setdefault(task)
        key = client, task
        if outcome in ("accepted", "duplicate") and not self.accepted.get(key, {}).get("classes"):
            self.accepted[key] = event
        if outcome == "quarantined":
            self.quarantined[key] = event
        if event.get("released"):  # accepted from quarantine: it did not arrive now
            return
        self.uploads.setdefault(task, []).append(event)
        size, digest = event.get("bytes"), str(event.get("digest"))
        self.bytes[client] += size if isinstance(size, int) else 0
        if digest not in self._digests:  # anyone can replay an old envelope
            self._digests.add(digest)
            self.last_seen[client] = event["at"]

    def _add_run(self, event: Event) -> None:
        """Merge with earlier events of the same run. The number of bytes never decreases."""
        before, fields = self.runs.get(event["run_id"], {}), _known_fields(event)
        for name in ("transport", "transport_up", "transport_down"):
            values = [v for v in (before.get(name), fields.get(name)) if isinstance(v, int)]
            if values:
                fields[name] = max(values)
        self.runs[event["run_id"]] = {**before, **fields}


def _known_fields(event: Event) -> Event:
    return {name: value for name, value in event.items() if value is not None}
