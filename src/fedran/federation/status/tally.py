"""The logbook's events, counted by task and by site."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedran.federation.protocol.identity import Key, base_task
from fedran.federation.status.files import Flower

Event = dict[str, Any]
NEEDED = {
    "upload": ("client", "task", "outcome"),
    "task": ("task", "state"),
    "declined": ("client", "task", "reason"),
    "seen": ("client",),
    "head": ("task",),
    "run": ("run_id",),
}
"""Texts without which an event is skipped."""


class Tally:
    """What the events say; words that nobody signed never count for a site or make a task."""

    def __init__(self, events: list[Event], flower: Flower) -> None:
        self.tasks: dict[str, None] = {}
        """In the order of their first event."""
        self.accepted: dict[Key, Event] = {}
        """One event for every upload that is in; the first that knows its classes."""
        self.put_aside: dict[Key, Event] = {}
        self.clients: set[str] = set()
        self.seen: dict[str, float] = {}
        self.bytes: Counter[str] = Counter()
        self.task_events: dict[str, Event] = {}
        self.declined: dict[str, dict[str, str]] = {}
        self.head: Event | None = None
        self.heads: dict[str, Event] = {}
        self.troubles: list[Event] = []
        self._uploads: dict[str, list[Event]] = {}
        self.runs: dict[str, Event] = {}
        """What is known of each run, by its number; some say no task."""
        self._digests: set[str] = set()
        takers = {
            "upload": self._upload,
            "task": self._task,
            "declined": self._declined,
            "seen": self._seen,
            "head": self._head,
            "run": self._run,
        }
        for event in (*events, *({**run, "event": "run"} for run in flower.runs)):
            kind = event["event"]
            if kind in takers and all(isinstance(event.get(n), str) for n in NEEDED[kind]):
                takers[kind](event)

    def uploads_of(self, task: str) -> list[Event]:
        """Signed uploads as they arrived, duplicates included."""
        return self._uploads.get(task, [])

    def transport(self, task: str | None = None, way: str = "transport") -> int | None:
        """Bytes at the transport in the runs of a task, or in all; None where nobody measured."""
        runs = [r for r in self.runs.values() if task is None or r.get("task") == task]
        known = [r[way] for r in runs if isinstance(r.get(way), int)]
        return sum(known) if known else None

    def _upload(self, event: Event) -> None:
        outcome, verified = event["outcome"], event.get("verified") is True
        if outcome in ("refused", "quarantined"):
            self.troubles.append(event)
        if not verified:
            return
        client, task = event["client"], base_task(event["task"])
        key, size = (client, task), event.get("bytes")
        self.clients.add(client)
        self.tasks.setdefault(task)
        if outcome in ("accepted", "duplicate") and not self.accepted.get(key, {}).get("classes"):
            self.accepted[key] = event
        if outcome == "quarantined":
            self.put_aside[key] = event
        if event.get("released"):  # a person let it in: it did not arrive now
            return
        self._uploads.setdefault(task, []).append(event)
        self.bytes[client] += size if isinstance(size, int) else 0
        digest = str(event.get("digest"))
        if digest not in self._digests:  # the same envelope again may be anyone's replay
            self._digests.add(digest)
            self.seen[client] = event["at"]

    def _task(self, event: Event) -> None:
        task = event["task"]
        self.tasks.setdefault(task)
        known = {k: v for k, v in event.items() if v is not None}
        if event["state"] == "open":
            known["opened"] = event["at"]
            self.declined.pop(task, None)
        self.task_events[task] = {**self.task_events.get(task, {}), **known}

    def _declined(self, event: Event) -> None:
        self.troubles.append(event)
        told = self.declined.setdefault(event["task"], {})
        told[event["client"]] = event["reason"]

    def _seen(self, event: Event) -> None:
        self.seen[event["client"]] = event["at"]

    def _head(self, event: Event) -> None:
        self.head = self.heads[event["task"]] = event

    def _run(self, event: Event) -> None:
        """Later words about a run add to the earlier ones; its bytes never shrink."""
        before = self.runs.get(event["run_id"], {})
        known = {k: v for k, v in event.items() if v is not None}
        for name in ("transport", "transport_up", "transport_down"):
            values = [v for v in (before.get(name), known.get(name)) if isinstance(v, int)]
            if values:
                known[name] = max(values)
        self.runs[event["run_id"]] = {**before, **known}
