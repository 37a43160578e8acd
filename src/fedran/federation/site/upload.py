"""A site's work for one task: rows become points, and a signed upload."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.points import condense
from fedran.core.prepare import KernelFeatures
from fedran.core.sums.scale import unequal_scales
from fedran.data.rows import Rows
from fedran.federation.protocol.configuration import load_settings
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.messages import Offer, open_envelope, require_same_source, seal
from fedran.federation.protocol.ranges import unusual_columns
from fedran.federation.site.held_out_rows import held_out
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.pseudo_labels import (
    MappedRows,
    choose_rows,
    least_rows,
    require_listed,
)
from fedran.federation.site.settings import OUTBOX, SitePaths, SiteSettings, last_offer
from fedran.federation.site.source import (
    FolderSource,
    FunctionSource,
    Source,
    backbone_loader,
    extract,
)
from fedran.wire.codec import encode
from fedran.wire.validation import FILE_LIMITS

if TYPE_CHECKING:
    from fedran.backbones.backbone import Backbone

log = logging.getLogger(__name__)
HELD_STEP = 0.1
"""How finely rows that are held out are kept, in deviations: ten times as finely as points."""
PREPARED_ALIKE = "are these rows in the same units, and prepared in the same way?"
SCALE_ALIKE = "scale them alike at all sites, with one FederatedScaler (how-to: tabular data)"


@dataclass(frozen=True)
class Site:
    """A client of the federation, with its key, its rows and its outbox."""

    settings: SiteSettings
    key: SiteKey
    source: Source
    outbox: Outbox
    backbone: Callable[[], Backbone] | None = None
    """Loads the site's frozen network. It is called only for images."""
    work_bytes: int = 2 * 2**30
    """Memory for random features and what is computed from them."""

    @classmethod
    def load(cls, path: Path) -> Site:
        """The site that a configuration file describes. Paths in it are relative to the file."""
        settings, folder = load_settings(SiteSettings, path), path.parent
        source: Source
        if settings.folder is not None:
            source = FolderSource(folder / settings.folder, settings.label_column)
        else:
            if str(folder) not in sys.path:
                sys.path.append(str(folder))
            source = FunctionSource(settings.entry or "")
        return cls(
            settings,
            SiteKey.load(folder / settings.key),
            source,
            Outbox(folder / settings.state / OUTBOX),
            backbone_loader(settings.backbone, folder) if settings.backbone else None,
        )

    def rows(self, offer: Offer) -> Rows:
        """The rows of the offered task, with their columns in the order that the server lists."""
        data = self.source(offer.task).in_order(offer.columns, f"rows of {offer.task}")
        if not data.is_images and (text := unequal_scales(data.X, data.columns, offer.kind)):
            log.warning("task %s: %s; %s", offer.task, text, SCALE_ALIKE)
        if not data.is_images and (text := unusual_columns(data.X, data.columns, offer.ranges)):
            log.warning("task %s: %s, as the server declares; %s", offer.task, text, PREPARED_ALIKE)
        return data

    def prepare(self, offer: Offer, *, revise: bool = False) -> bytes:
        """The envelope for a task: from the outbox, or made now and put there first.

        ``revise``: it is made anew from the present rows, and replaces the upload at the server.
        This is how rows or a class are withdrawn.
        """
        offer.require_plain()
        offer.require(self.settings.federation, self.settings.source)
        found, answer = self.outbox.envelope(offer.task), self.outbox.receipt(offer.task)
        correctable = answer is not None and answer.correctable
        if found is None and revise:
            expected = f"an upload for {offer.task} in the outbox, which can be revised"
            raise Refused("upload", expected, "none")
        if found is not None and not (correctable or revise):
            return found
        try:
            data = self.rows(offer)
        except FileNotFoundError:
            if found is None or revise:
                raise
            return found  # the rows of an upload that waits at the server were deleted
        require_listed(data.y, offer)
        if (correctable or revise) and self._same_rows(offer, data):
            if revise:
                hint = "correct the data of this task"
                raise Refused("rows", "other rows than those of the upload", "the same", hint)
            return found or b""
        revision = 0 if found is None else open_envelope(found, FILE_LIMITS).statement.revision
        return self._make(offer, data, revision + revise)

    def _make(self, offer: Offer, data: Rows, revision: int) -> bytes:
        """Make the signed upload of a task and put it into the outbox."""
        upload, held = self.condense(offer, data)
        envelope = seal(
            upload,
            self.key,
            federation=self.settings.federation,
            client=self.settings.client,
            task=offer.task,
            fingerprint=offer.fingerprint.hash,
            revision=revision,
        )
        return self.outbox.put(envelope, self._digest(data, offer), held)

    def _same_rows(self, offer: Offer, data: Rows) -> bool:
        """Whether the upload in the outbox was made from these rows, settings and offer."""
        return self.outbox.note(offer.task).get("made_from") == self._digest(data, offer)

    def _digest(self, data: Rows, offer: Offer) -> str:
        """SHA-256 of everything that an upload is made from: rows, settings and offer."""
        mine = self.settings
        limits = (mine.min_class_count, mine.hold_out, mine.pseudo_labels)
        settings = (*limits, str(data.X.dtype), data.X.shape)
        asked = (offer.fingerprint.hash, offer.group_size, offer.min_group, offer.budget_bytes)
        sha = hashlib.sha256(repr((settings, asked, data.y)).encode(errors="surrogateescape"))
        sha.update(np.ascontiguousarray(data.X).data)
        return sha.hexdigest()

    def condense(self, offer: Offer, data: Rows | None = None) -> tuple[bytes, bytes]:
        """The encoded points of the task's rows, and of those that are held out, one by one.

        Groups are the smallest that the budget allows.
        """
        phi, data = offer.features(), data or self.rows(offer)
        assert isinstance(phi, KernelFeatures)
        rows = np.asarray(phi(self.extractor(data, offer)(data.X)))
        held = held_out(data, offer.task, self.settings.hold_out)
        test = b""
        if len(held):
            labels = [data.y[i] for i in held]
            test = encode(condense(rows[held], labels, fingerprint=phi.fingerprint), step=HELD_STEP)
        others = np.setdiff1d(np.arange(len(rows)), held)
        rows, given = rows[others], [data.y[i] for i in others]
        limits = self.capacity(phi.width), offer, self.settings
        y, kept = choose_rows(rows.__getitem__, given, *limits)
        rows, labels = rows[kept], [y[i] for i in kept]
        size, least = offer.group_size, least_rows(offer, self.settings)
        while True:
            points = condense(rows, labels, size, least, phi.fingerprint)
            blob = encode(points)
            if len(blob) <= offer.budget_bytes:
                return blob, test
            # With more rows than all classes have, groups cannot become larger any more.
            if len(points.counts) == len(points.classes) or size > len(kept):
                expected = f"room for {len(points.counts)} points"
                raise Refused("budget_bytes", expected, offer.budget_bytes)
            size = 1 + size * len(blob) // offer.budget_bytes
            log.info("task %s: groups of about %d rows, to fit the budget", offer.task, size)

    def capacity(self, width: int) -> int:
        """How many rows of ``width`` features are held at once, with copies, in ``work_bytes``."""
        return max(2, self.work_bytes // (24 * width))

    def random_features(self, data: Rows, offer: Offer) -> MappedRows:
        """The function from numbers of rows to their random features (n, M)."""
        phi, features = offer.features(), self.extractor(data, offer)
        return lambda rows: np.asarray(phi(features(data.X[rows])))

    def extractor(self, data: Rows, offer: Offer) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """The function from rows of the data to features (n, d) that the offer's kind allows."""
        if not data.is_images:
            return lambda X: checked_sign(X, offer)
        if self.backbone is None:
            raise Refused("rows", "features, as this site has no backbone", "images")
        network = self.backbone()
        require_same_source(network.source, offer.source)
        return lambda images: checked_sign(extract(network, images), offer)


def revise_upload(paths: SitePaths, task: str) -> bytes:
    """Make the upload of a task anew, as the last offer asks for it. It waits in the outbox."""
    last = last_offer(paths.state)
    if last is None:
        raise FileNotFoundError(f"{paths.folder}: the server has not asked for an upload yet")
    offer = replace(last, task=task, earlier=())
    with locked(paths.state / OUTBOX, paths.settings().seconds):
        return Site.load(paths.settings_file).prepare(offer, revise=True)


def checked_sign(features: NDArray[Any], offer: Offer) -> NDArray[Any]:
    """The features; refused if they contradict the kind that the federation declares.

    The reason goes to the server, so it names no value.
    """
    if offer.kind == "hellinger" and np.min(features, initial=0) < 0:
        raise Refused(
            "features",
            "values of at least 0, because the server declares features that are never negative "
            "(kind 'hellinger')",
            "negative values at this site",
            hint="use the server's backbone here, or set kind = 'cosine' at the server",
        )
    return features
