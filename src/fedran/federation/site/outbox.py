"""The outbox: a site's envelopes on disk, made once and sent until the server has them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedran.core.errors import Refused, check_id
from fedran.federation.protocol.messages import Envelope, open_envelope
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.wire.files import write_atomically
from fedran.wire.validation import FILE_LIMITS

log = logging.getLogger(__name__)


class Outbox:
    """``TASK.envelope`` is an upload, and ``TASK.receipt`` the server's answer to it.
    ``TASK.held`` has the rows of the task that were held out of it.

    An upload is sent with every offer until its receipt is final. So a refused one is sent again:
    the reason may have been removed at the server (a site that was not yet in the roster, another
    feature map). One that was refused for its content is made anew when that gives other bytes.

    An envelope that the disk damaged is made again. If the server has the first one, the second
    ends in a conflict, and nothing counts twice.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def envelope(self, task: str) -> bytes | None:
        """The upload of a task; None if there is none, or if it is damaged."""
        path = self._path(task, "envelope")
        if not path.is_file():
            return None
        try:
            blob = path.read_bytes()
            statement = open_envelope(blob, FILE_LIMITS).statement
            if statement.task != task:
                raise Refused("task", task, statement.task)
        except Refused as reason:
            log.warning("task %s: the upload in the outbox is damaged: %s", task, reason)
            return None
        return blob

    def put(self, envelope: Envelope, held_out: bytes = b"") -> bytes:
        """Write an envelope, synced, before it is sent.

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
        return blob

    def held_out(self) -> Iterator[bytes]:
        """The rows that were held out of each upload, as they were put."""
        return (self._path(task, "held").read_bytes() for task in self._tasks("held"))

    def settle(self, receipt: Receipt) -> None:
        """Keep the server's receipt. A receipt for a task that was never made is ignored.

        If the server asks again for an upload that is no longer here, its old receipt is deleted,
        so that the upload is made again.
        """
        path = self._path(receipt.task, "receipt")
        if self._path(receipt.task, "envelope").is_file():
            write_atomically(path, json.dumps(receipt.fields()).encode())
        elif receipt.code == Code.LOST:
            path.unlink(missing_ok=True)

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
        found = filter(None, map(self.receipt, self._tasks("receipt")))
        return [(r.task, r.digest) for r in found if r.settled and len(r.digest) == 64]

    def pending(self) -> list[str]:
        """Tasks whose upload is to be sent, sorted. Some may be damaged."""
        return [task for task in self._tasks("envelope") if not self._is_final(task)]

    def to_make(self, tasks: Iterable[str]) -> list[str]:
        """Tasks among these, and among pending ones, without an upload, with a damaged one, or with
        one that may be corrected.
        """

        def missing(task: str) -> bool:
            receipt = self.receipt(task)
            if receipt is not None and receipt.correctable:
                return True
            return not self._is_final(task) and self.envelope(task) is None

        return list(filter(missing, dict.fromkeys((*tasks, *self.pending()))))

    def _is_final(self, task: str) -> bool:
        receipt = self.receipt(task)
        return receipt is not None and receipt.final

    def _tasks(self, kind: str) -> list[str]:
        return sorted(path.stem for path in self.folder.glob(f"*.{kind}"))

    def _path(self, task: str, kind: str) -> Path:
        return self.folder / f"{check_id(task, 'task')}.{kind}"
