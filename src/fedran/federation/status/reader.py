"""Reads the state of a federation from the server's database, whether the server runs or not.

Nothing is opened for writing, and what cannot be read is reported in ``Status.notes``.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedran.core.labels import similar_labels
from fedran.federation.protocol.connection import WARN_DAYS, certificate_expiry
from fedran.federation.protocol.identity import is_cohort
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.coordinator import FOLDER as SUMS
from fedran.federation.secure.pinning import roster_fingerprint
from fedran.federation.server.database import Database
from fedran.federation.server.influence import Influence, InfluenceTable
from fedran.federation.server.ledger import over_budget, spent
from fedran.federation.server.schema import Charge, Run, Task, Waiting
from fedran.federation.server.settings import REFUSED_REQUESTS, ServerPaths
from fedran.federation.status.format import format_age
from fedran.federation.status.model import (
    HeldStatus,
    Problem,
    SiteStatus,
    Status,
    SumStatus,
    TaskStatus,
)
from fedran.federation.status.stored import Connections, Event, SiteCounts, Stored, TaskCounts
from fedran.wire.files import folder_bytes, read_json_object

GRACE = 60.0
"""Seconds by which the server's next record of Flower's state may be late."""
MAX_PROBLEMS = 200
MAX_HEADS = 200


class Reader:
    """Reads the state of one federation, as often as needed; never writes."""

    def __init__(self, folder: str | Path) -> None:
        self.given, paths = Path(folder), ServerPaths.find(folder)
        self.folder, self.settings = paths.folder, paths.settings()
        self.state, self.runtime = self.folder / self.settings.state, paths.runtime

    def read(self, now: float | None = None) -> Status:
        """The state now."""
        now, notes = time.time() if now is None else now, list[str]()
        active = lock_holder(self.state)
        stored = self._read_database(notes)
        if active is None:  # a run may have started between the two reads
            active = lock_holder(self.state)
        running = lock_holder(self.folder / "log") is not None
        oldest = now - (self.settings.catch_up or 3600.0) - GRACE if running else math.inf
        connections = Connections.read(stored.flower, oldest, stored.seen)
        expires = certificate_expiry(self.folder / "tls" / "server.crt")
        notes += self._warnings(now, connections, expires)
        known = {task.task: task for task in stored.tasks}
        names = list(dict.fromkeys((*known, *stored.by_task)))
        secure, roster = self.settings.privacy != "none", self._roster(notes)
        sums, uploaded = self._sums(stored, roster or {}), stored.by_site.keys()
        if roster is None:  # nobody counts as removed
            members = {client for client in uploaded if not is_cohort(client)}
        else:
            members = set(roster)
        sites = [
            _site(stored, connections, client, client in members)
            for client in sorted(members | uploaded)
        ]
        notes += stored.equal
        if text := similar_labels(label for site in sites for label, _ in site.classes):
            notes.append(f"{text}.")
        return Status(
            at=now,
            federation=self.settings.federation,
            folder=str(self.given),
            server="running" if running else "not running",
            checked=connections.at,
            nodes=connections.online,
            records=stored.records,
            disk_bytes=folder_bytes(self.state),
            payload=sum(site.bytes for site in stored.by_site.values()),
            transport=_sum_of_bytes(stored.runs, "received", "sent"),
            head=stored.heads[-1] if stored.heads and stored.records else None,
            tasks=[_task(stored, n, known.get(n), active, sums) for n in reversed(names)],
            sites=sites,
            quarantine=self._quarantine(stored.quarantine),
            problems=_problems(stored.problems),
            history=stored.heads[-MAX_HEADS:],
            certificate_expires=expires,
            notes=notes,
            epoch=stored.epoch,
            held=self._held(stored.held),
            influence=_influence(stored.influence),
            roster="" if roster is None or not secure else roster_fingerprint(roster),
            cohorts=stored.cohorts,
            sums=sums,
            budget=self._budget(stored.ledger),
        )

    def _warnings(
        self, now: float, connections: Connections, expires: float | None
    ) -> Iterator[str]:
        """What the owner should look into, whatever the uploads are."""
        if connections.foreign_runs:
            yield (
                f"ALARM: run {', '.join(connections.foreign_runs[:5])} has an app that is not "
                "fedran's. Server and sites refuse it, but somebody else can start runs here."
            )
        refused = read_json_object(self.runtime / REFUSED_REQUESTS)
        if refused:
            yield (
                "ALARM: the SuperLink refused requests to the owner's interface without the "
                f"owner's secret, at least {refused['times']} since its start and the last "
                f"{format_age(now - refused['at'])}. Somebody else can reach its port."
            )
        if expires is not None and expires - now < 86400 * WARN_DAYS:
            yield (
                f"The server's certificate expires in {(expires - now) / 86400:.0f} days; "
                "`fedran federation renew` makes a new one."
            )

    def _roster(self, notes: list[str]) -> dict[str, str] | None:
        """The sites that may send, with their keys; None if they cannot be read."""
        try:
            return Roster.load(self.folder / self.settings.roster).clients
        except (ValueError, OSError) as reason:
            notes.append(f"The roster cannot be read: {reason}")
            return None

    def _budget(self, ledger: list[Charge]) -> str:
        """What differential privacy has spent; empty where there is none."""
        found, noise = spent(ledger, self.settings.delta), self.settings.noise
        if noise is None and not found.sums:
            return ""
        limit = self.settings.total_epsilon
        most = "" if limit is None else f" of at most {limit:g}"
        sums = "the only sum" if found.sums == 1 else f"each of {found.sums} sums"
        told = (
            f"At delta {found.delta:g}, a row has spent at most epsilon {found.row:.3g}. A person "
            f"with one row in {sums} has spent epsilon {found.person:.3g}{most}."
        )
        if noise is not None and over_budget(ledger, "", (), noise.budget, limit):
            told += " Another task would exceed this and is refused."
        if found.without_noise:
            told += (
                f" {found.without_noise} earlier sums were released without noise: nothing limits "
                "what they tell about their rows, and they are not in these figures."
            )
        return told

    def _sums(self, stored: Stored, roster: Mapping[str, str]) -> list[SumStatus]:
        """Secure sums that are under way, as the server noted them. They change meanwhile.

        Charged sums that no attempt repeats now are among them, with their members in the roster.
        """
        names = [f.name for f in fields(SumStatus)]
        notes = map(read_json_object, sorted((self.state / SUMS).glob("*.json")))
        found = [
            SumStatus(**{name: note[name] for name in names})
            for note in notes
            if note.get("stage") and set(names) <= note.keys()
        ]
        attempts = {charge.task: charge.attempt for charge in stored.ledger}
        for task in stored.unfinished.keys() - {opened.task for opened in found}:
            members = list(stored.unfinished[task])
            here = [site for site in members if site in roster]
            closed = SumStatus(
                task, attempts.get(task, 0), "advertise", here, [], len(members), True, members, []
            )
            found.append(closed)
        return found

    def _held(self, content: str) -> HeldStatus | None:
        """The head that is held back, with the commands that end this."""
        if not content:
            return None
        found = json.loads(content)
        base = ["fedran", "federation"]
        commands = [
            [*base, "forget", str(self.given), client, "--task", task]
            for client, task, _ in found["uploads"][:3]
        ]
        commands.append([*base, "rollback", str(self.given), "--release"])
        shown = [shlex.join(command) for command in commands]
        reason = found["reason"]
        if found["uploads"] and self.settings.privacy == "none":
            reason += (
                ". If the rows can be corrected, the site sends them again with `fedran federation "
                "revise`. `forget` is final: it takes no other rows of the site for the task"
            )
        return HeldStatus(found["at"], found["task"], reason, shown)

    def _read_database(self, notes: list[str]) -> Stored:
        """The tables that a status needs; empty before the first start of the server."""
        try:
            with closing(Database(self.state, read_only=True)) as database:
                return Stored.read(database)
        except FileNotFoundError:
            return Stored()
        except OSError as reason:
            notes.append(f"The database cannot be read: {reason}")
            return Stored(records=None)

    def _quarantine(self, waiting: list[Waiting]) -> list[Problem]:
        """Uploads in quarantine, each with the command that accepts it."""
        found = []
        for upload in waiting:
            who = upload.client, upload.task
            accept = shlex.join(["fedran", "federation", "accept", str(self.given), *who])
            problem = Problem(upload.at, *who, "quarantined", upload.reason, verified=True)
            found.append(replace(problem, command=accept, other_command=f"{accept} --reject"))
        return found


def _influence(content: str) -> InfluenceTable | None:
    if not content:
        return None
    found = json.loads(content)
    lines = tuple(Influence(**line) for line in found["lines"])
    return InfluenceTable(found["at"], found["accuracy"], lines)


def _task(
    stored: Stored,
    name: str,
    task: Task | None,
    active: dict[str, Any] | None,
    sums: list[SumStatus],
) -> TaskStatus:
    counted = stored.by_task.get(name, TaskCounts())
    unsettled = set(task.asked) - counted.answered.keys() if task else set()
    here = {site for s in sums if s.task == name and not s.repeats for site in s.answered}
    declined = {
        client: reason
        for client, (at, reason) in stored.declined.get(name, {}).items()
        if task and client in unsettled and at >= task.opened - 0.001  # events are rounded
    }
    state = task.state if task else "unknown"
    if state == "open" and (active is None or active.get("task", name) != name):
        state = "interrupted"
    runs = [run for run in stored.runs if run.task == name]
    heads = [head for head in stored.heads if head.task == name]
    found = TaskStatus(
        task=name,
        state=state,
        opened=task.opened if task else None,
        ends=task.opened + task.deadline if task else None,
        min_clients=task.min_clients if task else None,
        answered=counted.answered,
        missing=sorted(unsettled - declined.keys() - here),
        waiting=sorted(here & unsettled - declined.keys()),
        declined=declined,
        failed=sorted(stored.failed.get(name, set()) & declined.keys()),
        uploads=counted.uploads,
        refused=counted.refused,
        quarantined=sum(upload.task == name for upload in stored.quarantine),
        rows=counted.rows,
        payload=counted.payload,
        transport=_sum_of_bytes(runs, "received", "sent"),
        transport_in=_sum_of_bytes(runs, "received"),
        transport_out=_sum_of_bytes(runs, "sent"),
        accuracy=heads[-1].accuracy if heads and counted.uploads else None,
    )
    # Uploads may have been forgotten or lost after its run ended.
    if state in ("complete", "quorum") and found.accepted < (found.min_clients or 0):
        return replace(found, state="short")
    late = found.missing or found.waiting
    return replace(found, state="quorum") if state == "complete" and late else found


def _sum_of_bytes(runs: list[Run], *names: str) -> int | None:
    """Bytes over runs; None if Flower measured none."""
    return sum(getattr(run, name) for run in runs for name in names) or None


def _site(stored: Stored, connections: Connections, client: str, in_roster: bool) -> SiteStatus:
    counted = stored.by_site.get(client, SiteCounts())
    times = (stored.seen.get(client), connections.last_seen(client))
    opened = [task.task for task in stored.tasks if task.task in counted.tasks]
    in_sums = counted.uploads and not counted.rows
    return SiteStatus(
        client=client,
        in_roster=in_roster,
        last_seen=max((t for t in times if t is not None), default=None),
        connected=connections.connected(client),
        uploads=counted.uploads,
        bytes=None if in_sums else counted.bytes,
        rows=None if in_sums else counted.rows,
        classes=counted.classes.most_common(),
        newest_task=(opened or [*counted.tasks] or [""])[-1],
    )


def _problems(events: list[Event]) -> list[Problem]:
    """Newest first. Identical events are counted, not repeated."""
    found: dict[tuple[object, ...], Problem] = {}
    for event in events:
        default = "failed" if event.get("failed") is True else "declined"
        who = str(event["client"]), str(event["task"]), str(event.get("outcome", default))
        reason, verified = str(event.get("reason", "")), event.get("verified") is True
        key = (*who, reason, verified)
        times = found.pop(key).times + 1 if key in found else 1
        found[key] = Problem(float(event["at"]), *who, reason, verified, times)
    return list(reversed(found.values()))[:MAX_PROBLEMS]
