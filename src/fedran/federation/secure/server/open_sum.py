"""An attempt at a secure sum at the server: what it sums, whom it waits for, its file, its end.

Before sites are asked for their vectors, an attempt that fails or is interrupted is followed by
another one. From then on they may take part in no other one. So a later run continues the attempt
from its file, also where the server was killed: requests are the same, and sites repeat answers
that it lost. The file holds public keys, encrypted shares and the sum of masked vectors. It is
deleted when the sum is in the store, as one upload with its members that the server has signed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.private.noisy_sums import mean_row
from fedran.federation.protocol.identity import Statement, cohort_name
from fedran.federation.protocol.limits import MAX_SITES
from fedran.federation.protocol.messages import Envelope
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import (
    Attempt,
    Stage,
    roster_digest,
    unpack_parts,
)
from fedran.federation.secure.masking.contribution import Content, sum_to_summary
from fedran.federation.secure.masking.unmasking import ServerState
from fedran.federation.server.store.store import Store
from fedran.wire.codec import encode
from fedran.wire.container import pack
from fedran.wire.files import write_atomically
from fedran.wire.validation import FILE_LIMITS, Header

log = logging.getLogger(__name__)
FOLDER = "sums"
"""Folder of open attempts in the server's state folder, one file ``TASK.sum`` each."""
BEFORE_VECTORS = (Stage.ADVERTISE, Stage.SHARE)
"""Stages in which an attempt that fails is followed by another one with the same sites."""
NEW_TASK = "the rows of its sites need a new task id"


def make_content(store: Store, task: str) -> Content:
    """What the numbers of a new sum mean, as the settings say now.

    With noise, rows are measured from the mean of all rows that were released before.
    """
    settings = store.settings
    assert settings.labels is not None
    released = store.aggregator.class_sums if settings.noise is not None else None
    return Content(
        settings.labels,
        settings.sketch_columns,
        zlib.crc32(f"{settings.federation} {task}".encode()),
        min(len(store.roster.clients), MAX_SITES),
        settings.max_rows,
        settings.noise,
        tuple(mean_row(released).tolist()) if released else (),
    )


def make_attempt(store: Store, task: str, number: int, content: Content) -> Attempt:
    """What the sites of an attempt must agree on, as roster and settings say now."""
    fingerprint = store.fingerprint
    return Attempt(
        store.settings.federation,
        task,
        number,
        fingerprint.hash,
        content.digest,
        content.length(fingerprint),
        roster_digest(store.roster.clients),
        store.settings.min_sites,
    )


def next_number(store: Store, task: str) -> int:
    """A number that no attempt at this sum had. It is on disk before it is used."""
    numbers = json.loads(store.database.fact("attempts") or "{}")
    numbers[task] = 1 + numbers.get(task, 0)
    store.database.set_fact("attempts", json.dumps(numbers))
    return int(numbers[task])


def read_file(path: Path) -> tuple[Header, bytes]:
    """What people may want to know about an attempt, and its ``ServerState``."""
    header, parts = unpack_parts("open sum", path.read_bytes(), FILE_LIMITS)
    return header, parts.get("state", b"")


@dataclass
class OpenSum:
    """An attempt that is under way, or that waits for sites."""

    path: Path
    state: ServerState
    content: Content
    until: float
    """When the present stage ends without the sites that have not answered."""
    seconds: float
    """How long each stage after the first waits for a site."""
    report: Callable[..., None]
    """Notes an event, such as the end of a stage: its name and its fields."""
    idle: bool = False
    """Whether this run waits no longer for it."""
    refused: dict[str, str] = field(default_factory=dict)
    """Sites that refused the present stage, and why."""
    unsaved: bool = True
    """Whether answers came since the state was written."""

    @classmethod
    def load(
        cls, path: Path, until: float, seconds: float, report: Callable[..., None]
    ) -> OpenSum | None:
        """The attempt of an earlier run; None if no site can have sent a vector for one."""
        if not path.is_file():
            return None
        try:
            header, state = read_file(path)
            found = cls(
                path,
                ServerState.from_bytes(state),
                Content.read(header.get("content")),
                until,
                seconds,
                report,
                unsaved=False,
            )
        except (Refused, OSError) as reason:
            log.warning("%s cannot be continued: %s", path.name, reason)
            path.unlink()
            return None
        return None if found.state.stage in BEFORE_VECTORS else found

    @property
    def attempt(self) -> Attempt:
        """What the sites agree on."""
        return self.state.attempt

    @property
    def name(self) -> str:
        """Identifies the attempt in messages."""
        return f"{self.attempt.task}.{self.attempt.number}"

    @property
    def waiting_for(self) -> set[str]:
        """The sites whose answer to the present stage is missing."""
        return set(self.state.waiting_for) - self.refused.keys()

    def receive(self, client: str, answer: bytes) -> None:
        """Take a site's answer. A wrong one is refused, one that comes too late is ignored."""
        if client in self.waiting_for:
            self.state = unmasking.collect(self.state, client, answer)
            self.unsaved = True

    def refuse(self, client: str, reason: str) -> None:
        """Note that a site does not take part in the present stage, so nobody waits for it."""
        self.refused[client] = reason
        who = {"stage": str(self.state.stage), "client": client, "reason": reason}
        self.report("sum", name=self.name, state="refused", **who)

    def advance(self, now: float, expected: Collection[str]) -> NDArray[np.uint32] | None:
        """End every stage that is complete or whose time is over; the total once it is known.

        ``expected`` are the sites of which an answer to the first stage may still come. If too few
        share, ``AttemptFailed`` is raised. In any other stage the attempt becomes idle then.
        """
        while (stage := self.state.stage) is not None:
            waiting, answered = self.waiting_for, self.state.answered(stage)
            if stage is Stage.ADVERTISE:
                waiting &= set(expected)
            if self.idle or (waiting and now < self.until):
                break
            if len(answered) < self.state.needed and stage is not Stage.SHARE:
                self.idle = self.unsaved = True
                break
            self.state = unmasking.close(self.state)
            self.until, self.refused, self.unsaved = now + self.seconds, {}, True
            self.report("sum", name=self.name, state="stage", stage=str(stage), clients=answered)
            log.info("secure sum %s: %s, %d sites", self.name, stage, len(answered))
        if self.unsaved:
            self.save()
        return None if self.state.stage else unmasking.unmask(self.state)

    def fail(self, reason: str) -> None:
        """Give up. The server knows no vector; another attempt has other masks."""
        again = "" if self.state.stage in BEFORE_VECTORS else f"; {NEW_TASK}"
        log.warning("%s: no sum: %s%s", self.name, reason, again)
        self.report("sum", name=self.name, state="failed", reason=reason)

    def save(self) -> None:
        """Write the state, and what people may want to know."""
        self.unsaved, state = False, self.state
        note = {
            "content": self.content.fields(),
            "task": self.attempt.task,
            "number": self.attempt.number,
            "stage": state.stage,
            "answered": state.answered(state.stage) if state.stage else [],
            "waiting": sorted(self.waiting_for),
            "needed": state.needed if state.stage else 0,
            "refused": sorted(self.refused),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.path, pack("open sum", note, {"state": state.to_bytes()}))


def receive_sum(store: Store, opened: OpenSum, total: NDArray[np.uint32]) -> Receipt:
    """The store's decision about the total of a sum. One that describes no rows is refused."""
    attempt, fingerprint = opened.attempt, store.fingerprint
    client, task = cohort_name(attempt.number), attempt.task
    members = tuple((member, task) for member in opened.state.survivors)
    width = store.settings.out_features
    assert store.key is not None
    try:
        summary = sum_to_summary(total, opened.content, fingerprint, width, len(members))
    except Refused as reason:
        told = f"the sum describes no rows ({reason}); a site has added other numbers"
        receipt = Receipt(Code.INVALID, client, task, "?", told)
        store.events.write("upload", **receipt.fields(), verified=True, bytes=0, members=0)
    else:
        upload = encode(summary, "float32")
        said = Statement(
            attempt.federation,
            client,
            task,
            fingerprint.hash,
            hashlib.sha256(upload).hexdigest(),
            members,
            sum_number=attempt.number,
        )
        receipt = store.receive(Envelope(said, store.key.sign(said), upload).to_bytes())
    log.info("%s, %s: %s", client, task, f"{receipt.outcome} {receipt.reason}".strip())
    return receipt
