"""Reads the state of a federation from the server's files, whether the server runs or not.

Nothing is opened for writing, and missing or damaged files are reported in ``Status.notes``.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fedran.core.errors import Refused
from fedran.core.ids import check_id
from fedran.federation.protocol.identity import Roster, UploadId
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.server.events import EventLog, plain
from fedran.federation.server.journal import count_records
from fedran.federation.server.settings import ServerPaths
from fedran.federation.status.counts import Event, EventCounts
from fedran.federation.status.model import HeadStatus, Problem, SiteStatus, Status, TaskStatus

GRACE = 60.0
"""Seconds by which the server's next record of Flower's state may be late."""
MAX_PROBLEMS = 200


class Reader:
    """Reads the state of one federation, as often as needed; never writes."""

    def __init__(self, folder: str | Path) -> None:
        self.given, paths = Path(folder), ServerPaths.find(folder)
        self.folder, self.settings = paths.folder, paths.settings()
        self.state = self.folder / self.settings.state
        self.events = EventLog(self.state / "events.jsonl")

    def read(self, now: float | None = None) -> Status:
        """The state now."""
        now, notes = time.time() if now is None else now, list[str]()
        active = lock_holder(self.state)
        events = self.events.read()
        if active is None:  # a run may have started between the two reads
            active = lock_holder(self.state)
        running = lock_holder(self.folder / "log") is not None
        oldest = now - (self.settings.catch_up or 3600.0) - GRACE if running else math.inf
        flower = read_flower_state(self.state / "flower.json", oldest, notes)
        counts = EventCounts([*events, *({**run, "event": "run"} for run in flower.runs)])
        records, journal = None, self.state / "journal"
        try:
            records = count_records(journal)
        except OSError as reason:
            notes.append(f"The journal cannot be read: {reason}")
        if records is not None and records > len(counts.accepted):
            notes.append(
                f"The journal contains {records} uploads, the event log {len(counts.accepted)}. "
                "The missing ones are part of the classifier, but are not shown below."
            )
        return Status(
            at=now,
            federation=self.settings.federation,
            folder=str(self.given),
            server="running" if running else "not running",
            checked=flower.at,
            nodes=flower.online,
            records=records,
            journal_bytes=journal.stat().st_size if journal.is_file() else 0,
            disk_bytes=disk_bytes(self.state),
            payload=counts.bytes.total(),
            transport=counts.transport(),
            head=_head(counts.newest_head),
            tasks=[_task(counts, task, active) for task in reversed(counts.tasks)],
            sites=self._sites(counts, flower, notes),
            quarantine=self._quarantine(counts),
            problems=_problems(counts.problems),
            notes=notes,
        )

    def _sites(
        self, counts: EventCounts, flower: FlowerState, notes: list[str]
    ) -> list[SiteStatus]:
        try:
            roster = set(Roster.load(self.folder / self.settings.roster).clients)
        except (ValueError, OSError) as reason:
            notes.append(f"The roster cannot be read: {reason}")
            roster = set()
        clients = sorted(roster | counts.clients)
        return [_site(counts, flower, client, client in roster) for client in clients]

    def _quarantine(self, counts: EventCounts) -> list[Problem]:
        """Uploads in quarantine that were not accepted since, with the command that does it."""
        found = []
        for (client, task), at in quarantined_uploads(self.state / "quarantine").items():
            if (client, task) in counts.accepted:
                continue
            event = counts.quarantined.get((client, task), {})
            command = ["fedran", "federation", "accept", str(self.given), client, task]
            found.append(
                Problem(
                    at=float(event.get("at", at)),
                    client=client,
                    task=task,
                    outcome="quarantined",
                    reason=str(event.get("reason") or "the event log does not contain the reason"),
                    verified=True,
                    command=shlex.join(command),
                )
            )
        return found


@dataclass(frozen=True)
class FlowerState:
    """What the server last recorded about Flower's nodes and runs."""

    at: float | None = None
    fresh: bool = False
    nodes: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def online(self) -> int | None:
        """Number of connected nodes; None: unknown."""
        return sum(_is_online(n) for n in self.nodes) if self.fresh else None

    def connected(self, client: str) -> bool | None:
        """Whether a node of this site is connected; None: unknown."""
        online = {n.get("client") for n in self.nodes if _is_online(n)}
        if not self.fresh or (client not in online and "" in online):  # a node of an unknown site
            return None
        return client in online

    def last_seen(self, client: str) -> float | None:
        """When Flower last heard from a node of this site."""
        if self.connected(client):
            return self.at
        times = [_timestamp(n.get("last_seen")) for n in self.nodes if n.get("client") == client]
        return max((t for t in times if t is not None), default=None)


def read_flower_state(path: Path, oldest: float, notes: list[str]) -> FlowerState:
    """The server's record of Flower's state; everything is unknown if it is missing or damaged."""
    try:
        found = plain(json.loads(path.read_bytes()))
        at = found.get("at") if isinstance(found, dict) else None
        if not isinstance(at, (int, float)) or not 0 <= at < 1e11:
            raise ValueError("no valid time")
    except FileNotFoundError:
        return FlowerState()
    except (OSError, ValueError, RecursionError):
        notes.append(f"{path.name} is damaged. Which sites are connected is unknown.")
        return FlowerState()
    nodes, runs = (
        [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        for items in (found.get("nodes"), found.get("runs"))
    )
    return FlowerState(at, at >= oldest, nodes, runs)


def quarantined_uploads(folder: Path) -> dict[UploadId, float]:
    """The uploads in quarantine by client and task, with the times of their files."""
    found = {}
    for path in sorted(folder.glob("*@*")):
        client, _, task = path.name.partition("@")
        try:
            key = check_id(client, "client"), check_id(task, "task")
            if not (client.startswith(".") and task.endswith(".part")):  # is being written
                found[key] = path.stat().st_mtime
        except (Refused, OSError):
            continue
    return found


def disk_bytes(folder: Path) -> int:
    """Bytes of all files below a folder. Files may appear and disappear meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _head(event: Event | None) -> HeadStatus | None:
    if event is None:
        return None
    digest = event.get("digest")
    return HeadStatus(
        at=float(event["at"]),
        task=event["task"],
        classes=_number(event, "classes"),
        bytes=_number(event, "bytes"),
        digest=digest if isinstance(digest, str) else "",
        accuracy=_accuracy(event),
    )


def _task(counts: EventCounts, task: str, active: dict[str, Any] | None) -> TaskStatus:
    event, uploads = counts.task_events.get(task, {}), counts.uploads.get(task, [])
    accepted = [upload for key, upload in counts.accepted.items() if key[1] == task]
    opened, deadline = event.get("opened"), event.get("deadline")
    ends = None
    if opened is not None and isinstance(deadline, (int, float)):
        ends = opened + deadline
    answered: dict[str, str] = {}
    for upload in uploads:
        if answered.get(upload["client"]) not in ("accepted", "duplicate"):
            answered[upload["client"]] = upload["outcome"]
    asked = event.get("asked") or event.get("missing")
    waiting = {c for c in asked if isinstance(c, str)} if isinstance(asked, list) else set()
    waiting -= answered.keys()
    declined = {c: r for c, r in counts.declined.get(task, {}).items() if c in waiting}
    state, min_clients = event.get("state", "unknown"), event.get("min_clients")
    if state == "open" and (active is None or active.get("task", task) != task):
        state = "interrupted"
    return TaskStatus(
        task=task,
        state=state,
        opened=opened,
        ends=ends,
        min_clients=min_clients if isinstance(min_clients, int) else None,
        answered=answered,
        missing=sorted(waiting - declined.keys()),
        declined=declined,
        uploads=len(accepted),
        refused=sum(u["outcome"] == "refused" for u in uploads),
        quarantined=len({u["client"] for u in uploads if u["outcome"] == "quarantined"}),
        rows=sum(_number(u, "rows") for u in accepted),
        payload=sum(_number(u, "bytes") for u in uploads),
        transport=counts.transport(task),
        transport_in=counts.transport(task, "transport_up"),
        transport_out=counts.transport(task, "transport_down"),
        accuracy=_accuracy(counts.heads.get(task, {})),
    )


def _site(counts: EventCounts, flower: FlowerState, client: str, in_roster: bool) -> SiteStatus:
    accepted = [u for (c, _), u in counts.accepted.items() if c == client]
    times = (counts.last_seen.get(client), flower.last_seen(client))
    classes: Counter[str | int] = Counter()
    for upload in accepted:
        pairs = upload.get("classes")
        for pair in pairs if isinstance(pairs, list) else ():
            match pair:
                case [str() | int() as label, int() as rows]:
                    classes[label] += rows
    return SiteStatus(
        client=client,
        in_roster=in_roster,
        last_seen=max((t for t in times if t is not None), default=None),
        connected=flower.connected(client),
        uploads=len(accepted),
        members=sum(_number(u, "members") for u in accepted),
        bytes=counts.bytes[client],
        rows=sum(_number(u, "rows") for u in accepted),
        classes=classes.most_common(),
        newest_task=accepted[-1]["task"] if accepted else "",
    )


def _problems(events: list[Event]) -> list[Problem]:
    """Newest first. Identical events are counted, not repeated."""
    found: dict[tuple[object, ...], Problem] = {}
    for event in events:
        who = event["client"], event["task"], event.get("outcome", "declined")
        reason, verified = str(event.get("reason", "")), event.get("verified") is True
        key = (*who, reason, verified)
        times = found.pop(key).times + 1 if key in found else 1
        found[key] = Problem(float(event["at"]), *who, reason, verified, times)
    return list(reversed(found.values()))[:MAX_PROBLEMS]


def _number(event: Event, name: str) -> int:
    """A count in an event; 0 if it is missing or not a count."""
    value = event.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _accuracy(event: Event) -> float | None:
    value = event.get("accuracy")
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else None


def _is_online(node: dict[str, Any]) -> bool:
    return node.get("status") == "online"


def _timestamp(text: object) -> float | None:
    """Unix seconds of an ISO 8601 time with a time zone."""
    try:
        found = datetime.fromisoformat(str(text))
        return found.timestamp() if found.tzinfo else None
    except (ValueError, OverflowError):
        return None
