"""Reads the state of a federation from the server's files, whether the server runs or not.

Nothing is opened for writing, and what cannot be read is reported in ``Status.findings``.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

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
)
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.masking.attempt import STAGES, Stage
from fedran.federation.secure.server.budget import over_budget, spent
from fedran.federation.secure.server.open_sum import FOLDER as SUMS
from fedran.federation.secure.server.open_sum import read_file
from fedran.federation.secure.site.pinning import key_fingerprint, roster_fingerprint
from fedran.federation.server.head.head import JUDGED
from fedran.federation.server.settings import REFUSED_REQUESTS, ServerPaths
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from fedran.federation.server.store.schema import Charge
from fedran.federation.server.store.store import PINNED, RESTORED
from fedran.federation.site.settings import ALARMS, SitePaths
from fedran.federation.status.format import format_age
from fedran.federation.status.model import (
    ACCEPTED,
    FAILED,
    MISSING,
    NOTHING_TO_SEND,
    WAITING,
    Finding,
    Outcome,
    SiteStatus,
    Status,
    TaskStatus,
)
from fedran.wire.files import folder_bytes, read_json_object
from fedran.wire.sizes import human_bytes


def read_folder(
    paths: ServerPaths | SitePaths, certificate: Path, federation: str, client: str = ""
) -> Status:
    """What is read alike at a server and at a site: disk, certificate, alarms, what runs."""
    free = shutil.disk_usage(paths.folder).free
    return Status(
        federation,
        client,
        str(paths.folder),
        time.time(),
        lock_holder(paths.folder / "log") is not None and free >= FULL_DISK,
        [found for found in (disk_finding(free), *_alarms(paths.state)) if found.level != "ok"],
        folder_bytes(paths.state),
        free,
        certificate_expiry(certificate),
    )


def disk_finding(free: int) -> Finding:
    """Whether there is space on the disk of a server or a site."""
    if free < FULL_DISK:
        text = f"The disk is full: {human_bytes(free)} are free, so nothing can be received."
        return Finding("problem", text, "Free some space; nothing that was acknowledged is lost.")
    level: Literal["ok", "warning"] = "ok" if free >= LEAST_FREE else "warning"
    return Finding(level, f"{human_bytes(free)} of disk space are free")


def _alarms(state: Path) -> Iterator[Finding]:
    """The newest runs whose app was not ours. Lines that cannot be read are left out."""
    path = state / ALARMS
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    for line in lines[-3:]:
        with suppress(ValueError, TypeError, KeyError):
            text = "ALARM: a run brought an app that is not fedran's, and was refused"
            yield Finding("problem", f"{text}: {json.loads(line)['reason']}")


class Reader:
    """Reads the state of one federation, as often as needed; never writes."""

    def __init__(self, folder: str | Path) -> None:
        self.given, self.paths = Path(folder), ServerPaths.find(folder)
        self.settings = self.paths.settings()

    def read(self) -> Status:
        """The state now."""
        paths = self.paths
        found = read_folder(paths, paths.tls / "server.crt", self.settings.federation)
        found.folder = str(self.given)
        if refused := read_json_object(paths.runtime / REFUSED_REQUESTS):
            text = (
                "ALARM: the SuperLink refused requests to the owner's interface without the "
                f"owner's secret, at least {refused['times']} since its start and the last "
                f"{format_age(found.at - refused['at'])}. Somebody else can reach its port."
            )
            found.findings.append(Finding("problem", text))
        try:
            roster = Roster.load(paths.roster).clients
        except (ValueError, OSError) as reason:
            roster = {}
            found.findings.append(Finding("problem", f"The roster cannot be read: {reason}"))
        sites = {client: SiteStatus(client, key_fingerprint(key)) for client, key in roster.items()}
        try:
            with closing(Database(paths.state, read_only=True)) as database:
                self._read_tasks(found, database, sites)
                self._read_sites(found, database, sites)
                found.records = len(database.uploads())
                self._read_heads(found, database, sites)
                found.budget = self._budget(database.ledger())
        except FileNotFoundError:  # the server has not started yet
            found.records = 0
        except OSError as reason:
            found.findings.append(Finding("problem", f"The database cannot be read: {reason}"))
        found.sites = [sites[client] for client in sorted(sites)]
        if alike := similar_labels(label for site in found.sites for label, _ in site.classes):
            found.findings.append(Finding("warning", alike))
        if self.settings.privacy != "none" and roster:
            found.roster = roster_fingerprint(roster)
        return found

    def _read_tasks(self, found: Status, database: Database, sites: dict[str, SiteStatus]) -> None:
        """Uploads, by task and by site, and what became of those that were not accepted.

        Unsigned messages never count for a site or create a task.
        """
        active = lock_holder(self.paths.state)
        tasks = {
            t.task: TaskStatus(
                t.task,
                t.state,
                opened=t.opened,
                ends=t.opened + t.deadline,
                min_clients=t.min_clients,
                answers=dict.fromkeys(t.asked, MISSING),
            )
            for t in database.tasks()
        }
        classes, sums = defaultdict[str, Counter[str | int]](Counter), list[str]()
        for upload in database.uploads():
            members = [client for client, _ in upload.members]
            for client in dict.fromkeys((upload.client, *members)):
                sites.setdefault(client, SiteStatus(client, mark="not in roster")).uploads += 1
            sender, task = sites[upload.client], _task(tasks, upload.task)
            sender.bytes = (sender.bytes or 0) + upload.bytes
            sender.rows = (sender.rows or 0) + upload.rows
            classes[upload.client].update(dict(upload.classes))
            task.payload += upload.bytes
            task.rows += upload.rows
            task.answers |= dict.fromkeys(members or [upload.client], "accepted")
            if members:
                sender.mark, names = "cohort", ", ".join(members)
                sums.append(f"task {task.task}, {upload.client}: {names} ({upload.rows:,} rows)")
        for client, counted in classes.items():
            sites[client].classes = counted.most_common()
        for gone in database.tombstones():  # nothing is expected from their sites any more
            if not gone.sum_number:  # a sum is no site
                _note(_task(tasks, gone.task), gone.client, "forgotten")
        found.problems = _read_events(database, tasks)[:SHOWN_PROBLEMS]
        for run in database.runs():
            found.transport += run.received + run.sent
            if run.task in tasks:
                tasks[run.task].transport += run.received + run.sent
        notes = list(_open_sums(self.paths.state / SUMS))
        for note in notes:
            answers = _task(tasks, note["task"]).answers
            answers |= {site: WAITING for site in note["answered"] if answers.get(site) == MISSING}
        found.sums = [*map(_describe_sum, notes), *reversed(sums)]
        if active is None:  # a run may have started meanwhile
            active = lock_holder(self.paths.state)
        for task in tasks.values():
            task.state = _state(task, active)
        found.tasks = [*reversed(tasks.values())]

    def _read_sites(self, found: Status, database: Database, sites: dict[str, SiteStatus]) -> None:
        """Who was seen when, and what sites have not sent again since a restore.

        While the server runs, it looks for connected sites every ``catch_up`` seconds.
        """
        oldest = found.at - (self.settings.catch_up or 3600.0) - LATE_SECONDS
        for client, at in database.seen().items():
            if client in sites:
                sites[client].last_seen = at
        members = {client: site for client, site in sites.items() if site.key}
        for site in members.values() if found.running else ():
            site.connected = (site.last_seen or 0.0) >= oldest
        if missing := {*json.loads(database.fact(RESTORED) or "[]")} & members.keys():
            sites_left = shortened(sorted(missing), SHOWN_ITEMS)
            text = f"A backup was restored. Uploads that it lacks may still come from {sites_left}."
            remedy = "No classifier is sent before; `remove` a site that stays away."
            found.findings.append(Finding("warning", text, remedy))

    def _read_heads(self, found: Status, database: Database, sites: dict[str, SiteStatus]) -> None:
        """The classifiers, and who is not in the newest one, with what others say about sites."""
        heads, by_name = database.heads(), {task.task: task for task in found.tasks}
        found.history = heads[-SHOWN_HEADS:]
        found.head = heads[-1] if heads and found.records else None
        for head in heads:
            if head.task in by_name and by_name[head.task].accepted:
                by_name[head.task].accuracy = head.accuracy
        if pinned := database.fact(PINNED):
            task = json.loads(pinned)["task"]
            text = f"The classifier after task {task} is in service again; later uploads wait."
            found.findings.append(Finding("warning", text, self._command("rollback", "--release")))
        said = json.loads(database.fact(JUDGED) or "{}")
        found.set_aside = list(self._set_aside(said.get("set_aside", [])))
        if heads and said.get("head") == heads[-1].digest:
            found.left_out = said.get("agreement")
            for client, compared in said.get("sites", {}).items():
                rows = sum(of_class for _, of_class, _ in compared)
                if rows and client in sites:
                    sites[client].agreement = sum(alike for *_, alike in compared) / rows

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
        """Who is not in the newest classifier, with the commands that decide about it.

        Classes of one site that wait for the same reason are one entry.
        """
        alike = defaultdict[tuple[str, bool, str], list[str]](list)
        for found in aside:
            label = found["label"]
            labels = alike[found["client"], found["waits"], found["reason"]]
            labels += [] if label is None else [str(label)]
        for (client, waits, reason), labels in alike.items():
            if labels:
                plural = "classes" if len(labels) > 1 else "class"
                reason = f"{plural} {shortened(labels, 10)}: {reason}"
            verbs = ["accept"] if waits else ["forget", "accept"]
            commands = [self._command(verb, client) for verb in verbs]
            state = "waits" if waits else "set aside"
            yield Outcome(None, client, "", state, reason, commands=commands)

    def _command(self, verb: str, *arguments: str) -> str:
        return shlex.join(["fedran", "federation", verb, str(self.given), *arguments])


def _task(tasks: dict[str, TaskStatus], name: str) -> TaskStatus:
    return tasks.setdefault(name, TaskStatus(name))


def _note(task: TaskStatus, client: str, outcome: str) -> None:
    """What became of a site's upload, unless one of it was accepted or forgotten."""
    if task.answers.get(client) not in (*ACCEPTED, "forgotten"):
        task.answers[client] = outcome


def _read_events(database: Database, tasks: dict[str, TaskStatus]) -> list[Outcome]:
    """Uploads that were not accepted, and sites that sent none; returns the problems, newest first.

    Identical problems are counted, not repeated.
    """
    problems = dict[tuple[str | bool, ...], Outcome]()
    for event in EventLog(database).read(without="accepted"):
        client, name = str(event.get("client")), str(event.get("task"))
        verified, task = event.get("verified") is True, tasks.get(name)
        if event["event"] == "upload":
            state = str(event.get("outcome"))
            if verified:
                _note(_task(tasks, name), client, state)
        elif event["event"] == "declined":
            state = FAILED if event.get("failed") is True else NOTHING_TO_SEND
            answers = task.answers if task else {}
            since = (task and task.opened) or 0.0
            own = answers.get(client) in (MISSING, FAILED, NOTHING_TO_SEND)
            if own and event["at"] >= since - 0.001:  # of this run; times are rounded
                answers[client] = state
        else:
            continue
        if state in ("refused", FAILED):
            told = Outcome(event["at"], client, name, state, str(event.get("reason", "")), verified)
            key = (client, name, state, told.reason, verified)
            told.times += problems.pop(key).times if key in problems else 0
            problems[key] = told
    return [*reversed(problems.values())]


def _state(task: TaskStatus, active: dict[str, Any] | None) -> str:
    """What became of a task. Uploads may have been forgotten or lost after its run ended."""
    if task.state == "open":
        runs = active is not None and active.get("task", task.task) == task.task
        return "open" if runs else "interrupted"
    if task.state not in ("complete", "quorum"):
        return task.state
    if task.accepted < task.min_clients:
        return "short"
    return "quorum" if task.missing else task.state


def _open_sums(folder: Path) -> Iterator[dict[str, Any]]:
    """What the server noted about the secure sums that are under way."""
    for path in sorted(folder.glob("*.sum")):
        with suppress(OSError, ValueError):  # the server has just deleted it
            note = read_file(path)[0].fields
            if note.get("stage"):
                yield note


def _describe_sum(note: dict[str, Any]) -> str:
    """A secure sum that is under way, as the server noted it."""
    stage = Stage(note["stage"])
    told = f"task {note['task']}, attempt {note['number']}, exchange {STAGES.index(stage) + 1} of "
    told += f"{len(STAGES)} ({stage}): {note['needed']} sites are needed, "
    told += f"answered: {shortened(note['answered'], SHOWN_ITEMS) or 'none'}"
    if note["waiting"]:
        told += f", missing: {shortened(note['waiting'], SHOWN_ITEMS)}"
    if note["refused"]:
        told += f", refused by {shortened(note['refused'], SHOWN_ITEMS)}"
    return told
