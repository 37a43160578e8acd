"""A site's envelopes on disk: made once, sent until the server has them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from fedran.core.aggregator import check_id
from fedran.federation.envelope import Envelope, open_envelope
from fedran.federation.receipt import Receipt
from fedran.wire.files import write_atomically
from fedran.wire.limits import FILE_LIMITS


class Outbox:
    """``TASK.envelope`` until it is settled, and ``TASK.receipt`` with what the server said."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def envelope(self, task: str) -> bytes | None:
        """What was made for a task; None before."""
        path = self._path(task, "envelope")
        return path.read_bytes() if path.is_file() else None

    def put(self, envelope: Envelope) -> bytes:
        """Keep an envelope, synced, before it is sent; one for the same task is kept instead.

        A second run over the same rows may differ in its last bits: what was made first is what
        is sent, or the server would see two uploads for one task.
        """
        task = envelope.statement.task
        found = self.envelope(task)
        if found is not None:
            open_envelope(found, FILE_LIMITS)
            return found
        blob = envelope.to_bytes()
        write_atomically(self._path(task, "envelope"), blob)
        return blob

    def settle(self, receipt: Receipt) -> None:
        """Remember what the server said; a settled upload is not sent again."""
        write_atomically(self._path(receipt.task, "receipt"), json.dumps(asdict(receipt)).encode())

    def receipt(self, task: str) -> Receipt | None:
        """What the server said about a task's upload, if it did."""
        path = self._path(task, "receipt")
        return Receipt(**json.loads(path.read_bytes())) if path.is_file() else None

    def pending(self) -> list[str]:
        """Tasks whose upload the server has not settled, in the order of their names."""
        made = (p.stem for p in self.folder.glob("*.envelope"))
        return sorted(t for t in made if not ((r := self.receipt(t)) and r.settled))

    def _path(self, task: str, kind: str) -> Path:
        return self.folder / f"{check_id(task, 'task')}.{kind}"
