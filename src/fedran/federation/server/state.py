"""What follows from the accepted uploads: the aggregator and figures, rebuilt at every start.

A snapshot is a file with the aggregator after some uploads. It only saves time. It has a checksum
and lists the digests of its uploads, so that one of another history is noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedran.core.aggregator import Aggregator
from fedran.core.fingerprint import require_same
from fedran.core.mixture import Mixture
from fedran.core.summary import Summary
from fedran.federation.protocol.identity import UploadId
from fedran.federation.server.database import Database
from fedran.federation.server.history import History
from fedran.federation.server.schema import SNAPSHOTS, Upload
from fedran.federation.server.settings import ServerSettings
from fedran.wire.files import load, save

log = logging.getLogger(__name__)


@dataclass
class State:
    """The sum of uploads, and what later uploads are compared with."""

    aggregator: Aggregator
    history: History
    """Figures of the uploads, with which later ones are compared."""
    covered: dict[UploadId, UploadId] = field(default_factory=dict)
    """Members of forwarded sums -> the sum that contains them."""
    revisions: dict[UploadId, int] = field(default_factory=dict)
    """How often a site has replaced each upload."""

    @classmethod
    def empty(cls, settings: ServerSettings) -> State:
        """The state before the first upload."""
        width, fingerprint = settings.out_features, settings.features().fingerprint
        scale = width if settings.message == "mixture" else 1
        return cls(Aggregator(width, fingerprint=fingerprint), History(scale))

    def absorb(self, upload: Upload, message: Summary | Mixture) -> None:
        """Add an upload."""
        self.aggregator.absorb(message, client=upload.client, task=upload.task)
        self._note(upload)

    def _note(self, upload: Upload) -> None:
        """Add what the database says about an upload that the aggregator has absorbed."""
        self.revisions[upload.key] = upload.revision
        self.covered.update(dict.fromkeys(upload.members, upload.key))
        self.history.add(upload)

    def save(self, folder: Path, keep: int) -> None:
        """Write a snapshot, and delete all but the newest ones."""
        save(self.aggregator, folder / f"snapshot-{len(self.aggregator.absorbed):010d}.fedran")
        for old in _snapshots(folder)[:-keep]:
            old.unlink()


def rebuild_state(
    database: Database, uploads: Sequence[Upload], folder: Path, settings: ServerSettings
) -> State:
    """The newest snapshot that begins the history of these uploads, and the uploads after it.

    Snapshots of another history are deleted: they may contain what was forgotten. An older
    database may also have been put here, so the epoch is a new one, and sites are asked what they
    have sent.
    """
    state = State.empty(settings)
    for path in reversed(_snapshots(folder)):
        try:
            found = load(path, Aggregator)
        except (OSError, ValueError) as reason:
            log.warning("%s is damaged, using an older snapshot: %s", path.name, reason)
            continue
        require_same(state.aggregator.fingerprint, found.fingerprint, "settings and state")
        history = [(u.key, u.digest) for u in uploads[: len(found.absorbed)]]
        if list(found.absorbed.items()) == history:
            state.aggregator = found
            break
        log.warning("%s is not of this database's uploads; it is deleted", path.name)
        path.unlink()
        database.new_epoch()
        database.set_outdated()
    done = len(state.aggregator.absorbed)
    for upload in uploads[:done]:
        state._note(upload)
    for upload in uploads[done:]:
        state.absorb(upload, database.message(upload))
    return state


def _snapshots(folder: Path) -> list[Path]:
    return sorted(folder.glob(SNAPSHOTS))
