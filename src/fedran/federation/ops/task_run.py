"""One task from its owner's chair: start the run, watch it, start it again if Flower lost it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedran.core.errors import Refused
from fedran.federation.ops import flower
from fedran.federation.ops.nodes import active, note_of
from fedran.federation.protocol.identity import Roster, base_task, check_task
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.protocol.logs import Tail, log_file
from fedran.federation.server.events import EventLog
from fedran.federation.server.round import Quorum
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.validation import Validation

Say = Callable[[str], None]
TRIES = 4
"""Runs of one task: Flower does not resume a run after a restart of its SuperLink."""
POLL = 2.0
SLACK = 900.0
"""Seconds beyond the deadline for start, waiting for another run, solving and handing back."""


@dataclass(frozen=True)
class TaskRun:
    """How a task ended."""

    task: str
    verdict: str
    transport: int
    """Bytes at the transport, both ways, of its last run."""


def run_task(place: ServerPaths, task: str, *, say: Say) -> TaskRun:
    """Run a task to its end; the server must be running."""
    check_task(task)
    if lock_holder(place.folder / "log") is None:
        raise Refused(
            str(place.folder),
            "a running server",
            "none",
            hint="start it with `fedran federation up` or `fedran federation server`",
        )
    _check(place)
    other = (lock_holder(place.state) or {}).get("task")
    if other:
        raise Refused(
            "task", "no other at work", f"{other}, which is open", hint="wait for its end"
        )
    for attempt in range(1, TRIES + 1):
        run = follow(place, task, say)
        if run["status"] == "finished:completed":
            return report(place, task, run, say)
        if attempt < TRIES:
            say(f"the run ended as {run['status']}; what came is kept, starting it again")
            _wait_for_link(place)
    raise Refused(f"task {task}", "a run that completes", f"{TRIES} that did not: {run['status']}")


def _check(place: ServerPaths) -> None:
    """Refuse here what would fail in every run."""
    settings, roster = place.settings(), Roster.load(place.roster)
    Quorum(frozenset(roster.clients), settings.min_clients, settings.deadline)
    Validation.of(settings, place.folder)


def follow(place: ServerPaths, task: str, say: Say, *more: str) -> dict[str, Any]:
    """Start a run and show the server's lines until it ends; Flower's record of it."""
    tail = Tail(log_file(place.folder))
    try:
        started = flower.ask(
            place, "run", ".", flower.LINK, "--run-config", f'task="{task}"', *more
        )
    except Refused as reason:  # the SuperLink may be starting
        return {"run-id": "", "status": f"not started ({reason})"}
    number = str(started["run-id"])
    place.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    book = EventLog(place.state / "events.jsonl")
    book.write("run", task=task, run_id=number, status="started")
    deadline = time.monotonic() + place.settings().deadline + SLACK
    run: dict[str, Any] = {"run-id": number, "status": "unknown"}
    while time.monotonic() < deadline:
        time.sleep(POLL)
        for line in tail.lines():
            say(line)
        try:
            (run,) = flower.ask(place, "list", flower.LINK, "--run-id", number)["runs"]
        except (Refused, OSError, TimeoutError, ValueError):
            continue  # the SuperLink is away; its keeper starts it again
        if not active(run):
            break
    for line in tail.lines():
        say(line)
    return run


def report(place: ServerPaths, task: str, run: dict[str, Any], say: Say) -> TaskRun:
    """Say how a task ended, and note the bytes of its run."""
    book = EventLog(place.state / "events.jsonl")
    note = note_of(run)
    book.write("run", task=task, **note)
    events = [e for e in book.read() if base_task(str(e.get("task", ""))) == task]
    states = [e["state"] for e in events if e["event"] == "task"]
    verdict = states[-1] if states else "unknown"
    uploads = [e for e in events if e["event"] == "upload" and e["outcome"] == "accepted"]
    payload = sum(e["bytes"] for e in uploads)
    way = f"{note['transport_up'] / 1e6:.3f} MB in and {note['transport_down'] / 1e6:.3f} MB out"
    measured = f", at the transport {way}" if note["transport"] else " (no transport here)"
    say(f"task {task}: {verdict}; uploads {payload / 1e6:.3f} MB{measured}")
    return TaskRun(task, verdict, note["transport"])


def _wait_for_link(place: ServerPaths) -> None:
    time.sleep(POLL)
    deadline = time.monotonic() + 120
    while not flower.listening(place.settings().address) and time.monotonic() < deadline:
        time.sleep(1)
