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
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.server.database import Database
from fedran.federation.server.entries import Upload
from fedran.federation.server.history import Figures, History
from fedran.federation.server.quarantine import represented_sites
from fedran.federation.server.schema import SNAPSHOTS
from fedran.federation.server.validation import Rules, decode_upload
from fedran.wire.files import load, save
from fedran.wire.validation import FILE_LIMITS

log = logging.getLogger(__name__)


@dataclass
class State:
    """The sum of uploads, and what later uploads are compared with."""

    aggregator: Aggregator
    history: History = field(default_factory=History)
    """Figures of the uploads, with which later ones are compared."""
    covered: dict[UploadId, UploadId] = field(default_factory=dict)
    """Members of forwarded sums -> the sum that contains them."""
    revisions: dict[UploadId, int] = field(default_factory=dict)
    """How often a site has replaced each upload."""

    @classmethod
    def empty(cls, rules: Rules) -> State:
        """The state before the first upload."""
        return cls(Aggregator(rules.out_features, fingerprint=rules.fingerprint))

    def absorb(self, upload: Upload, message: Summary | Mixture, rules: Rules) -> None:
        """Add an upload."""
        self.aggregator.absorb(message, client=upload.client, task=upload.task)
        self._note(upload, rules)

    def _note(self, upload: Upload, rules: Rules) -> None:
        """Add what the database says about an upload that the aggregator has absorbed."""
        self.revisions[upload.key] = upload.revision
        self.covered.update(dict.fromkeys(upload.members, upload.key))
        figures = Figures(
            upload.rows,
            row_energy(upload.energy, rules),
            upload.cut,
            represented_sites(upload.members),
            tuple(label for label, _ in upload.classes),
        )
        self.history.add(upload.key, figures)

    def save(self, folder: Path, keep: int) -> None:
        """Write a snapshot, and delete all but the newest ones."""
        save(self.aggregator, folder / f"snapshot-{len(self.history.figures):010d}.fedran")
        for old in _snapshots(folder)[:-keep]:
            old.unlink()


def rebuild_state(
    database: Database, uploads: Sequence[Upload], folder: Path, rules: Rules
) -> State:
    """The newest snapshot that begins the history of these uploads, and the uploads after it.

    Snapshots of another history are deleted: they may contain what was forgotten. An older
    database may also have been put here, so the epoch is a new one, and sites are asked what they
    have sent.
    """
    state = State.empty(rules)
    for path in reversed(_snapshots(folder)):
        try:
            found = load(path, Aggregator)
        except (OSError, ValueError) as reason:
            log.warning("%s is damaged, using an older snapshot: %s", path.name, reason)
            continue
        require_same(rules.fingerprint, found.fingerprint, "settings and state")
        history = [(u.key, u.digest) for u in uploads[: len(found.absorbed)]]
        if list(found.absorbed.items()) == history:
            state.aggregator = found
            break
        log.warning("%s is not of this database's uploads; it is deleted", path.name)
        path.unlink()
        database.new_epoch()
        database.set_served("outdated")
    done = len(state.aggregator.absorbed)
    for upload in uploads[:done]:
        state._note(upload, rules)
    for upload in uploads[done:]:
        envelope = open_envelope(database.envelope(upload), FILE_LIMITS)
        state.absorb(upload, decode_upload(envelope, FILE_LIMITS), rules)
    return state


def row_energy(energy: float, rules: Rules) -> float:
    """||H||^2 of the rows; for a mixture that of normal entries, before the activation."""
    return energy * (rules.out_features if rules.message == "mixture" else 1)


def _snapshots(folder: Path) -> list[Path]:
    return sorted(folder.glob(SNAPSHOTS))
