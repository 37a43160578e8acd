"""Where a federation stands, gathered from the server's files; nothing is opened for writing."""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedran.federation.protocol.lockfile import facts_of
from fedran.federation.protocol.paths import ServerPlace
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.events import Logbook
from fedran.federation.status.files import (
    LATE,
    Flower,
    aside,
    count_records,
    disk_bytes,
    read_flower,
)
from fedran.federation.status.tally import Tally

MOST_TROUBLES = 200
Class = tuple[str | int, int]
"""A label and its rows."""


@dataclass(frozen=True)
class HeadStatus:
    """The newest classifier."""

    at: float
    task: str
    classes: int
    bytes: int
    digest: str
    accuracy: float | None
    """On the server's validation set, from 0 to 1; None where there is none."""


@dataclass(frozen=True)
class TaskStatus:
    """One task, from the logbook."""

    task: str
    state: str
    """open, complete, quorum, short; interrupted: its run has ended without a word."""
    opened: float | None
    ends: float | None
    min_clients: int | None
    answered: dict[str, str]
    """Sites and what became of the last upload of each."""
    missing: list[str]
    told: dict[str, str]
    """Sites that said they have nothing to send, and why; not signed."""
    uploads: int
    refused: int
    quarantined: int
    rows: int
    payload: int
    """Bytes of the envelopes that came for this task."""
    transport: int | None
    """Bytes at the transport in its runs, both ways; None where nobody measured."""
    transport_in: int | None
    transport_out: int | None
    accuracy: float | None

    @property
    def asked(self) -> int:
        """How many sites were."""
        return len(self.answered) + len(self.told) + len(self.missing)


@dataclass(frozen=True)
class SiteStatus:
    """One site, from the roster, the logbook and Flower."""

    client: str
    in_roster: bool
    last_seen: float | None
    """When it last sent something new under its own key, or Flower last heard from its node."""
    connected: bool | None
    """None: unknown, as Flower's state is missing or old."""
    uploads: int
    members: int
    """Uploads of others that it forwarded as sums."""
    bytes: int
    rows: int
    classes: list[Class]
    newest_task: str


@dataclass(frozen=True)
class Trouble:
    """An upload that was not taken in, or a site that had nothing to send."""

    at: float
    client: str
    task: str
    outcome: str
    reason: str
    verified: bool
    """Whether the client named here signed it; if not, anyone may have written its words."""
    times: int = 1
    waiting: bool = False
    """Whether it lies in quarantine, and ``command`` takes it in."""
    command: str = ""


@dataclass(frozen=True)
class Status:
    """All of it; ``dataclasses.asdict`` makes it JSON."""

    at: float
    federation: str
    folder: str
    server: Literal["running", "not running"]
    checked: float | None
    """When it last wrote down who is connected."""
    nodes: int | None
    """Connected nodes."""
    records: int | None
    journal_bytes: int
    disk_bytes: int
    payload: int
    """Bytes of all signed envelopes that came."""
    transport: int | None
    """Bytes at the transport in all runs that are known, both ways."""
    head: HeadStatus | None
    tasks: list[TaskStatus]
    """Newest first."""
    sites: list[SiteStatus]
    waiting: list[Trouble]
    troubles: list[Trouble]
    """Newest first, at most 200."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, or does not fit together."""

    @property
    def open_tasks(self) -> list[TaskStatus]:
        """Tasks that wait for uploads now."""
        return [t for t in self.tasks if t.state == "open"]


class Reader:
    """Reads the state of one federation, again and again; never writes."""

    def __init__(self, folder: str | Path) -> None:
        self.given, place = Path(folder), ServerPlace.find(folder)
        self.here, self.settings = place.folder, place.settings()
        self.state = self.here / self.settings.state
        self.logbook = Logbook(self.state / "logbook.jsonl")

    def read(self, now: float | None = None) -> Status:
        """Where things stand now."""
        now, notes = time.time() if now is None else now, list[str]()
        at_work = facts_of(self.state)
        events = self.logbook.read()
        if at_work is None:  # a run that began between the two looks
            at_work = facts_of(self.state)
        running = facts_of(self.here / "log") is not None
        oldest = now - (self.settings.catch_up or 3600.0) - LATE if running else math.inf
        flower = read_flower(self.state / "flower.json", oldest, notes)
        tally = Tally(events, flower)
        records, journal_bytes = count_records(self.state / "journal", notes)
        if records is not None and records > len(tally.accepted):
            notes.append(
                f"The journal holds {records} uploads, the logbook tells of "
                f"{len(tally.accepted)}: the others count, but are not shown below."
            )
        return Status(
            now,
            self.settings.federation,
            str(self.given),
            "running" if running else "not running",
            flower.at,
            flower.online,
            records,
            journal_bytes,
            disk_bytes(self.state),
            tally.bytes.total(),
            tally.transport(),
            _head(tally),
            [_task(tally, t, at_work) for t in reversed(tally.tasks)],
            self._sites(tally, flower, notes),
            self._waiting(tally),
            _troubles(tally),
            notes,
        )

    def _sites(self, tally: Tally, flower: Flower, notes: list[str]) -> list[SiteStatus]:
        try:
            roster = set(Roster.load(self.here / self.settings.roster).clients)
        except (ValueError, OSError) as reason:
            notes.append(f"The roster cannot be read: {reason}")
            roster = set()
        found = sorted(roster | tally.clients)
        return [_site(tally, flower, client, client in roster) for client in found]

    def _waiting(self, tally: Tally) -> list[Trouble]:
        """What lies in quarantine and is not in the journal, with the command for each."""
        found = []
        for (client, task), at in aside(self.state / "quarantine").items():
            if (client, task) in tally.accepted:
                continue
            event = tally.put_aside.get((client, task), {})
            reason = str(event.get("reason") or "the logbook does not say why")
            command = ["fedran", "federation", "accept", str(self.given), client, task]
            when = float(event.get("at", at))
            found.append(
                Trouble(
                    when, client, task, "quarantined", reason, True, 1, True, shlex.join(command)
                )
            )
        return found


def _head(tally: Tally) -> HeadStatus | None:
    e = tally.head
    if e is None:
        return None
    digest = e.get("digest")
    return HeadStatus(
        float(e["at"]),
        e["task"],
        number(e, "classes"),
        number(e, "bytes"),
        digest if isinstance(digest, str) else "",
        share(e),
    )


def _task(tally: Tally, task: str, at_work: dict[str, Any] | None) -> TaskStatus:
    told, uploads = tally.task_events.get(task, {}), tally.uploads_of(task)
    opened, ends = told.get("opened"), None
    if opened is not None and isinstance(told.get("deadline"), (int, float)):
        ends = opened + told["deadline"]
    answered = {u["client"]: u["outcome"] for u in uploads}
    asked = told.get("asked") or told.get("missing")
    names = {c for c in asked if isinstance(c, str)} if isinstance(asked, list) else set()
    declined = tally.declined.get(task, {}).items()
    excused = {c: r for c, r in declined if c in names - answered.keys()}
    state = told.get("state", "unknown")
    if state == "open" and (at_work is None or at_work.get("task", task) != task):
        state = "interrupted"
    least = told.get("min_clients")
    return TaskStatus(
        task,
        state,
        opened,
        ends,
        least if isinstance(least, int) else None,
        answered,
        sorted(names - answered.keys() - excused.keys()),
        excused,
        sum(key[1] == task for key in tally.accepted),
        sum(u["outcome"] == "refused" for u in uploads),
        len({u["client"] for u in uploads if u["outcome"] == "quarantined"}),
        sum(number(u, "rows") for key, u in tally.accepted.items() if key[1] == task),
        sum(number(u, "bytes") for u in uploads),
        tally.transport(task),
        tally.transport(task, "transport_up"),
        tally.transport(task, "transport_down"),
        share(tally.heads.get(task, {})),
    )


def _site(tally: Tally, flower: Flower, client: str, in_roster: bool) -> SiteStatus:
    accepted = [u for (c, _), u in tally.accepted.items() if c == client]
    seen = [t for t in (tally.seen.get(client), flower.last_seen(client)) if t is not None]
    classes: Counter[str | int] = Counter()
    for upload in accepted:
        for label, rows in _classes(upload):
            classes[label] += rows
    return SiteStatus(
        client,
        in_roster,
        max(seen, default=None),
        flower.connected(client),
        len(accepted),
        sum(number(u, "members") for u in accepted),
        tally.bytes[client],
        sum(number(u, "rows") for u in accepted),
        classes.most_common(),
        accepted[-1]["task"] if accepted else "",
    )


def _troubles(tally: Tally) -> list[Trouble]:
    """Newest first; the same again is counted, not repeated."""
    found: dict[tuple[object, ...], Trouble] = {}
    for e in tally.troubles:
        words = (e["client"], e["task"], e.get("outcome", "declined"))
        reason, verified = str(e.get("reason", "")), e.get("verified") is True
        key = (*words, reason, verified)
        times = found.pop(key).times + 1 if key in found else 1
        found[key] = Trouble(float(e["at"]), *words, reason, verified, times)
    return list(reversed(found.values()))[:MOST_TROUBLES]


def _classes(upload: dict[str, Any]) -> list[Class]:
    given = upload.get("classes")
    pairs = [p for p in given if isinstance(p, list) and len(p) == 2] if given else []
    return [(c, n) for c, n in pairs if isinstance(c, (str, int)) and isinstance(n, int)]


def number(event: dict[str, Any], name: str) -> int:
    """A count of an event; 0 where it has none."""
    value = event.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def share(event: dict[str, Any]) -> float | None:
    """The accuracy of an event, if it has one."""
    value = event.get("accuracy")
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else None
