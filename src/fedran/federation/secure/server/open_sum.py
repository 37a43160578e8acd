"""The attempt at a secure sum that is under way: its files, whom it waits for, when a stage ends.

There is at most one open attempt per task. Its state is written to a file before the next stage is
asked for, so a server that was killed continues with the same requests. Sites repeat answers that
it lost. A file holds public keys, encrypted shares and the sum of masked vectors, and is deleted
when the sum is known.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import Attempt, Stage
from fedran.federation.secure.masking.contribution import Content
from fedran.federation.secure.masking.unmasking import ServerState
from fedran.wire.files import read_json_object, write_atomically

log = logging.getLogger(__name__)
FOLDER = "sums"
"""Folder of open attempts in the server's state folder."""
BEFORE_VECTORS = (Stage.ADVERTISE, Stage.SHARE)
"""Stages in which an attempt that fails is followed by another one with the same sites."""
NEW_TASK = "the sites that have sent their rows need a new task id"


def open_tasks(folder: Path) -> list[str]:
    """Tasks with an open attempt, the one that was worked at least recently first."""
    files = sorted(folder.glob("*.state"), key=lambda path: path.stat().st_mtime)
    return [path.stem.rpartition(".")[0] for path in files]


@dataclass
class OpenSum:
    """An attempt that is under way, or that waits for sites."""

    folder: Path
    state: ServerState
    content: Content
    until: float
    """When the present stage ends without the sites that have not answered."""
    seconds: float
    """How long each stage after the first waits for a site."""
    report: Callable[..., None]
    """Notes an event, such as the end of a stage: its name and its fields."""
    idle: bool = False
    """Whether this run waits no longer for it: a later run continues."""
    refused: dict[str, str] = field(default_factory=dict)
    """Sites that refused the present stage, and why."""
    unsaved: bool = True
    """Whether answers came since the state was written."""
    left_out: Collection[str] = ()
    """Sites whose rows are in another sum already. They are not asked."""

    @classmethod
    def load(
        cls, folder: Path, task: str, until: float, seconds: float, report: Callable[..., None]
    ) -> OpenSum | None:
        """The attempt of an earlier run; None without one, or if its file is damaged."""
        for path in folder.glob("*.state"):
            if path.stem.rpartition(".")[0] == task:
                try:
                    state = ServerState.from_bytes(path.read_bytes())
                    note = read_json_object(path.with_suffix(".json"))
                    content = Content.read(note.get("content"))
                except (Refused, OSError) as reason:
                    log.warning("%s cannot be continued, another follows: %s", path.name, reason)
                    _delete(path)
                else:
                    return cls(folder, state, content, until, seconds, report, unsaved=False)
        return None

    @property
    def attempt(self) -> Attempt:
        """What the sites agree on."""
        return self.state.attempt

    @property
    def name(self) -> str:
        """Identifies the attempt in messages and files."""
        return f"{self.attempt.task}.{self.attempt.number}"

    @property
    def waiting_for(self) -> set[str]:
        """The sites whose answer to the present stage is missing."""
        return set(self.state.waiting_for) - self.refused.keys() - set(self.left_out)

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

    def advance(
        self, now: float, live: Collection[str], expected: Collection[str]
    ) -> NDArray[np.uint32] | None:
        """End every stage that is complete or whose time is over; the total once it is known.

        ``live`` are the sites that answered in this run, ``expected`` those of which an answer to
        the first stage may still come. ``AttemptFailed`` if the attempt cannot give a sum.
        """
        while self.state.stage and self._is_over(now, live, expected):
            stage = self.state.stage
            if stage is Stage.ADVERTISE:
                self.state = _only(self.state, live)
            answered = self.state.answered(stage)
            self.state = unmasking.close(self.state)
            self.until, self.refused = now + self.seconds, {}
            self.report("sum", name=self.name, state="stage", stage=str(stage), clients=answered)
            log.info("secure sum %s: %s, %d sites", self.name, stage, len(answered))
            self.unsaved = True
        if self.unsaved:
            self.save()
        return None if self.state.stage else unmasking.unmask(self.state)

    def _is_over(self, now: float, live: Collection[str], expected: Collection[str]) -> bool:
        """Whether the present stage ends now.

        If too few sites answer, the sum becomes idle, and a later run continues: sites that have
        sent their vectors may take part in no other attempt. Only ``Stage.SHARE`` fails.
        """
        assert self.state.stage is not None
        waiting, answered = self.waiting_for, set(self.state.answered(self.state.stage))
        if self.state.stage is Stage.ADVERTISE:
            # An answer of an earlier run counts once its site is heard in this one.
            waiting = (waiting | answered - set(live)) & set(expected)
            answered &= set(live)
        if self.idle or (waiting and now < self.until):
            return False
        enough = len(answered) >= self.state.needed or self.state.stage is Stage.SHARE
        self.idle = self.unsaved = not enough
        return enough

    def fail(self, reason: str) -> None:
        """Give up. The server knows no vector; another attempt has other masks."""
        again = "" if self.state.stage in BEFORE_VECTORS else f"; {NEW_TASK}"
        log.warning("%s: no sum: %s%s", self.name, reason, again)
        self.report("sum", name=self.name, state="failed", reason=reason)
        self.delete()

    def save(self) -> None:
        """Write the state, and beside it what people may want to know."""
        self.unsaved = False
        state = self.state
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
        path = self.folder / f"{self.name}.state"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path.with_suffix(".json"), json.dumps(note).encode())
        write_atomically(path, state.to_bytes())

    def delete(self) -> None:
        """Delete the files. The sum is in the store, or the attempt was given up."""
        _delete(self.folder / f"{self.name}.state")


def _delete(path: Path) -> None:
    for suffix in (".state", ".json"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def _only(state: ServerState, live: Collection[str]) -> ServerState:
    """The first stage with the answers of sites that are here now."""
    first = Stage.ADVERTISE
    digests = {c: digest for c, digest in state.digests[first].items() if c in live}
    answers = {c: answer for c, answer in state.answers[first].items() if c in live}
    return replace(state, digests={first: digests}, answers={first: answers})
