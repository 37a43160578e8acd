"""Reads the state of a federation from the server's database, whether the server runs or not.

Nothing is opened for writing, and what cannot be read is reported in ``Status.findings``.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedran.core.labels import similar_labels
from fedran.federation.protocol.connection import certificate_expiry
from fedran.federation.protocol.limits import LATE_SECONDS, SHOWN_HEADS, SHOWN_PROBLEMS, WARN_DAYS
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.server.budget import over_budget, spent
from fedran.federation.secure.server.coordinator import FOLDER as SUMS
from fedran.federation.secure.site.pinning import key_fingerprint, roster_fingerprint
from fedran.federation.server.settings import REFUSED_REQUESTS, ROSTER, ServerPaths
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.schema import Charge, Task, Waiting
from fedran.federation.status.counts import Connections, Counts, Stored
from fedran.federation.status.format import format_age
from fedran.federation.status.model import (
    Finding,
    Outcome,
    SiteStatus,
    Status,
    SumStatus,
    TaskStatus,
)
from fedran.wire.files import folder_bytes, read_json_object


class Reader:
    """Reads the state of one federation, as often as needed; never writes."""

    def __init__(self, folder: str | Path) -> None:
        self.given, paths = Path(folder), ServerPaths.find(folder)
        self.folder, self.settings = paths.folder, paths.settings()
        self.state, self.runtime = paths.state, paths.runtime

    def read(self, now: float | None = None) -> Status:
        """The state now."""
        now, findings = time.time() if now is None else now, list[Finding]()
        active = lock_holder(self.state)
        stored = self._read_database(findings)
        if active is None:  # a run may have started between the two reads
            active = lock_holder(self.state)
        running = lock_holder(self.folder / "log") is not None
        oldest = now - (self.settings.catch_up or 3600.0) - LATE_SECONDS if running else math.inf
        connections = Connections.read(stored.flower, oldest, stored.seen)
        expires = certificate_expiry(self.folder / "tls" / "server.crt")
        findings += self._warnings(now, connections, expires)
        roster, sums = self._roster(findings), self._sums()
        uploaded = stored.by_site.keys()
        if roster is None:  # nobody counts as removed
            members = uploaded - {cohort.client for cohort in stored.cohorts}
        else:
            members = set(roster)
        sites = [
            _site(stored, connections, client, client in members, (roster or {}).get(client))
            for client in sorted(members | uploaded)
        ]
        alike = similar_labels(label for site in sites for label, _ in site.classes)
        findings += [Finding("warning", alike)] if alike else []
        known = {task.task: task for task in stored.tasks}
        names = list(dict.fromkeys((*known, *stored.by_task)))
        compared = self.settings.privacy != "none" and roster is not None
        return Status(
            at=now,
            federation=self.settings.federation,
            client="",
            folder=str(self.given),
            running=running,
            findings=findings,
            sites=sites,
            disk_bytes=folder_bytes(self.state),
            disk_free=shutil.disk_usage(self.folder).free,
            certificate_expires=expires,
            checked=connections.at,
            nodes=connections.nodes,
            records=stored.records,
            payload=sum(site.payload for site in stored.by_site.values()),
            transport=sum(run.received + run.sent for run in stored.runs),
            head=stored.heads[-1] if stored.heads and stored.records else None,
            history=stored.heads[-SHOWN_HEADS:],
            held=self._held(stored.held),
            tasks=[_task(stored, n, known.get(n), active, sums) for n in reversed(names)],
            quarantine=[self._quarantined(upload) for upload in stored.quarantine],
            problems=list(reversed(stored.problems.values()))[:SHOWN_PROBLEMS],
            roster=roster_fingerprint(roster or {}) if compared else "",
            cohorts=stored.cohorts,
            sums=sums,
            budget=self._budget(stored.ledger),
            epoch=stored.epoch,
        )

    def _read_database(self, findings: list[Finding]) -> Stored:
        """The tables that a status needs; empty before the first start of the server."""
        try:
            with closing(Database(self.state, read_only=True)) as database:
                return Stored.read(database)
        except FileNotFoundError:
            return Stored()
        except OSError as reason:
            findings.append(Finding("problem", f"The database cannot be read: {reason}"))
            return Stored(records=None)

    def _roster(self, findings: list[Finding]) -> dict[str, str] | None:
        """The sites that may send, with their keys; None if they cannot be read."""
        try:
            return Roster.load(self.folder / ROSTER).clients
        except (ValueError, OSError) as reason:
            findings.append(Finding("problem", f"The roster cannot be read: {reason}"))
            return None

    def _warnings(
        self, now: float, connections: Connections, expires: float | None
    ) -> Iterator[Finding]:
        """What the owner should look into, whatever the uploads are."""
        if connections.foreign_runs:
            yield Finding(
                "problem",
                f"ALARM: run {', '.join(connections.foreign_runs[:5])} has an app that is not "
                "fedran's. Server and sites refuse it, but somebody else can start runs here.",
            )
        refused = read_json_object(self.runtime / REFUSED_REQUESTS)
        if refused:
            yield Finding(
                "problem",
                "ALARM: the SuperLink refused requests to the owner's interface without the "
                f"owner's secret, at least {refused['times']} since its start and the last "
                f"{format_age(now - refused['at'])}. Somebody else can reach its port.",
            )
        if expires is not None and expires - now < 86400 * WARN_DAYS:
            days = f"{(expires - now) / 86400:.0f} days"
            yield Finding(
                "warning",
                f"The server's certificate expires in {days}.",
                "`fedran federation renew` makes a new one.",
            )

    def _sums(self) -> list[SumStatus]:
        """Secure sums that are under way, as the server noted them. They change meanwhile."""
        names = [f.name for f in fields(SumStatus)]
        notes = map(read_json_object, sorted((self.state / SUMS).glob("*.json")))
        return [
            SumStatus(**{name: note[name] for name in names})
            for note in notes
            if note.get("stage") and set(names) <= note.keys()
        ]

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
        if noise is not None and over_budget(ledger, "", noise.budget, limit):
            told += " Another task would exceed this and is refused."
        if found.without_noise:
            told += (
                f" {found.without_noise} earlier sums were released without noise: nothing limits "
                "what they tell about their rows, and they are not in these figures."
            )
        return told

    def _held(self, content: str) -> Outcome | None:
        """The head that is held back, with the commands that end this."""
        if not content:
            return None
        found = json.loads(content)
        commands = [
            self._command("forget", client, "--task", task)
            for client, task, _ in found["uploads"][:3]
        ]
        commands.append(self._command("rollback", "--release"))
        reason = found["reason"]
        if found["uploads"] and self.settings.privacy == "none":
            reason += (
                ". If the rows can be corrected, the site sends them again with `fedran federation "
                "revise`. `forget` is final: it takes no other rows of the site for the task"
            )
        return Outcome(found["at"], "", found["task"], "held", reason, commands=commands)

    def _quarantined(self, upload: Waiting) -> Outcome:
        """An upload in quarantine, with the commands that accept and reject it."""
        who = upload.client, upload.task
        commands = [self._command("accept", *who, *how) for how in ((), ("--reject",))]
        return Outcome(upload.at, *who, "quarantined", upload.reason, commands=commands)

    def _command(self, verb: str, *arguments: str) -> str:
        return shlex.join(["fedran", "federation", verb, str(self.given), *arguments])


def _task(
    stored: Stored,
    name: str,
    task: Task | None,
    active: dict[str, Any] | None,
    sums: list[SumStatus],
) -> TaskStatus:
    counted = stored.by_task.get(name, Counts())
    unsettled = set(task.asked) - counted.answered.keys() if task else set()
    here = {site for found in sums if found.task == name for site in found.answered}
    declined = {
        client: told
        for client, told in stored.declined.get(name, {}).items()
        if task and client in unsettled and (told.at or 0.0) >= task.opened - 0.001  # rounded
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
        declined={client: told.reason for client, told in declined.items()},
        failed=sorted(client for client, told in declined.items() if told.state == "failed"),
        uploads=counted.uploads,
        refused=counted.refused,
        quarantined=sum(upload.task == name for upload in stored.quarantine),
        rows=counted.rows,
        payload=counted.payload,
        received=sum(run.received for run in runs),
        sent=sum(run.sent for run in runs),
        accuracy=heads[-1].accuracy if heads and counted.uploads else None,
    )
    # Uploads may have been forgotten or lost after its run ended.
    if state in ("complete", "quorum") and found.accepted < (found.min_clients or 0):
        return replace(found, state="short")
    late = found.missing or found.waiting
    return replace(found, state="quorum") if state == "complete" and late else found


def _site(
    stored: Stored, connections: Connections, client: str, in_roster: bool, key: str | None
) -> SiteStatus:
    counted = stored.by_site.get(client, Counts())
    times = (stored.seen.get(client), connections.last_seen.get(client))
    opened = [task.task for task in stored.tasks if task.task in counted.tasks]
    in_sums = counted.uploads and not counted.rows
    return SiteStatus(
        client=client,
        in_roster=in_roster,
        key=key_fingerprint(key) if key else "",
        last_seen=max((t for t in times if t is not None), default=None),
        connected=connections.connected(client),
        uploads=counted.uploads,
        bytes=None if in_sums else counted.payload,
        rows=None if in_sums else counted.rows,
        classes=counted.classes.most_common(),
        newest_task=(opened or [*counted.tasks] or [""])[-1],
    )
