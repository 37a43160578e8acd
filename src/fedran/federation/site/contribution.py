"""A site's contribution to a secure sum: the totals of a task's rows as integers, in a file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.dp import Mechanism
from fedran.core.labels import Label, encode_labels
from fedran.core.summarize import Summarizer
from fedran.core.totals import totals
from fedran.federation.protocol.messages import Offer
from fedran.federation.secure.contribution import Content, encode_contribution
from fedran.federation.site.upload import BATCH_ROWS, Site, check_labels, rows_to_send

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
    if content.noise is not None:
        labelled = rows_with_noise(data.y, content)
        return private_contribution(
            content.mechanism(phi.fingerprint, encoded_omega),
            lambda rows: np.asarray(phi(features(data.X[rows]))),
            data.y,
            labelled,
            content.classes,
        )

    def H(rows: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(phi(features(data.X[rows])))

    capacity = Summarizer(phi.out_features, rank=1, max_bytes=site.work_bytes).capacity
    y = site.with_pseudo_labels(H, data.y, capacity, offer.task)
    kept = rows_to_send(y, site.min_class_count, offer.task)
    omega = content.test_matrix(phi.out_features, encoded_omega)
    batches = [kept[i : i + BATCH_ROWS] for i in range(0, len(kept), BATCH_ROWS)]
    found = sum(totals(H(rows), [y[i] for i in rows], content.classes, omega) for rows in batches)
    assert not isinstance(found, int)  # there is at least one row
    log.info("task %s: totals of %d rows for a secure sum", offer.task, len(kept))
    return encode_contribution(found, content, phi.fingerprint)


def rows_with_noise(y: list[Any], content: Content) -> NDArray[np.int64]:
    """The rows of the listed classes, which a sum with noise adds. Nothing is refused here.

    A refusal that depends on single rows would tell the server about them without any noise, and
    it could ask with one class list or ``max_rows`` after the other. The site's log tells instead.
    Too many rows make the sum useless, not less private: it is modulo 2^32.
    """
    found, codes = encode_labels(y, len(y))
    listed = np.array([label in content.classes for label in found] + [False])
    rows = np.flatnonzero(listed[codes])  # the last entry is for rows without a label
    if strange := int(np.sum(codes >= 0)) - len(rows):
        log.warning("%d rows are left out: the server does not list their labels", strange)
    if len(rows) > content.max_rows:
        log.warning("%d rows, and the server's max_rows is %d", len(rows), content.max_rows)
    return rows


def private_contribution(
    mechanism: Mechanism,
    H: Callable[[NDArray[np.int64]], NDArray[Any]],
    y: list[Any],
    labelled: NDArray[np.int64],
    classes: tuple[Label, ...],
) -> NDArray[np.uint32]:
    """The sums of all labelled rows and this site's share of the noise, modulo 2^32.

    No class is withheld and no pseudo-label is given: both would let one row decide about others,
    and the noise only covers its own contribution.
    """
    vector = mechanism.noise(len(classes))
    for i in range(0, len(labelled), BATCH_ROWS):
        rows = labelled[i : i + BATCH_ROWS]
        vector += mechanism.sums(H(rows), [y[k] for k in rows], classes)
    return vector.astype(np.uint32)
