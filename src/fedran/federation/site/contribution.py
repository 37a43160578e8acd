"""A site's contribution to a secure sum: the totals of a task's rows as integers, in a file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.dp import Mechanism
from fedran.core.errors import Refused
from fedran.core.labels import Label
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
    offer.require(site.federation, site.made_by)
    if offer.out_features > site.max_out_features:
        expected = f"at most {site.max_out_features}, the site's max_out_features"
        raise Refused("out_features", expected, offer.out_features)
    offer = replace(offer, classes=content.classes)
    data = site.source(offer.task)
    check_labels(data.y, offer)
    phi, features = offer.features(), site.extractor(data, offer)
    if content.noise is not None:
        labelled = np.flatnonzero([label is not None for label in data.y])
        if len(labelled) > content.max_rows:
            raise Refused("rows", f"at most {content.max_rows}, the server's `max_rows`", "more")
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
