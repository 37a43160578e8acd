"""The server's secure sums: which attempts are open, what each site is asked, when a stage ends.

There is at most one open attempt per task. Its state is written to a file before the next stage is
asked for, so a server that was killed continues with the same requests. Sites repeat answers that
it lost. A file holds public keys, encrypted shares and the sum of masked vectors, and is deleted
when the sum is known.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import Attempt, AttemptFailed, Stage, roster_digest
from fedran.federation.secure.masking.contribution import OMEGA_SUFFIX, Content
from fedran.federation.secure.masking.unmasking import ServerState
from fedran.wire.files import read_json_object, write_atomically

log = logging.getLogger(__name__)
FOLDER = "sums"
"""Folder of open attempts in the server's state folder."""
BEFORE_VECTORS = (Stage.ADVERTISE, Stage.SHARE)
"""Stages in which an attempt that fails is followed by another one with the same sites."""
NEW_TASK = "the sites that have sent their rows need a new task id"
Report = Callable[..., None]
"""Notes an event: its name and its fields."""


@dataclass
class OpenSum:
    """An attempt that is under way, or that waits for sites."""

    state: ServerState
    content: Content
    omega: bytes
    """The encoded test matrix; empty if it is drawn, or not needed."""
    until: float
    """When the present stage ends without the sites that have not answered."""
    idle: bool = False
    """Whether this run waits no longer for it: a later run continues."""
    refused: dict[str, str] = field(default_factory=dict)
    """Sites that refused the present stage, and why."""
    unsaved: bool = False
    """Whether answers came since the state was written."""
    left_out: frozenset[str] = frozenset()
    """Sites whose rows are in another sum already. They are not asked."""

    @property
    def attempt(self) -> Attempt:
        """What the sites agree on."""
        return self.state.attempt

    @property
    def waiting_for(self) -> set[str]:
        """The sites whose answer to the present stage is missing."""
        return set(self.state.waiting_for) - self.refused.keys() - self.left_out

    @property
    def name(self) -> str:
        """Identifies the attempt in messages and files."""
        return f"{self.attempt.task}.{self.attempt.number}"


class Coordinator:
    """The open sums of one server, in a folder of its own.

    ``seconds`` is how long each stage after the first waits for a site. ``report`` gets an event
    for every stage that ends.
    """

    def __init__(
        self, folder: Path, roster: dict[str, str], seconds: float, report: Report, now: float
    ) -> None:
        self.folder, self.roster, self.seconds, self.report = folder, roster, seconds, report
        self.sums: dict[str, OpenSum] = {}
        """Task -> its open attempt."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in sorted(self.folder.glob("*.state")):
            self._load(path, now)

    def _load(self, path: Path, now: float) -> None:
        """Continue an attempt, unless its file is damaged or the roster has changed since."""
        try:
            state = ServerState.from_bytes(path.read_bytes())
            content = Content.read(read_json_object(path.with_suffix(".json")).get("content"))
            omega = path.with_suffix(".omega")
            found = omega.read_bytes() if omega.is_file() else b""
            opened = OpenSum(state, content, found, now + self.seconds)
        except (Refused, OSError) as reason:
            log.warning("%s cannot be continued, the sum is attempted again: %s", path.name, reason)
            self._delete(path.stem)
            return
        self.sums[state.attempt.task] = opened
        if state.attempt.roster != roster_digest(self.roster):
            self.fail(state.attempt.task, "the roster has changed")

    def open(self, attempt: Attempt, content: Content, omega: bytes, until: float) -> None:
        """Begin an attempt. Its first stage lasts until everyone answered, at most ``until``."""
        opened = OpenSum(unmasking.start(attempt, self.roster), content, omega, until)
        if omega:
            write_atomically(self.folder / f"{opened.name}.omega", omega)
        self.sums[attempt.task] = opened
        self._save(opened)

    def pending(self, client: str) -> set[tuple[str, str]]:
        """Names and stages of the sums that wait for a site."""
        return {
            (opened.name, str(opened.state.stage))
            for opened in self.sums.values()
            if client in opened.waiting_for
        }

    def requests(self, client: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        """What a site is asked now: contents and blobs of a message, for all sums that wait for it.

        Content and test matrix come with the first stage only.
        """
        contents, blobs = {}, {}
        for opened in self.sums.values():
            if client in opened.waiting_for:
                blobs[opened.name] = unmasking.request(opened.state, client)
                if opened.state.stage is Stage.ADVERTISE:
                    contents[opened.name] = opened.content.fields()
                    blobs[f"{opened.name}{OMEGA_SUFFIX}"] = opened.omega
        return contents, blobs

    def receive(self, client: str, name: str, answer: bytes) -> None:
        """Take a site's answer. A wrong one is refused, one that comes too late is ignored."""
        opened = self._named(name)
        if opened is None or client not in opened.waiting_for:
            return
        opened.state = unmasking.collect(opened.state, client, answer)
        opened.unsaved = True

    def refuse(self, client: str, name: str, reason: str) -> None:
        """Note that a site does not take part in the present stage, so nobody waits for it."""
        opened = self._named(name)
        if opened is not None:
            opened.refused[client] = reason
            who = {"stage": str(opened.state.stage), "client": client, "reason": reason}
            self.report("sum", name=name, state="refused", **who)

    def advance(
        self, now: float, live: Collection[str], expected: Callable[[str], Collection[str]]
    ) -> Iterator[tuple[OpenSum, NDArray[np.uint32]]]:
        """End every stage that is complete or whose time is over; yields the sums that are known.

        With each comes the total of its survivors' vectors. ``live`` are the sites that answered in
        this run. ``expected(task)`` are those of which an answer to the first stage may still come.
        """
        for task, opened in list(self.sums.items()):
            try:
                while opened.state.stage and self._is_over(opened, now, live, expected(task)):
                    if opened.state.stage is Stage.ADVERTISE:
                        opened.state = _only(opened.state, live)
                    self._close(opened, now)
                if opened.unsaved:
                    self._save(opened)
                if opened.state.stage is not None:
                    continue
                total = unmasking.unmask(opened.state)
            except AttemptFailed as reason:
                self.fail(task, str(reason))
                continue
            yield opened, total

    def end_first_stages(self, now: float) -> None:
        """Wait no longer for answers to first stages. Later ones have a short limit anyway."""
        for opened in self.sums.values():
            if opened.state.stage is Stage.ADVERTISE:
                opened.until = min(opened.until, now)

    def _is_over(
        self, opened: OpenSum, now: float, live: Collection[str], expected: Collection[str]
    ) -> bool:
        """Whether the present stage ends now.

        If too few sites answer, the sum becomes idle, and a later run continues: sites that have
        sent their vectors may take part in no other attempt. Only ``Stage.SHARE`` fails.
        """
        state = opened.state
        assert state.stage is not None
        waiting = opened.waiting_for
        answered = set(state.answered(state.stage))
        first = state.stage is Stage.ADVERTISE
        if first:  # an answer of an earlier run counts once its site is heard in this one
            waiting = (waiting | answered - set(live)) & set(expected)
            answered &= set(live)
        if opened.idle or (waiting and now < opened.until):
            return False
        if len(answered) < state.needed and state.stage is not Stage.SHARE:
            opened.idle = True
            self._save(opened)
            return False
        return True

    def _close(self, opened: OpenSum, now: float) -> None:
        """End the present stage. ``AttemptFailed`` if too few sites answered it."""
        stage = opened.state.stage
        assert stage is not None
        answered = opened.state.answered(stage)
        opened.state = unmasking.close(opened.state)
        opened.until, opened.refused = now + self.seconds, {}
        self.report("sum", name=opened.name, state="stage", stage=str(stage), clients=answered)
        log.info("secure sum %s: %s, %d sites", opened.name, stage, len(answered))
        self._save(opened)

    def forget(self, task: str) -> None:
        """Delete everything about a task's attempt. The caller has the sum in its store."""
        self._delete(self.sums.pop(task).name)

    def fail(self, task: str, reason: str) -> None:
        """Give up an attempt. The server knows no vector; another attempt has other masks."""
        opened = self.sums.pop(task)
        again = "" if opened.state.stage in BEFORE_VECTORS else f"; {NEW_TASK}"
        log.warning("%s: no sum: %s%s", opened.name, reason, again)
        self.report("sum", name=opened.name, state="failed", reason=reason)
        self._delete(opened.name)

    def _named(self, name: str) -> OpenSum | None:
        return next((o for o in self.sums.values() if o.name == name), None)

    def _save(self, opened: OpenSum) -> None:
        """Write the state, and beside it what people may want to know."""
        opened.unsaved = False
        state = opened.state
        note = {
            "content": opened.content.fields(),
            "task": opened.attempt.task,
            "number": opened.attempt.number,
            "stage": None if state.stage is None else str(state.stage),
            "answered": list(state.answered(state.stage)) if state.stage else [],
            "waiting": sorted(opened.waiting_for),
            "needed": state.needed if state.stage else 0,
            "refused": sorted(opened.refused),
        }
        write_atomically(self.folder / f"{opened.name}.json", json.dumps(note).encode())
        write_atomically(self.folder / f"{opened.name}.state", opened.state.to_bytes())

    def _delete(self, name: str) -> None:
        for suffix in ("state", "json", "omega"):
            (self.folder / f"{name}.{suffix}").unlink(missing_ok=True)


def _only(state: ServerState, live: Collection[str]) -> ServerState:
    """The first stage with the answers of sites that are here now."""
    first = Stage.ADVERTISE
    digests = {c: digest for c, digest in state.digests[first].items() if c in live}
    answers = {c: answer for c, answer in state.answers[first].items() if c in live}
    return replace(state, digests={first: digests}, answers={first: answers})
