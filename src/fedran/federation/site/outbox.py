"""The outbox: a site's envelopes on disk, made once and sent until the server has them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedran.core.errors import Refused, check_id
from fedran.federation.protocol.limits import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS
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
    and with offers of other tasks after ever longer waits. After a conflict it is not sent again:
    the server has other rows for the task. An upload that was refused for its content
    is made anew when the rows or the settings have changed (``TASK.note`` has their
    digest).

    An envelope that the disk damaged is renamed to ``TASK.damaged`` and made again. If the server
    has the first one, the second ends in a conflict, and nothing counts twice.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def envelope(self, task: str) -> bytes | None:
        """The upload of a task; None if there is none, or if it was damaged and is set aside."""
        path = self._path(task, "envelope")
        if not path.is_file():
            return None
        try:
            blob = path.read_bytes()
            statement = open_envelope(blob, FILE_LIMITS).statement
            if statement.task != task:
                raise Refused("task", task, statement.task)
        except (Refused, OSError) as reason:
            path.replace(self._path(task, "damaged"))
            log.warning("task %s: the upload in the outbox is damaged, put aside: %s", task, reason)
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
        note = json.dumps({"made_from": made_from})
        write_atomically(self._path(task, "note"), note.encode())
        return blob

    def held_out(self) -> Iterator[bytes]:
        """The rows that were held out of each upload, as they were put."""
        return (self._path(task, "held").read_bytes() for task in self._tasks("held"))

    def note(self, task: str) -> dict[str, Any]:
        """What the upload of a task was ``made_from``; may be empty."""
        return read_json_object(self._path(task, "note"))

    def settle(self, receipt: Receipt) -> None:
        """Keep the server's receipt. A receipt for a task that was never made is ignored.

        If the server asks again for an upload that is no longer here, its old receipt is deleted,
        so that the upload is made again. The file of a receipt also says when the first and the
        last of several refusals came.
        """
        kinds = ("envelope", "damaged")
        if receipt.code == Code.LOST and not self._path(receipt.task, "envelope").is_file():
            self._path(receipt.task, "receipt").unlink(missing_ok=True)
        elif any(self._path(receipt.task, kind).is_file() for kind in kinds):
            first, _ = self._refused_at(receipt.task)
            last = time.time()
            times = {"first": first or last, "last": last}
            data = json.dumps({**receipt.fields(), **times}).encode()
            write_atomically(self._path(receipt.task, "receipt"), data)

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
        """Whether a refused upload has waited long enough to be sent again."""
        first, last = self._refused_at(task)
        wait = min(max(last - first, FIRST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)
        return not last or not last <= time.time() < last + wait

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
        found = {task for task in self.pending() if self.envelope(task) is None}
        found.update(task for task in self._tasks("damaged") if self.envelope(task) is None)
        return sorted(task for task in found if self._to_send(task))

    def _to_send(self, task: str, refused: bool = True) -> bool:
        receipt = self.receipt(task)
        return receipt is None or (refused and not receipt.final)

    def _refused_at(self, task: str) -> tuple[float, float]:
        """Unix times of the first and the last refusal; zeros without one."""
        receipt, path = self.receipt(task), self._path(task, "receipt")
        if receipt is None or receipt.settled or receipt.code == Code.LOST:
            return 0.0, 0.0
        found = json.loads(path.read_bytes())
        first, last = found.get("first"), found.get("last")
        known = isinstance(first, float) and isinstance(last, float)
        return (first, last) if known else (0.0, 0.0)

    def _receipts(self) -> Iterator[Receipt]:
        return filter(None, map(self.receipt, self._tasks("receipt")))

    def _tasks(self, kind: str) -> list[str]:
        return sorted(path.stem for path in self.folder.glob(f"*.{kind}"))

    def _path(self, task: str, kind: str) -> Path:
        return self.folder / f"{check_id(task, 'task')}.{kind}"
