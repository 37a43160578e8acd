"""What follows from the accepted uploads: the aggregator and figures, rebuilt at every start.

A snapshot is a file with the aggregator after some uploads. It only saves time. It has a checksum
and lists the digests of its uploads, so that one of another history is noticed.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedran.core.fingerprint import require_same
from fedran.core.labels import Label
from fedran.core.mixture import Mixture
from fedran.core.summary import Summary
from fedran.core.sums.aggregator import Aggregator
from fedran.federation.protocol.identity import UploadId
from fedran.federation.protocol.limits import KEPT_SNAPSHOTS
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.schema import SNAPSHOTS, Upload
from fedran.wire.files import load, save

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Usual:
    """The figures of an upload, or their medians over uploads or sites."""

    rows: float
    """Per site of an upload."""
    row_energy: float
    """Per row."""
    cut_share: float
    """The share of the energy that was cut."""

    @classmethod
    def median(cls, found: Collection[Usual]) -> Usual:
        """The median of each figure."""
        columns = zip(*((u.rows, u.row_energy, u.cut_share) for u in found), strict=True)
        return cls(*map(statistics.median, columns))


class History:
    """The figures of all accepted uploads with which later ones are compared.

    Every site has one vote, however many uploads it sent. ``scale`` times the energy of an upload
    is ||H||^2 of its rows: 1 for summaries, and M for mixtures, as if entries were normal, before
    the activation.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self._uploads: dict[str, list[Usual]] = {}
        """Site -> the figures of each upload."""
        self._sites: dict[str, Usual] = {}
        """Site -> the medians over its uploads, so that a comparison reads one entry per site."""
        self._classes: dict[str, set[Label]] = {}

    def add(self, upload: Upload) -> None:
        """Add an accepted upload, whose rows are in no earlier one."""
        energy = self.scale * upload.energy
        share = upload.cut / energy if energy > 0 else 0.0
        figures = Usual(upload.rows / upload.sites, energy / max(1, upload.rows), share)
        uploads = self._uploads.setdefault(upload.client, [])
        uploads.append(figures)
        self._sites[upload.client] = Usual.median(uploads)
        classes = self._classes.setdefault(upload.client, set())
        classes.update(label for label, _ in upload.classes)

    def usual(self, without: str = "") -> Usual | None:
        """Medians over all sites but one; None without another site."""
        others = [figures for site, figures in self._sites.items() if site != without]
        return Usual.median(others) if others else None

    def classes_of(self, client: str) -> set[Label]:
        """The classes of all uploads of a site."""
        return set(self._classes.get(client, ()))


@dataclass
class State:
    """The sum of uploads, and what later uploads are compared with."""

    aggregator: Aggregator
    history: History
    """Figures of the uploads, with which later ones are compared."""
    covered: dict[UploadId, UploadId] = field(default_factory=dict)
    """Members of secure sums -> the sum that contains them."""
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

    def save(self, folder: Path) -> None:
        """Write a snapshot, and delete all but the newest ones."""
        save(self.aggregator, folder / f"snapshot-{len(self.aggregator.absorbed):010d}.fedran")
        for old in _snapshots(folder)[:-KEPT_SNAPSHOTS]:
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
