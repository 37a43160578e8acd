"""The outbox: a site's envelopes on disk, made once and sent until the server has them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedran.core.errors import Refused, check_id
from fedran.federation.protocol.limits import RESEND_SECONDS
from fedran.federation.protocol.messages import Envelope, open_envelope
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.wire.files import read_json_object, write_atomically
from fedran.wire.validation import FILE_LIMITS

log = logging.getLogger(__name__)


class Outbox:
    """``TASK.envelope`` is an upload, and ``TASK.receipt`` the server's answer to it.
    ``TASK.held`` has the rows of the task that were held out of it.

    A refused upload is kept and sent again, because the reason may have been removed at the server
    (a site that was not yet in the roster, another feature map): with every offer of its own task,
    and with offers of other tasks after an hour. After a conflict it is not sent again: the server
    has other rows for the task. An upload that was refused for its content is made anew when the
    rows or the settings have changed (``TASK.note`` has their digest).

    An envelope that the disk damaged is deleted and made again: its note stays. If the server has
    the first one, the second ends in a conflict, and nothing counts twice.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def envelope(self, task: str) -> bytes | None:
        """The upload of a task; None if there is none, or if it was damaged and is deleted."""
        path = self._path(task, "envelope")
        if not path.is_file():
            return None
        try:
            blob = path.read_bytes()
            statement = open_envelope(blob, FILE_LIMITS).statement
            if statement.task != task:
                raise Refused("task", task, statement.task)
        except Refused as reason:
            path.unlink()
            log.warning("task %s: the upload in the outbox is damaged: %s", task, reason)
            return None
        return blob

    def put(self, envelope: Envelope, made_from: str = "", held_out: bytes = b"") -> bytes:
        """Write an envelope, synced, before it is sent; ``made_from`` is a digest of its rows.

        It replaces an earlier envelope for its task. The receipt of that one goes first: after a
        crash, the old envelope is sent again and does no harm.
        """
        task, blob = envelope.statement.task, envelope.to_bytes()
        self._path(task, "receipt").unlink(missing_ok=True)
        if held_out:
            write_atomically(self._path(task, "held"), held_out)
        else:
            self._path(task, "held").unlink(missing_ok=True)
        write_atomically(self._path(task, "envelope"), blob)
        note = json.dumps({"made_from": made_from, "revision": envelope.statement.revision})
        write_atomically(self._path(task, "note"), note.encode())
        return blob

    def held_out(self) -> Iterator[bytes]:
        """The rows that were held out of each upload, as they were put."""
        return (self._path(task, "held").read_bytes() for task in self._tasks("held"))

    def note(self, task: str) -> dict[str, Any]:
        """What the upload of a task was ``made_from``, and its ``revision``; may be empty."""
        return read_json_object(self._path(task, "note"))

    def settle(self, receipt: Receipt) -> None:
        """Keep the server's receipt. A receipt for a task that was never made is ignored.

        If the server asks again for an upload that is no longer here, its old receipt is deleted,
        so that the upload is made again.
        """
        path = self._path(receipt.task, "receipt")
        if receipt.code == Code.LOST and not self._path(receipt.task, "envelope").is_file():
            path.unlink(missing_ok=True)
        elif any(self._path(receipt.task, kind).is_file() for kind in ("envelope", "note")):
            write_atomically(path, json.dumps(receipt.fields()).encode())

    def receipt(self, task: str) -> Receipt | None:
        """The server's receipt for a task, if it came."""
        try:
            return Receipt.read(json.loads(self._path(task, "receipt").read_bytes()))
        except FileNotFoundError:
            return None
        except ValueError:
            log.warning("task %s: the receipt is damaged; the upload is sent again", task)
            return None

    def settled(self) -> list[tuple[str, str]]:
        """Tasks and digests of the uploads that the server has, as far as this site knows."""
        found = (r for r in self._receipts() if r.settled)
        return [(r.task, r.digest) for r in found if len(r.digest) == 64]

    def pending(self, *, refused: bool = True) -> list[str]:
        """Tasks whose upload is to be sent, sorted; without refused ones if ``refused=False``."""
        return [task for task in self._tasks("envelope") if self._to_send(task, refused)]

    def due(self, task: str) -> bool:
        """Whether an upload was never refused, or not within the last hour."""
        receipt = self.receipt(task)
        if receipt is None or receipt.settled or receipt.code == Code.LOST:
            return True
        age = time.time() - self._path(task, "receipt").stat().st_mtime
        return not 0 <= age < RESEND_SECONDS

    def to_make(self, tasks: Iterable[str]) -> list[str]:
        """Tasks whose upload is damaged, and those of ``tasks`` without one, or with one that may
        be corrected.
        """
        found = self.lost()
        for task in tasks:
            receipt = self.receipt(task)
            final, correctable = (receipt.final, receipt.correctable) if receipt else (False, False)
            if correctable or not (final or self.envelope(task)):
                found.append(task)
        return list(dict.fromkeys(found))

    def lost(self) -> list[str]:
        """Tasks whose upload was damaged before the server had it, sorted."""
        made = (task for task in self._tasks("note") if self._to_send(task))
        return [task for task in made if self.envelope(task) is None]

    def _to_send(self, task: str, refused: bool = True) -> bool:
        receipt = self.receipt(task)
        return receipt is None or (refused and not receipt.final)

    def _receipts(self) -> Iterator[Receipt]:
        return filter(None, map(self.receipt, self._tasks("receipt")))

    def _tasks(self, kind: str) -> list[str]:
        return sorted(path.stem for path in self.folder.glob(f"*.{kind}"))

    def _path(self, task: str, kind: str) -> Path:
        return self.folder / f"{check_id(task, 'task')}.{kind}"
