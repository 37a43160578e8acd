"""A site's envelopes on disk: made once, sent until the server has them."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

from fedran.core.errors import Refused
from fedran.core.ids import check_id
from fedran.federation.protocol.messages import Envelope, Receipt, open_envelope
from fedran.wire.files import write_atomically
from fedran.wire.validation import FILE_LIMITS

log = logging.getLogger(__name__)
CONFLICTS = ("digest: expected the upload ", "members: expected uploads that are not in yet")
"""How the reason of a refusal begins when the server already has this site's rows."""


class Outbox:
    """``TASK.envelope`` until it is settled, and ``TASK.receipt`` with what the server said.

    A refused upload is kept, and sent again whenever a task is offered: what was wrong may have
    been put right at the server (a site not yet in its roster, another feature map). Not so after
    a conflict: the server has another upload for the task, and will never take this one.
    ``retry`` sends in any case; to have an upload made anew, remove the files of its task.

    An envelope that the disk damaged becomes ``TASK.damaged``, and is made again. Should the
    server have had the first one, the second ends in a conflict, and nothing counts twice.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def envelope(self, task: str) -> bytes | None:
        """What was made for a task; None before, and when it had to be put aside."""
        path = self._path(task, "envelope")
        if not path.is_file():
            return None
        try:
            blob = path.read_bytes()
            said = open_envelope(blob, FILE_LIMITS).statement
            if said.task != task:
                raise Refused("task", task, said.task)
        except (Refused, OSError) as reason:
            path.replace(self._path(task, "damaged"))
            log.warning("task %s: the upload in the outbox is damaged, put aside: %s", task, reason)
            return None
        return blob

    def has(self, task: str) -> bool:
        """Whether an upload was made for a task and is whole, or the server has it."""
        settled = (receipt := self.receipt(task)) is not None and receipt.settled
        return settled or self.envelope(task) is not None

    def put(self, envelope: Envelope) -> bytes:
        """Keep an envelope, synced, before it is sent; one for the same task is kept instead.

        A second run over the same rows may differ in its last bits: what was made first is what
        is sent, or the server would see two uploads for one task.
        """
        task = envelope.statement.task
        found = self.envelope(task)
        if found is not None:
            return found
        blob = envelope.to_bytes()
        write_atomically(self._path(task, "envelope"), blob)
        return blob

    def settle(self, receipt: Receipt) -> None:
        """Remember what the server said; of a task that was never made, nothing is kept."""
        kinds = ("envelope", "damaged")
        if any(self._path(receipt.task, kind).is_file() for kind in kinds):
            data = json.dumps(asdict(receipt)).encode()
            write_atomically(self._path(receipt.task, "receipt"), data)

    def receipt(self, task: str) -> Receipt | None:
        """What the server said about a task's upload, if it did."""
        path = self._path(task, "receipt")
        if not path.is_file():
            return None
        try:
            return Receipt(**json.loads(path.read_bytes()))
        except (ValueError, TypeError):
            log.warning("task %s: the receipt is damaged; the upload is sent again", task)
            return None

    def retry(self, task: str) -> None:
        """Forget what the server said: the upload is sent again, once at least."""
        self._path(task, "receipt").unlink(missing_ok=True)

    def pending(self, *, refused: bool = True) -> list[str]:
        """Tasks whose upload is to be sent, by name; without those once refused, if so asked."""
        return [task for task in self._tasks("envelope") if self._open(task, refused)]

    def lost(self) -> list[str]:
        """Tasks whose upload was damaged before the server had it, by name."""
        found = {task for task in self.pending() if self.envelope(task) is None}
        found.update(task for task in self._tasks("damaged") if self.envelope(task) is None)
        return sorted(task for task in found if self._open(task))

    def _open(self, task: str, refused: bool = True) -> bool:
        said = self.receipt(task)
        if said is None or said.outcome != "refused":
            return said is None or not said.settled
        return refused and not said.reason.startswith(CONFLICTS)

    def _tasks(self, kind: str) -> list[str]:
        return sorted(path.stem for path in self.folder.glob(f"*.{kind}"))

    def _path(self, task: str, kind: str) -> Path:
        return self.folder / f"{check_id(task, 'task')}.{kind}"
