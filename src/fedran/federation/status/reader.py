"""Reads the state of a federation from the server's database, whether the server runs or not.

Nothing is opened for writing, and what cannot be read is reported in ``Status.findings``.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from fedran.core.errors import shortened
from fedran.core.labels import similar_labels
from fedran.federation.protocol.connection import certificate_expiry
from fedran.federation.protocol.limits import (
    FULL_DISK,
    LATE_SECONDS,
    LEAST_FREE,
    SHOWN_HEADS,
    SHOWN_ITEMS,
    SHOWN_PROBLEMS,
    WARN_DAYS,
)
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.masking.attempt import STAGES, Stage
from fedran.federation.secure.server.budget import over_budget, spent
from fedran.federation.secure.server.open_sum import FOLDER as SUMS
from fedran.federation.secure.site.pinning import key_fingerprint, roster_fingerprint
from fedran.federation.server.settings import REFUSED_REQUESTS, ROSTER, ServerPaths
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.schema import Charge
from fedran.federation.site.settings import ALARMS
from fedran.federation.status.counts import Counts
from fedran.federation.status.format import format_age
from fedran.federation.status.model import Finding, Outcome, Status
from fedran.wire.files import folder_bytes, read_json_object
from fedran.wire.sizes import human_bytes


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
        free = shutil.disk_usage(self.folder).free
        findings += disk_findings(free)
        running = lock_holder(self.folder / "log") is not None and free >= FULL_DISK
        record = json.loads(stored.flower or "{}")
        nodes = self._connected(record, stored.seen, now) if running else None
        expires = certificate_expiry(self.folder / "tls" / "server.crt")
        findings += [*alarms(self.state), *self._warnings(now, expires)]
        roster, sums = self._roster(findings), list(self._sums())
        findings += _restored(json.loads(stored.restored or "{}"), roster)
        sites = [
            stored.site(client) for client in sorted({*roster, *stored.uploads, *stored.payload})
        ]
        said = json.loads(stored.judged or "{}")
        aside = said.get("set_aside", [])
        if stored.pinned:
            task = json.loads(stored.pinned)["task"]
            text = f"The classifier after task {task} is in service again; later uploads wait."
            findings.append(Finding("warning", text, self._command("rollback", "--release")))
        if not stored.heads or said.get("head") != stored.heads[-1].digest:
            said = {}
        for site in sites:
            site.in_roster = site.client in roster
            site.key = key_fingerprint(roster[site.client]) if site.in_roster else ""
            times = [stored.seen.get(site.client)]
            if nodes is not None and site.client in nodes:
                site.connected = True
                times.append(record["at"])
            elif nodes is not None and "" not in nodes:  # an unknown node may be its own
                site.connected = False
            site.compared = said.get("sites", {}).get(site.client, [])
            if rows := sum(of_class for _, of_class, _ in site.compared):
                site.agreement = sum(alike for *_, alike in site.compared) / rows
            site.last_seen = max((at for at in times if at is not None), default=None)
        alike = similar_labels(label for site in sites for label, _ in site.classes)
        findings += [Finding("warning", alike)] if alike else []
        for task in stored.tasks.values():
            here = {client for found in sums if found.task == task.task for client in found.members}
            stored.settle(task, active, here)
        compared = self.settings.privacy != "none" and roster
        return Status(
            at=now,
            federation=self.settings.federation,
            client="",
            folder=str(self.given),
            running=running,
            findings=findings,
            sites=sites,
            disk_bytes=folder_bytes(self.state),
            disk_free=free,
            certificate_expires=expires,
            checked=record.get("at"),
            nodes=None if nodes is None else len(nodes),
            records=stored.records,
            payload=stored.payload.total(),
            transport=stored.transport,
            head=stored.heads[-1] if stored.heads and stored.records else None,
            left_out=said.get("agreement"),
            single_rows=said.get("largest_group") == 1,
            history=stored.heads[-SHOWN_HEADS:],
            tasks=list(reversed(stored.tasks.values())),
            set_aside=list(self._set_aside(aside)),
            problems=list(reversed(stored.problems.values()))[:SHOWN_PROBLEMS],
            roster=roster_fingerprint(roster) if compared else "",
            cohorts=stored.cohorts,
            sums=sums,
            budget=self._budget(stored.ledger),
        )

    def _connected(
        self, record: dict[str, Any], seen: dict[str, float], now: float
    ) -> list[str] | None:
        """The site of each connected node, "" if it is not known; None: no record, or an old one.

        Sites that have sent something since Flower's nodes were recorded are connected too.
        """
        at = record.get("at", 0.0)
        if at < now - (self.settings.catch_up or 3600.0) - LATE_SECONDS:
            return None
        found = [node["client"] for node in record["nodes"] if node["status"] == "online"]
        if "" not in found:
            found += [client for client, when in seen.items() if when > at and client not in found]
        return found

    def _read_database(self, findings: list[Finding]) -> Counts:
        """The tables that a status needs; empty before the first start of the server."""
        try:
            with closing(Database(self.state, read_only=True)) as database:
                return Counts.read(database)
        except FileNotFoundError:
            return Counts()
        except OSError as reason:
            findings.append(Finding("problem", f"The database cannot be read: {reason}"))
            return Counts(records=None)

    def _roster(self, findings: list[Finding]) -> dict[str, str]:
        """The sites that may send, with their keys."""
        try:
            return Roster.load(self.folder / ROSTER).clients
        except (ValueError, OSError) as reason:
            findings.append(Finding("problem", f"The roster cannot be read: {reason}"))
            return {}

    def _warnings(self, now: float, expires: float | None) -> Iterator[Finding]:
        """What the owner should look into, whatever the uploads are."""
        refused = read_json_object(self.runtime / REFUSED_REQUESTS)
        if refused:
            yield Finding(
                "problem",
                "ALARM: the SuperLink refused requests to the owner's interface without the "
                f"owner's secret, at least {refused['times']} since its start and the last "
                f"{format_age(now - refused['at'])}. Somebody else can reach its port.",
            )
        if expires is not None and expires - now < 86400 * WARN_DAYS:
            text = f"The server's certificate expires in {(expires - now) / 86400:.0f} days."
            yield Finding("warning", text, "`fedran federation renew` makes a new one.")

    def _sums(self) -> Iterator[Outcome]:
        """Secure sums that are under way, as the server noted them. They change meanwhile."""
        for path in sorted((self.state / SUMS).glob("*.json")):
            note = read_json_object(path)
            if stage := note.get("stage"):
                exchange = f"exchange {STAGES.index(Stage(stage)) + 1} of {len(STAGES)} ({stage})"
                answered = shortened(note["answered"], SHOWN_ITEMS) or "none"
                told = f"attempt {note['number']}, {exchange}: {note['needed']} sites are needed"
                told += f", answered: {answered}"
                if note["waiting"]:
                    told += f", missing: {shortened(note['waiting'], SHOWN_ITEMS)}"
                if note["refused"]:
                    told += f", refused by {shortened(note['refused'], SHOWN_ITEMS)}"
                yield Outcome(None, "", note["task"], stage, told, members=note["answered"])

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

    def _set_aside(self, aside: list[dict[str, Any]]) -> Iterator[Outcome]:
        """Who is not in the newest classifier, with the commands that decide about it."""
        waiting = [found for found in aside if found["waits"]]
        for found in aside:
            client, commands = found["client"], [self._command("accept", found["client"])]
            alike = [w for w in waiting if (w["client"], w["reason"]) == (client, found["reason"])]
            if found["waits"] and found is not alike[0]:
                continue
            if not found["waits"]:
                commands.insert(0, self._command("forget", client))
            labels = [str(a["label"]) for a in alike or [found] if a["label"] is not None]
            which = f"{'classes' if len(labels) > 1 else 'class'} {shortened(labels, 10)}: "
            state, reason = ("waits" if found["waits"] else "set aside"), found["reason"]
            reason = f"{which if labels else ''}{reason}"
            yield Outcome(None, client, "", state, reason, commands=commands)

    def _command(self, verb: str, *arguments: str) -> str:
        return shlex.join(["fedran", "federation", verb, str(self.given), *arguments])


def _restored(missing: dict[str, list[str] | None], roster: Collection[str]) -> Iterator[Finding]:
    """What sites have not sent again since a backup was restored."""
    known = [f"{c} ({', '.join(tasks)})" for c, tasks in missing.items() if tasks and c in roster]
    silent = [client for client, tasks in missing.items() if not tasks and client in roster]
    if known:
        text = f"A backup was restored. Uploads are being fetched: {shortened(known, SHOWN_ITEMS)}."
        remedy = "No classifier is sent before; `remove` a site that does not come back."
        yield Finding("warning", text, remedy)
    if silent:
        text = f"Not heard from since the restore: {shortened(silent, SHOWN_ITEMS)}."
        remedy = "They may have uploads that the backup lacks. A new task does not wait for these."
        yield Finding("warning", text, remedy)


def disk_findings(free: int) -> Iterator[Finding]:
    """Whether there is little or no space on the disk of a server or a site."""
    if free < FULL_DISK:
        text = f"The disk is full: {human_bytes(free)} are free, so nothing can be received."
        yield Finding("problem", text, "Free some space; nothing that was acknowledged is lost.")
    elif free < LEAST_FREE:
        yield Finding("warning", f"Only {human_bytes(free)} of disk space are free.")


def alarms(state: Path) -> Iterator[Finding]:
    """The newest runs whose app was not ours. Lines that cannot be read are left out."""
    path = state / ALARMS
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    for line in lines[-3:]:
        with suppress(ValueError, TypeError, KeyError):
            text = "ALARM: a run brought an app that is not fedran's, and was refused"
            yield Finding("problem", f"{text}: {json.loads(line)['reason']}")
