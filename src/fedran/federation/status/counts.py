"""The tables of the database, with uploads and events counted by task and by site."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from fedran.federation.server.head.head import JUDGED
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from fedran.federation.server.store.schema import Charge, SolvedHead, Upload
from fedran.federation.server.store.store import PINNED, RESTORED
from fedran.federation.status.model import ACCEPTED, Outcome, SiteStatus, TaskStatus


@dataclass
class Counts:
    """What the database says. Unsigned messages never count for a site or create a task."""

    records: int | None = 0
    """Accepted uploads; None if the database cannot be read."""
    heads: list[SolvedHead] = field(default_factory=list)
    seen: dict[str, float] = field(default_factory=dict)
    ledger: list[Charge] = field(default_factory=list)
    flower: str = ""
    pinned: str = ""
    restored: str = ""
    judged: str = ""
    transport: int = 0
    tasks: dict[str, TaskStatus] = field(default_factory=dict)
    """Oldest first. Until ``settle``, all sites that were asked are missing."""
    uploads: defaultdict[str, list[Upload]] = field(default_factory=lambda: defaultdict(list))
    """Accepted ones of a site, and the secure sums with its rows."""
    payload: Counter[str] = field(default_factory=Counter)
    """Bytes of all signed envelopes of a site that arrived, as far as events are kept."""
    cohorts: list[Outcome] = field(default_factory=list)
    problems: dict[tuple[str | bool, ...], Outcome] = field(default_factory=dict)
    """Oldest first. Identical ones are counted, not repeated."""
    declined: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    """Task and site -> why it sent nothing, as it said itself."""

    @classmethod
    def read(cls, database: Database) -> Counts:
        """Read the tables, and count."""
        found = cls(
            records=database.count(),
            heads=database.heads(),
            seen=database.seen(),
            ledger=database.ledger(),
            flower=database.fact("flower"),
            pinned=database.fact(PINNED),
            restored=database.fact(RESTORED),
            judged=database.fact(JUDGED),
        )
        for task in database.tasks():
            ends, asked = task.opened + task.deadline, list(task.asked)
            found.tasks[task.task] = TaskStatus(
                task.task, task.state, task.opened, ends, task.min_clients, missing=asked
            )
        for upload in database.uploads():
            found._add_upload(upload)
        for tombstone in database.tombstones():  # nothing is expected from their sites any more
            if not tombstone.sum_number:  # its members may make another sum
                answered = found._task(tombstone.task).answered
                answered.setdefault(tombstone.client, "forgotten")
        for event in EventLog(database).read(without="accepted"):
            found._add_event(event)
        for run in database.runs():
            found.transport += run.received + run.sent
            if run.task in found.tasks:
                found.tasks[run.task].received += run.received
                found.tasks[run.task].sent += run.sent
        for head in found.heads:
            if head.task in found.tasks and found.tasks[head.task].uploads:
                found.tasks[head.task].accuracy = head.accuracy
        return found

    def _task(self, name: str) -> TaskStatus:
        return self.tasks.setdefault(name, TaskStatus(name))

    def _add_upload(self, upload: Upload) -> None:
        """Count an accepted upload: a secure sum for its members, any other for its sender."""
        client, task = upload.client, self._task(upload.task)
        cohort = [member for member, _ in upload.members]
        if cohort:
            self.cohorts.append(
                Outcome(None, client, task.task, "accepted", rows=upload.rows, members=cohort)
            )
        for site in dict.fromkeys((client, *cohort)):
            self.uploads[site].append(upload)
        self.payload[client] += upload.bytes
        task.payload += upload.bytes
        task.rows += upload.rows
        task.uploads += len(cohort) or 1
        task.answered |= dict.fromkeys(cohort or [client], "accepted")

    def _add_event(self, event: dict[str, Any]) -> None:
        """Count an upload that was not accepted, or a site that had nothing to send."""
        client, name = str(event.get("client")), str(event.get("task"))
        if event["event"] == "declined":
            failed = event.get("failed") is True
            told = self._add_problem(event, "failed") if failed else _outcome(event, "declined")
            self.declined[name, client] = told
        if event["event"] != "upload":
            return
        outcome = str(event.get("outcome"))
        if outcome == "refused":
            self._add_problem(event, outcome)
        if event.get("verified") is not True:
            return
        task = self._task(name)
        task.payload += event["bytes"]
        self.payload[client] += event["bytes"]
        if task.answered.get(client) not in (*ACCEPTED, "forgotten"):
            task.answered[client] = outcome

    def _add_problem(self, event: dict[str, Any], state: str) -> Outcome:
        found = _outcome(event, state)
        key = (found.client, found.task, state, found.reason, found.verified)
        if key in self.problems:
            found = replace(found, times=self.problems.pop(key).times + 1)
        self.problems[key] = found
        return found

    def settle(
        self, task: TaskStatus, active: dict[str, Any] | None, here: Collection[str]
    ) -> None:
        """Which sites of a task are missing, and what became of it.

        ``active`` is the note of the run at work, if any; sites ``here`` wait for others of a sum.
        """
        unsettled = {client for client in task.missing if client not in task.answered}
        for client in sorted(unsettled):
            told = self.declined.get((task.task, client))
            if told and (told.at or 0.0) >= (task.opened or 0.0) - 0.001:  # rounded
                task.declined[client] = told.reason
                task.failed += [client] if told.state == "failed" else []
        task.waiting = sorted(unsettled.intersection(here) - task.declined.keys())
        task.missing = sorted(unsettled - task.declined.keys() - {*task.waiting})
        if task.state == "open" and (active is None or active.get("task", task.task) != task.task):
            task.state = "interrupted"
        # Uploads may have been forgotten or lost after its run ended.
        elif task.state in ("complete", "quorum") and task.accepted < (task.min_clients or 0):
            task.state = "short"
        elif task.state == "complete" and (task.missing or task.waiting):
            task.state = "quorum"

    def site(self, client: str) -> SiteStatus:
        """What a site sent."""
        uploads, classes = self.uploads.get(client, []), Counter[str | int]()
        own = [upload for upload in uploads if upload.client == client]
        for upload in own:
            classes.update(dict(upload.classes))
        sent = {upload.task for upload in uploads}
        in_sums = uploads and not own
        return SiteStatus(
            client,
            uploads=len(uploads),
            bytes=None if in_sums else self.payload[client],
            rows=None if in_sums else sum(upload.rows for upload in own),
            classes=classes.most_common(),
            newest_task=([task for task in self.tasks if task in sent] or [""])[-1],
        )


def _outcome(event: dict[str, Any], state: str) -> Outcome:
    who = str(event["client"]), str(event["task"]), state
    reason, verified = str(event.get("reason", "")), event.get("verified") is True
    return Outcome(float(event["at"]), *who, reason, verified)
