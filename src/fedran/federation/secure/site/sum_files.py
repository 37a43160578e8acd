"""What a site remembers of secure sums: files in ``state/sums/``, one set per task.

``TASK.state`` holds keys, shares and answers of the newest attempt, ``TASK.vector`` this site's
contribution and what it was made for, ``TASK.note`` what was asked and spent, and the receipt.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, check_id, printable
from fedran.core.private.dp import Budget, composed, gaussian_epsilon
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.secure.masking.attempt import Attempt, Stage, unpack_parts
from fedran.federation.secure.masking.contribution import Noise
from fedran.federation.secure.masking.masking import SiteState
from fedran.wire.container import pack
from fedran.wire.files import read_json_object, write_atomically
from fedran.wire.validation import FILE_LIMITS

log = logging.getLogger(__name__)
FOLDER = "sums"


class SumFiles:
    """The files of secure sums in a site's state folder. They hold secrets."""

    def __init__(self, state: Path) -> None:
        self.folder = state / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, task: str, kind: str) -> Path:
        """A file of a task."""
        return self.folder / f"{check_id(task, 'task')}.{kind}"

    def state(self, task: str) -> SiteState | None:
        """The newest attempt of a task; None before the first one.

        A damaged file is refused: it may have said that this site has revealed a sum.
        """
        path = self.path(task, "state")
        if not path.is_file():
            return None
        try:
            return SiteState.from_bytes(path.read_bytes())
        except Refused as reason:
            hint = "give the rows a new task id"
            raise Refused(path.name, "what this site has written", reason.got, hint) from None

    def save(self, state: SiteState) -> None:
        """Write the newest attempt of a task."""
        write_atomically(self.path(state.attempt.task, "state"), state.to_bytes())

    def note(self, task: str) -> dict[str, Any]:
        """What is known about a task; empty before the first attempt. A damaged one is refused.

        ``asked``: for what contributions were made, and the last class list; or why one was
        ``refused``; the noise, as epsilon and delta, of the vector that was ``sent``; ``code``,
        ``digest`` and ``reason`` of the receipt.
        """
        path = self.path(task, "note")
        found = read_json_object(path)
        if not found and path.is_file():
            hint = "delete it only if you know what the rows of this task have spent"
            raise Refused(path.name, "what this site has written", "a damaged file", hint)
        return found

    def set_note(self, task: str, **changes: Any) -> None:
        """Add to what is known about a task."""
        note = json.dumps({**self.note(task), **changes})
        write_atomically(self.path(task, "note"), note.encode())

    def put_vector(self, attempt: Attempt, vector: NDArray[np.uint32], noise: Noise | None) -> None:
        """Replace the contribution to the sum of a task."""
        spends = noise and (noise.epsilon, noise.delta)
        fields = {"made_for": made_for(attempt), "noise": spends}
        parts = {"vector": vector.astype("<u4", copy=False).tobytes()}
        path = self.path(attempt.task, "vector")
        write_atomically(path, pack("secure contribution", fields, parts))

    def vector(self, attempt: Attempt) -> tuple[NDArray[np.uint32], Budget | None]:
        """The contribution that was made for an attempt, and what its rows spend.

        A request that is refused later may have replaced the one of the attempt under way.
        """
        blob = self.path(attempt.task, "vector").read_bytes()
        header, parts = unpack_parts("secure contribution", blob, FILE_LIMITS)
        if header.get("made_for") != made_for(attempt):
            hint = "another attempt makes it anew"
            raise Refused("contribution", "the one that was made for this attempt", "another", hint)
        noise, vector = header.get("noise"), np.frombuffer(parts["vector"], "<u4")
        return vector.astype(np.uint32, copy=False), noise and Budget(*noise)

    def spent(self, delta: float, also: Mapping[str, Budget] | None = None) -> float:
        """The epsilon of a person with one row in each task whose vector has left with noise.

        A server keeps a ledger of what was spent, but a dishonest one need not. So a site notes
        every vector with noise before it leaves, and limits what they spend together. An attempt
        that gave no sum counts too. A damaged note is refused. ``also``: task -> what it would
        spend; a site's rows are in one sum per task at most, so this replaces an earlier attempt.
        """
        notes = {task: self.note(task).get("sent") for task in self._notes()}
        sent = {task: Budget(*sent) for task, sent in notes.items() if sent} | dict(also or {})
        return gaussian_epsilon(composed([budget.mu for budget in sent.values()]), delta)

    def settle(self, receipt: Receipt) -> None:
        """Keep the server's receipt, and delete the secrets of a sum that the server has."""
        task, state = receipt.task, self.state(receipt.task)
        told, known = {"code": receipt.code.value, "digest": receipt.digest}, self.note(task)
        if state is None or told.items() <= known.items():
            return
        self.set_note(task, **told, reason=receipt.reason)
        log.info("task %s: %s %s", printable(task), receipt.outcome, printable(receipt.reason))
        if receipt.settled:
            self.path(task, "vector").unlink(missing_ok=True)
            empty = dict.fromkeys(state.answers, b"")
            self.save(replace(state, secrets={}, held={}, answers=empty))

    def waiting(self) -> list[str]:
        """Tasks whose sum this site has revealed, without knowing that the server has it."""
        found, settled = [], {task for task, _ in self.settled()}
        for task in sorted({path.stem for path in self.folder.glob("*.state")} - settled):
            with suppress(Refused):  # damaged: its next request is refused
                state = self.state(task)
                if state is not None and Stage.REVEAL in state.answers:
                    found.append(task)
        return found

    def settled(self) -> list[tuple[str, str]]:
        """Tasks and digests of the sums that the server has, as far as this site knows."""
        accepted, notes = (Code.ACCEPTED.value, Code.DUPLICATE.value), self._notes().items()
        return sorted((task, str(n["digest"])) for task, n in notes if n.get("code") in accepted)

    def _notes(self) -> dict[str, dict[str, Any]]:
        return {path.stem: read_json_object(path) for path in self.folder.glob("*.note")}


def made_for(attempt: Attempt) -> str:
    """What a contribution depends on: what its numbers mean, and the feature map."""
    return f"{attempt.content} {attempt.fingerprint}"
