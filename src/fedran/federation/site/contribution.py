"""A site's contribution to a secure sum: the totals of a task's rows as integers, in a file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.dp import Mechanism
from fedran.core.labels import encode_labels
from fedran.core.summarize import Summarizer
from fedran.core.totals import totals
from fedran.federation.protocol.messages import Offer
from fedran.federation.secure.contribution import Content, encode_contribution
from fedran.federation.site.upload import BATCH_ROWS, Site, check_labels, describe_unlabelled

log = logging.getLogger(__name__)


def make_contribution(
    site: Site, offer: Offer, content: Content, encoded_omega: bytes
) -> NDArray[np.uint32]:
    """The integers that this site adds for the offered task.

    Classes with fewer than ``min_class_count`` rows are withheld, as in an upload: another site may
    have none of them, and then the sum reveals theirs. Batches of rows are added up, so memory
    does not grow with the number of rows.
    """
    offer = replace(offer, classes=content.classes)
    data = site.source(offer.task)
    if content.noise is None:
        check_labels(data.y, offer)
    phi, features = offer.features(), site.extractor(data, offer)

    def H(rows: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(phi(features(data.X[rows])))

    if content.noise is not None:
        mechanism = content.mechanism(phi.fingerprint, encoded_omega)
        return private_contribution(mechanism, H, data.y, content)
    capacity = Summarizer(phi.out_features, rank=1, max_bytes=site.work_bytes).capacity
    y, kept = site.choose_rows(H, data.y, capacity, offer.task)
    omega = content.test_matrix(phi.out_features, encoded_omega)
    batches = [kept[i : i + BATCH_ROWS] for i in range(0, len(kept), BATCH_ROWS)]
    found = sum(totals(H(rows), [y[i] for i in rows], content.classes, omega) for rows in batches)
    assert not isinstance(found, int)  # there is at least one row
    log.info("task %s: totals of %d rows for a secure sum", offer.task, len(kept))
    return encode_contribution(found, content, phi.fingerprint)


def private_contribution(
    mechanism: Mechanism,
    H: Callable[[NDArray[np.int64]], NDArray[Any]],
    y: list[Any],
    content: Content,
) -> NDArray[np.uint32]:
    """The sums of all rows of the listed classes and this site's share of the noise, modulo 2^32.

    No class is withheld and no pseudo-label is given: both would let one row decide about others,
    and the noise only covers its own contribution. For the same reason no label and no number of
    rows is refused: the site's log tells instead. Too many rows make the sum useless, not less
    private.
    """
    found, codes = encode_labels(y, len(y))
    listed = np.array([label in content.classes for label in found] + [False])
    labelled = np.flatnonzero(listed[codes])  # the last entry is for rows without a label
    if strange := int(np.sum(codes >= 0)) - len(labelled):
        log.warning("%d rows are left out: the server does not list their labels", strange)
    if missing := int(np.sum(codes < 0)):
        log.warning("%s", describe_unlabelled(len(y), missing, None))
    if len(labelled) > content.max_rows:
        log.warning("%d rows, and the server's max_rows is %d", len(labelled), content.max_rows)
    vector = mechanism.noise(len(content.classes))
    for i in range(0, len(labelled), BATCH_ROWS):
        rows = labelled[i : i + BATCH_ROWS]
        vector += mechanism.sums(H(rows), [y[k] for k in rows], content.classes)
    return vector.astype(np.uint32)
