"""A secure sum at the server: what its sites agree on before, and its place in the store after.

The sum of a cohort of sites is stored as one upload with its members, signed by the server. So
everything that the store promises holds for it too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.private.noisy_sums import mean_row
from fedran.federation.protocol.identity import Statement, cohort_name
from fedran.federation.protocol.limits import MAX_SITES
from fedran.federation.protocol.messages import Envelope
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.secure.masking.attempt import Attempt, roster_digest
from fedran.federation.secure.masking.contribution import Content, sum_to_summary
from fedran.federation.secure.server.open_sum import OpenSum
from fedran.federation.server.store.store import Store
from fedran.wire.codec import encode

log = logging.getLogger(__name__)


def make_content(store: Store, task: str, center: tuple[float, ...] = ()) -> Content:
    """What the numbers of a new sum mean, as the settings say now."""
    settings = store.settings
    assert settings.labels is not None
    return Content(
        settings.labels,
        settings.sketch_columns,
        zlib.crc32(f"{settings.federation} {task}".encode()),
        min(len(store.roster.clients), MAX_SITES),
        settings.max_rows,
        settings.noise,
        center,
    )


def make_attempt(store: Store, task: str, number: int, content: Content) -> Attempt:
    """What the sites of an attempt must agree on, as roster and settings say now."""
    fingerprint = store.fingerprint
    return Attempt(
        store.settings.federation,
        task,
        number,
        fingerprint.hash,
        content.digest,
        content.length(fingerprint),
        roster_digest(store.roster.clients),
        store.settings.min_sites,
    )


def released_mean(store: Store) -> tuple[float, ...]:
    """The mean of all rows released before, with noise; empty without noise or rows."""
    released = store.aggregator.class_sums if store.settings.noise is not None else None
    return tuple(mean_row(released).tolist()) if released else ()


def next_number(store: Store, task: str) -> int:
    """A number that no attempt at this sum had. It is on disk before it is used.

    After a restore, the ledger may know more than the list of numbers.
    """
    numbers = json.loads(store.database.fact("attempts") or "{}")
    charged = [charge.attempt for charge in store.database.ledger() if charge.task == task]
    numbers[task] = 1 + max([numbers.get(task, 0), *charged])
    store.database.set_fact("attempts", json.dumps(numbers))
    return int(numbers[task])


def receive_sum(store: Store, opened: OpenSum, total: NDArray[np.uint32]) -> Receipt:
    """The store's decision about the total of a sum. One that describes no rows is refused."""
    attempt, fingerprint = opened.attempt, store.fingerprint
    client, task = cohort_name(attempt.number), attempt.task
    known = store.state.digest((client, task))
    if known is not None:  # the server was killed after the store had it
        return Receipt(Code.DUPLICATE, client, task, known)
    assert store.key is not None
    members = tuple((member, task) for member in opened.state.survivors)
    width = store.settings.out_features
    try:
        summary = sum_to_summary(total, opened.content, fingerprint, width, len(members))
    except Refused as reason:
        told = f"the sum describes no rows ({reason}); a site has added other numbers"
        receipt = Receipt(Code.INVALID, client, task, "?", told)
        store.events.write("upload", **receipt.fields(), verified=True, bytes=0, members=0)
    else:
        upload = encode(summary, "float32")
        said = Statement(
            attempt.federation,
            client,
            task,
            fingerprint.hash,
            hashlib.sha256(upload).hexdigest(),
            members,
            sum_number=attempt.number,
        )
        receipt = store.receive(Envelope(said, store.key.sign(said), upload).to_bytes())
    log.info("%s, %s: %s", client, task, f"{receipt.outcome} {receipt.reason}".strip())
    return receipt
