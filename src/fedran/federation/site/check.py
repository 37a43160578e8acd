"""Checks a task's rows before anything is sent: ``fedran federation check SITE TASK``.

Every finding is one sentence. Errors are what the site or the server would refuse. Warnings are
likely mistakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, printable, shortened
from fedran.core.head import Head
from fedran.core.labels import Label, canonical, ordered, similar_labels
from fedran.core.scale import unequal_scales
from fedran.data.rows import Rows
from fedran.federation.protocol.messages import Offer, require_same_source
from fedran.federation.site.labels import describe_unlabelled, with_pseudo_labels
from fedran.federation.site.settings import SitePaths, last_offer, newest_head
from fedran.federation.site.upload import SCALE_ALIKE, Site, summarize_bytes
from fedran.wire.sizes import larger_than_rows, upload_bytes

SCALE = 10.0
"""Factor between the row energy of this site and of the others that is a likely mistake."""
POOR = 0.5
"""Share of the classifier's accuracy by chance above which it is not called poor."""
SAMPLE = 2000
"""Rows whose random features are computed."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, unusual or worth knowing."""

    level: Literal["error", "warning", "note"]
    text: str


def check_task(paths: SitePaths, task: str, offer: Offer | None = None) -> list[Finding]:
    """Findings about the rows of a task, beside the last offer and the newest head, if any."""
    return list(_findings(paths, task, offer))


def _findings(paths: SitePaths, task: str, offer: Offer | None) -> Iterator[Finding]:
    site, settings, state = Site.load(paths.settings_file), paths.settings(), paths.state
    offer = last_offer(state) if offer is None else offer
    try:
        data = site.source(task)
        if offer is not None:
            data = data.in_order(offer.columns, f"rows of {task}")
    except (Refused, FileNotFoundError) as reason:
        yield Finding("error", str(reason))
        return
    head = newest_head(state)
    yield _describe(data, task)
    yield from describe_columns(data, offer)
    asked = offer.privacy if offer is not None else "none"
    private = "dp" in (settings.privacy, asked)  # no class is withheld then
    least = 1 if private else settings.min_class_count
    yield from check_labels(data.y, least, offer.classes if offer else (), head)
    if data.is_images:
        yield from check_unlabelled(site, data, None)
        yield check_backbone(site, offer)
        return
    if offer is not None:
        try:
            offer.require(settings.federation, settings.source)
        except Refused as reason:
            yield Finding("error", str(reason))
    features = list(check_features(data.X, offer))
    yield from features
    sound = not any(finding.level == "error" for finding in features)
    kind = offer.kind if offer is not None else "cosine"
    if text := unequal_scales(data.X, data.columns, kind):
        yield Finding("warning", f"{text}; {SCALE_ALIKE}.")
    yield from check_unlabelled(site, data, offer if sound else None)
    if offer is None:
        yield Finding(
            "note",
            "This site has no offer of a server yet, so width, sign, columns and the scale of "
            "other sites were not compared. It comes when the site has connected.",
        )
    elif sound:
        yield from check_scale(data, offer, head)
        yield from check_size(site, data, offer)


def check_unlabelled(site: Site, data: Rows, offer: Offer | None) -> Iterator[Finding]:
    """Rows without a label, and how many get a pseudo-label. Without an offer, that is unknown."""
    missing, n = data.y.count(None), len(data.y)
    if not missing:
        return
    if site.settings.pseudo_labels == "none" or (offer is not None and offer.privacy == "dp"):
        yield Finding("note", f"{describe_unlabelled(n, missing, None)}.")
    elif offer is None:
        text = f"{missing:,} of {n:,} rows have no label; some may get a pseudo-label, which is "
        text += 'counted with the upload (pseudo_labels = "none" in site.toml leaves them out).'
        yield Finding("warning", text)
    else:
        fits = summarize_bytes(n, offer.out_features) <= site.work_bytes
        capacity = n if fits else site.capacity(offer.out_features)
        H = site.random_features(data, offer)
        found = with_pseudo_labels(H, data.y, capacity, offer.task, site.settings)
        accepted = missing - found.count(None)
        yield Finding("warning", f"{describe_unlabelled(n, missing, accepted)}.")


def check_backbone(site: Site, offer: Offer | None) -> Finding:
    """Whether the backbone for images can be loaded and is that of the federation."""
    if site.backbone is None:
        return Finding("error", "The rows are images, but site.toml names no backbone.")
    try:
        network = site.backbone()
        if offer is not None:
            require_same_source(network.source, offer.source)
    except (ValueError, OSError, ImportError) as reason:
        return Finding("error", str(reason))
    return Finding("note", f"Images are prepared with {network.preprocess}.")


def describe_columns(data: Rows, offer: Offer | None) -> Iterator[Finding]:
    """Which columns are features, and what their order is compared with."""
    listed, found = offer.columns if offer else (), data.columns
    if listed and found:
        yield Finding("note", "The columns are put in the order that the server lists.")
    elif found or (listed and not data.is_images):
        first, last = (printable(repr((found or listed)[i]), 60) for i in (0, -1))
        if found:
            text = f"The columns are features in the file's order, from {first} to {last}. It must "
            text += "be the same at all sites; `columns` in server.toml makes sure of it."
        else:
            text = "The columns have no names. They must be in the order that the server lists, "
            text += f"from {first} to {last}."
        yield Finding("note", text)


def check_features(X: NDArray[Any], offer: Offer | None) -> Iterator[Finding]:
    """Type, width, finiteness and sign of features (n, d)."""
    if X.dtype.kind not in "fiub":
        yield Finding("error", f"Features must be numbers, got the type {X.dtype}.")
        return
    if X.dtype.kind != "f":
        yield Finding("note", f"Features have the type {X.dtype}; they become float32.")
    if offer is not None and X.shape[1] != offer.in_features:
        text = f"The server expects {offer.in_features} columns, the rows have {X.shape[1]}."
        yield Finding("error", text)
        return
    bad = ~np.isfinite(X).all(axis=1)
    if bad.any():
        yield Finding(
            "error",
            f"{bad.sum():,} of {len(X):,} rows contain NaN or infinity, the first is row "
            f"{int(np.argmax(bad))}; remove or repair them.",
        )
        return
    zero = ~X.any(axis=1)
    if zero.any():
        yield Finding("warning", f"{zero.sum():,} of {len(X):,} rows are all zeros.")
    if offer is None or not X.size:
        return
    negative = float(np.mean(X < 0))
    if offer.kind == "hellinger" and negative:
        yield Finding(
            "error",
            f"{negative:.1%} of the values are negative, but the server declares features that "
            "are never negative (kind 'hellinger'). Scaled or centred features must not be sent "
            "here.",
        )
    elif offer.kind != "hellinger" and not negative:
        yield Finding(
            "note", f"No value is negative, although kind {offer.kind!r} allows any sign."
        )


def check_scale(data: Rows, offer: Offer, head: Head | None) -> Iterator[Finding]:
    """The energy of random features beside other sites', and what the newest head makes of them."""
    rows = np.linspace(0, len(data.y) - 1, min(len(data.y), SAMPLE)).astype(int)
    if not len(rows):
        return
    H = np.asarray(offer.features()(data.X[rows]), np.float64)
    energy = float(np.mean(np.sum(H**2, axis=1)))
    if offer.message == "summary" and offer.row_energy > 0 and energy > 0:
        ratio = energy / offer.row_energy
        if not 1 / SCALE <= ratio <= SCALE:
            yield Finding(
                "warning",
                f"The rows have {ratio:.3g} times the energy of other sites' rows. Are the "
                "features scaled in another way, or made by another backbone?",
            )
    if head is None or head.fingerprint != offer.features().fingerprint:
        return
    y = [data.y[i] for i in rows]
    known = [i for i, label in enumerate(y) if label in head.classes]
    if len(known) >= 20 and len(head.classes) > 1:
        right = np.asarray(head.predict(H[known].astype(np.float32))).tolist()
        share = float(np.mean([a == y[i] for a, i in zip(right, known, strict=True)]))
        chance = max(Counter(y[i] for i in known).values()) / len(known)
        text = f"The newest classifier recognises {share:.0%} of the rows of known classes."
        if share < POOR * chance:
            text += " Labels may be swapped, or the features made in another way."
        yield Finding("warning" if share < POOR * chance else "note", text)


def check_size(site: Site, data: Rows, offer: Offer) -> Iterator[Finding]:
    """Whether a summary fits the budget, and whether it is larger than the rows it describes."""
    counts = Counter(canonical(label) for label in data.y if label is not None)
    sent = [n for n in counts.values() if n >= site.settings.min_class_count]
    if offer.message != "summary" or offer.privacy != "none" or not sent:
        return
    try:
        rank = site.rank(site.limited(offer), sum(sent), len(sent))
    except Refused as reason:
        yield Finding("error", str(reason))
        return
    about = upload_bytes(offer.out_features, rank, len(sent))
    if text := larger_than_rows(about, len(data.y), data.X.shape[1]):
        yield Finding("note", f"About {text}.")


def check_labels(
    y: Sequence[Any], least: int, classes: Collection[Label], head: Head | None
) -> Iterator[Finding]:
    """Rare classes, and labels that are not those of the federation."""
    counts = Counter(canonical(label) for label in y if label is not None)
    if not counts:
        yield Finding("error", "No row has a label.")
        return
    rare = [label for label, n in counts.items() if n < least]
    if len(rare) == len(counts):
        yield Finding("error", f"No class has {least} rows, so nothing would be sent.")
    elif rare:
        yield Finding("note", f"Withheld, with fewer than {least} rows each: {_names(rare)}.")
    known = set(classes) or set(head.classes if head is not None else ())
    if text := similar_labels(counts, known):
        yield Finding("warning", f"{text}; use one spelling.")
    strange = [label for label in counts if label not in known]
    if strange and classes:
        listed = _names(classes)
        text = f"The server does not accept the labels {_names(strange)}; it lists {listed}. "
        text += "Correct them, or ask its owner to add them to `classes` in server.toml."
        yield Finding("error", text)
    elif strange and known:
        yield Finding("note", f"New to the federation: {_names(strange)}.")


def _names(labels: Collection[Label]) -> str:
    return shortened([printable(repr(label), 60) for label in ordered(labels)], 8)


def _describe(data: Rows, task: str) -> Finding:
    kind = "images" if data.is_images else "features"
    shape = " x ".join(map(str, data.X.shape[1:]))
    classes = len({label for label in data.y if label is not None})
    text = f"Task {task}: {len(data.y):,} rows, {kind} {shape} ({data.X.dtype}), {classes} classes."
    return Finding("note", text)
