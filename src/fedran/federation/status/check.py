"""Examines a site and the rows of a task before anything is sent: ``fedran federation check``.

Problems are what keeps the site from taking part, or what the site or the server would refuse.
Warnings are likely mistakes.
"""

from __future__ import annotations

import email.utils
import http.client
import shlex
import shutil
import ssl
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedran.core.errors import shortened
from fedran.core.labels import Label, canonical, named, ordered, similar_labels
from fedran.core.prepare import KernelFeatures
from fedran.core.solve.head import Head
from fedran.core.sums.scale import unequal_scales
from fedran.data.rows import Rows
from fedran.federation.protocol.configuration import check_address
from fedran.federation.protocol.connection import certificate_expiry, why_unreachable
from fedran.federation.protocol.identity import SiteKey, check_private
from fedran.federation.protocol.limits import MAX_SKEW, POOR_SHARE, SAMPLE_ROWS, WARN_DAYS
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.protocol.logs import log_file
from fedran.federation.protocol.messages import Offer, require_same_source
from fedran.federation.protocol.ranges import unusual_columns
from fedran.federation.site.pseudo_labels import least_rows
from fedran.federation.site.settings import (
    CONNECTION,
    SitePaths,
    SiteSettings,
    last_offer,
    newest_head,
)
from fedran.federation.site.source import SUFFIXES, FolderSource, FunctionSource, NoRows
from fedran.federation.site.upload import PREPARED_ALIKE, SCALE_ALIKE, Site, checked_sign
from fedran.federation.status.model import Finding
from fedran.federation.status.reader import disk_finding
from fedran.federation.status.site import roster_finding
from fedran.wire.files import read_json_object

EXPECTED = " or ".join(f"TASK{suffix}" for suffix in SUFFIXES)


def check_site(
    paths: SitePaths, task: str | None = None, *, roster: Path | None = None
) -> Iterator[Finding]:
    """All findings about a site, and about the rows of a task.

    ``roster`` is a file to compare with the pinned roster, instead of what the server showed last.
    """
    settings = paths.settings()
    yield _key(paths, settings.key, SiteKey.load)
    yield _key(paths, settings.node_key, lambda path: check_private(path, "the key"))
    yield disk_finding(shutil.disk_usage(paths.folder).free)
    if settings.privacy != "none" or roster is not None:
        yield roster_finding(paths, roster)
    yield from _connection(settings.server, paths.folder / settings.ca)
    yield _service(paths)
    yield from (_data(paths, settings),) if task is None else check_rows(paths, task)


def _judged(good: bool, level: Literal["warning", "problem"], text: str, remedy: str) -> Finding:
    return Finding("ok", text) if good else Finding(level, text, remedy)


def _key(paths: SitePaths, name: str, load: Callable[[Path], object]) -> Finding:
    try:
        load(paths.folder / name)
    except (OSError, ValueError) as reason:
        remedy = "restore the file from your backup, or join again in a new folder, with new keys"
        return Finding("problem", str(reason), remedy)
    return Finding("ok", f"{name} can be read by its owner only")


def _connection(server: str, ca: Path) -> Iterator[Finding]:
    """The certificate, the connection over TLS, and the difference of the clocks."""
    expires = certificate_expiry(ca)
    if expires is None:
        remedy = "copy the server's tls/ca.crt to this file, over a channel that you trust"
        yield Finding("problem", f"{ca.name} is missing or not a certificate", remedy)
        return
    days = (expires - time.time()) / 86400
    remedy = "ask the server's owner for the new ca.crt"
    yield _judged(days > WARN_DAYS, "warning", f"{ca.name} expires in {days:.0f} days", remedy)
    reason, remedy = why_unreachable(server, ca)
    if reason:
        yield Finding("problem", f"{server}: {reason}", remedy)
        return
    yield Finding("ok", f"{server} answers over TLS")
    skew = _clock_skew(server, ca)
    if skew is not None:
        text = f"the clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
        remedy = "set the clock with NTP (timedatectl set-ntp true)"
        yield _judged(abs(skew) <= MAX_SKEW, "problem", text, remedy)


def _clock_skew(server: str, ca: Path) -> float | None:
    """Seconds by which this clock is ahead, from the date in an answer over HTTP."""
    host, port = check_address(server)
    context = ssl.create_default_context(cafile=ca)
    connection = http.client.HTTPSConnection(host, port, timeout=5, context=context)
    try:
        connection.request("HEAD", "/")
        there = email.utils.parsedate_to_datetime(connection.getresponse().headers["Date"])
        return time.time() - there.timestamp()
    except (OSError, http.client.HTTPException, TypeError, ValueError):
        return None
    finally:
        connection.close()


def _service(paths: SitePaths) -> Finding:
    if lock_holder(paths.folder / "log") is None:
        remedy = f"start it: {shlex.join(['fedran', 'federation', 'client', str(paths.folder)])}"
        return Finding("warning", "the site does not run", remedy)
    last = read_json_object(paths.state / CONNECTION)
    if last.get("connected") is False:
        remedy = f"its log says more: {log_file(paths.folder)}"
        return Finding("problem", f"the site runs. {last['state']}", remedy)
    return Finding("ok", "the site runs")


def _data(paths: SitePaths, settings: SiteSettings) -> Finding:
    """Whether there are rows, without reading them."""
    try:
        if settings.folder is None:
            FunctionSource(settings.entry or "")
            return Finding("ok", f"the function {settings.entry} can be imported")
        folder = FolderSource(paths.folder / settings.folder).folder
    except (OSError, ValueError) as reason:
        return Finding("problem", str(reason), "correct `folder` or `entry` in site.toml")
    tasks = sorted({path.stem for path in folder.iterdir() if path.suffix in SUFFIXES})
    text = f"rows of {shortened(tasks, 8)}; name a task to check them" if tasks else "no rows"
    return _judged(bool(tasks), "problem", text, f"put {EXPECTED} into {folder}")


def check_rows(paths: SitePaths, task: str, offer: Offer | None = None) -> Iterator[Finding]:
    """Findings about the rows of a task, beside the last offer and the newest head, if any."""
    site = Site.load(paths.settings_file)
    settings, head = site.settings, newest_head(paths.state)
    offer = offer or last_offer(paths.state)
    try:
        data = site.source(task)
        if offer is not None:
            data = data.in_order(offer.columns, f"rows of {task}")
    except NoRows as reason:
        yield Finding("problem", str(reason), f"put {EXPECTED} into the folder of rows")
        return
    except (ValueError, OSError, ImportError) as reason:
        yield Finding("problem", str(reason))
        return
    kind, shape = "images" if data.is_images else "features", " x ".join(map(str, data.X.shape[1:]))
    classes = len({label for label in data.y if label is not None})
    text = f"{len(data.y):,} rows, {kind} {shape} ({data.X.dtype}), {classes} classes"
    yield Finding("ok", f"task {task}: {text}")
    # Under differential privacy, no class is withheld.
    private = settings.privacy == "dp" or (offer is not None and offer.privacy == "dp")
    least = 1 if private else least_rows(offer, settings)
    yield from check_labels(data.y, least, offer.classes if offer else (), head)
    missing = data.y.count(None)
    if missing and settings.pseudo_labels != "none" and not private:
        text = f"{missing:,} of {len(data.y):,} rows have no label: some may get a pseudo-label, "
        text += "which counts with the upload"
        yield Finding("warning", text, 'pseudo_labels = "none" in site.toml leaves them out')
    yield from _backbone(site, offer) if data.is_images else _features(site, data, offer, head)


def check_labels(
    y: Sequence[Any], least: int, classes: Collection[Label], head: Head | None
) -> Iterator[Finding]:
    """Rare classes, and labels that are not those of the federation."""
    counts = Counter(canonical(label) for label in y if label is not None)
    if not counts:
        yield Finding("problem", "no row has a label")
        return
    rare = [label for label, n in counts.items() if n < least]
    if len(rare) == len(counts):
        yield Finding("problem", f"no class has {least} rows, so nothing would be sent")
    elif rare:
        yield Finding("ok", f"withheld, with fewer than {least} rows each: {named(rare)}")
    known = set(classes) or set(head.classes if head is not None else ())
    if text := similar_labels(counts, known):
        yield Finding("warning", text, "use one spelling")
    strange = ordered(label for label in counts if label not in known)
    if strange and classes:
        text = f"the server does not accept the labels {named(strange)}; it lists {named(classes)}"
        remedy = "correct them, or ask its owner to add them to `classes` in server.toml"
        yield Finding("problem", text, remedy)


def _backbone(site: Site, offer: Offer | None) -> Iterator[Finding]:
    """Whether the backbone for images can be loaded and is that of the federation."""
    if site.backbone is None:
        remedy = "set `backbone` in site.toml"
        yield Finding("problem", "the rows are images, but site.toml names no backbone", remedy)
        return
    try:
        network = site.backbone()
        if offer is not None:
            require_same_source(network.source, offer.source)
    except (ValueError, OSError, ImportError) as reason:
        yield Finding("problem", str(reason))
    else:
        yield Finding("ok", f"images are prepared with {network.preprocess}")


def _features(site: Site, data: Rows, offer: Offer | None, head: Head | None) -> Iterator[Finding]:
    """Source, type, width, values and scale of features (n, d)."""
    if offer is None:
        yield Finding("ok", "the server has made no offer yet, so the rows were compared with none")
    prepared = KernelFeatures(data.X.shape[1]) if offer is None else offer.features()
    try:
        if offer is not None:
            offer.require(site.settings.federation, site.settings.source)
        prepared.prepare(data.X if offer is None else checked_sign(data.X, offer))
    except (ValueError, TypeError) as reason:
        yield Finding("problem", f"rows of {data.X.shape[1]} columns: {reason}")
        return
    if text := unequal_scales(data.X, data.columns, prepared.kind):
        yield Finding("warning", text, SCALE_ALIKE)
    if offer is not None:
        if text := unusual_columns(data.X, data.columns, offer.ranges):
            yield Finding("warning", f"{text}, as the server declares", PREPARED_ALIKE)
        yield from _labels(data, offer, head)


def _labels(data: Rows, offer: Offer, head: Head | None) -> Iterator[Finding]:
    """What the newest head makes of the rows."""
    if head is None or head.fingerprint != offer.fingerprint or not data.y:
        return
    rows = np.linspace(0, len(data.y) - 1, min(len(data.y), SAMPLE_ROWS)).astype(int)
    H = offer.features()(data.X[rows])
    y = [data.y[i] for i in rows]
    known = [i for i, label in enumerate(y) if label in head.classes]
    if len(known) >= 20 and len(head.classes) > 1:
        right = np.asarray(head.predict(H[known])).tolist()
        share = float(np.mean([a == y[i] for a, i in zip(right, known, strict=True)]))
        chance = max(Counter(y[i] for i in known).values()) / len(known)
        text = f"the newest classifier recognises {share:.0%} of the rows of known classes"
        remedy = "are labels swapped, or the features made in another way?"
        yield _judged(share >= POOR_SHARE * chance, "warning", text, remedy)
