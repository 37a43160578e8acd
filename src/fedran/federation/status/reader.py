"""Reads the state of a federation from the server's database, whether the server runs or not.

Nothing is opened for writing, and what cannot be read is reported in ``Status.notes``.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fedran.federation.protocol.connection import WARN_DAYS, certificate_expiry
from fedran.federation.protocol.identity import Roster, base_task
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.server.database import Database, Waiting
from fedran.federation.server.events import EventLog
from fedran.federation.server.settings import ServerPaths
from fedran.federation.status.counts import Event, EventCounts
from fedran.federation.status.model import (
    HeadStatus,
    HeldStatus,
    InfluenceLine,
    InfluenceStatus,
    Problem,
    SiteStatus,
    Status,
    TaskStatus,
)

GRACE = 60.0
"""Seconds by which the server's next record of Flower's state may be late."""
MAX_PROBLEMS = 200


class Reader:
    """Reads the state of one federation, as often as needed; never writes."""

    def __init__(self, folder: str | Path) -> None:
        self.given, paths = Path(folder), ServerPaths.find(folder)
        self.folder, self.settings = paths.folder, paths.settings()
        self.state = self.folder / self.settings.state

    def read(self, now: float | None = None) -> Status:
        """The state now."""
        now, notes = time.time() if now is None else now, list[str]()
        active = lock_holder(self.state)
        stored = self._read_database(notes)
        if active is None:  # a run may have started between the two reads
            active = lock_holder(self.state)
        running = lock_holder(self.folder / "log") is not None
        oldest = now - (self.settings.catch_up or 3600.0) - GRACE if running else math.inf
        flower = read_flower_state(stored.flower, oldest)
        if flower.foreign_runs:
            notes.append(
                f"ALARM: run {', '.join(flower.foreign_runs[:5])} has an app that is not fedran's. "
                "Sites refuse it, but somebody else can start runs at this server."
            )
        expires = certificate_expiry(self.folder / "tls" / "server.crt")
        if expires is not None and expires - now < 86400 * WARN_DAYS:
            notes.append(
                f"The server's certificate expires in {(expires - now) / 86400:.0f} days; "
                "`fedran federation renew` makes a new one."
            )
        counts = EventCounts([*stored.events, *({**run, "event": "run"} for run in flower.runs)])
        return Status(
            at=now,
            federation=self.settings.federation,
            folder=str(self.given),
            server="running" if running else "not running",
            checked=flower.at,
            nodes=flower.online,
            records=stored.records,
            disk_bytes=disk_bytes(self.state),
            payload=counts.bytes.total(),
            transport=counts.transport(),
            head=_head(counts.newest_head),
            tasks=[_task(counts, task, active) for task in reversed(counts.tasks)],
            sites=self._sites(counts, flower, notes),
            quarantine=self._quarantine(stored.quarantine),
            problems=_problems(counts.problems),
            certificate_expires=expires,
            notes=notes,
            held=self._held(stored.held),
            influence=_influence(stored.influence),
        )

    def _held(self, content: str) -> HeldStatus | None:
        """The head that is held back, with the commands that end this."""
        found = json.loads(content) if content else None
        if found is None:
            return None
        base = ["fedran", "federation"]
        commands = [
            [*base, "forget", str(self.given), client, "--task", base_task(task)]
            for client, task, _ in found["uploads"][:3]
        ]
        commands.append([*base, "release", str(self.given)])
        shown = [shlex.join(command) for command in commands]
        return HeldStatus(found["at"], found["task"], found["reason"], shown)

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

    def _read_database(self, notes: list[str]) -> Stored:
        """The tables that a status needs; empty before the first start of the server."""
        try:
            with closing(Database(self.state, read_only=True)) as database:
                heads = [{**vars(head), "event": "head"} for head in database.heads()]
                return Stored(
                    database.count(),
                    [*EventLog(database).read(), *heads],
                    list(database.quarantine().values()),
                    database.fact("flower"),
                    database.fact("held"),
                    database.fact("influence"),
                )
        except FileNotFoundError:
            return Stored(0)
        except OSError as reason:
            notes.append(f"The database cannot be read: {reason}")
            return Stored(None)

    def _quarantine(self, waiting: list[Waiting]) -> list[Problem]:
        """Uploads in quarantine, each with the command that accepts it."""
        found = []
        for upload in waiting:
            client, task = upload.client, upload.task
            accept, reject = (
                shlex.join(["fedran", "federation", verb, str(self.given), client, task])
                for verb in ("accept", "reject")
            )
            found.append(
                Problem(
                    at=upload.at,
                    client=client,
                    task=task,
                    outcome="quarantined",
                    reason=upload.reason,
                    verified=True,
                    command=accept,
                    other_command=reject,
                )
            )
        return found


@dataclass(frozen=True)
class Stored:
    """What a status needs of the database."""

    records: int | None
    events: list[Event] = field(default_factory=list)
    quarantine: list[Waiting] = field(default_factory=list)
    flower: str = ""
    held: str = ""
    influence: str = ""


@dataclass(frozen=True)
class FlowerState:
    """What the server last recorded about Flower's nodes and runs."""

    at: float | None = None
    fresh: bool = False
    nodes: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    foreign_runs: list[str] = field(default_factory=list)
    """Runs whose app is not ours."""

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


def read_flower_state(text: str, oldest: float) -> FlowerState:
    """The server's last record of Flower's state; everything is unknown without one."""
    if not text:
        return FlowerState()
    found = json.loads(text)
    return FlowerState(
        found["at"],
        found["at"] >= oldest,
        found["nodes"],
        found["runs"],
        found.get("foreign_runs", []),
    )


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


def _influence(content: str) -> InfluenceStatus | None:
    found = json.loads(content) if content else None
    if found is None:
        return None
    lines = [InfluenceLine(**line) for line in found["lines"]]
    return InfluenceStatus(found["at"], found["accuracy"], lines)


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
