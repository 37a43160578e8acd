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
from fedran.core.summary import Summary
from fedran.federation.protocol.identity import Statement, cohort_name
from fedran.federation.protocol.limits import MAX_SITES
from fedran.federation.protocol.messages import Envelope
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.secure.masking.attempt import Attempt, roster_digest
from fedran.federation.secure.masking.contribution import (
    Content,
    encode_aware_omega,
    encode_center,
    sum_to_summary,
)
from fedran.federation.secure.server.coordinator import OpenSum
from fedran.federation.server.store.store import Store
from fedran.wire.codec import encode

log = logging.getLogger(__name__)


def make_content(store: Store, task: str, omega: str) -> Content:
    """What the numbers of a new sum mean, as the settings say now."""
    settings = store.settings
    assert settings.labels is not None
    return Content(
        settings.labels,
        settings.sketch_columns,
        omega,
        zlib.crc32(f"{settings.federation} {task}".encode()),
        min(len(store.roster.clients), MAX_SITES),
        settings.max_rows,
        settings.noise,
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


def next_number(store: Store, task: str, at_least: int = 1) -> int:
    """A number that no attempt at this sum had. It is on disk before it is used.

    After a restore, the ledger and the sums in the store may know more than the list of numbers.
    """
    numbers = json.loads(store.database.fact("attempts") or "{}")
    held = store.database
    used = [charge.attempt for charge in held.ledger() if charge.task == task]
    for known in (held.uploads(), held.tombstones()):
        used += [found.sum_number for found in known if found.task == task]
    numbers[task] = max([at_least, *(number + 1 for number in (numbers.get(task, 0), *used))])
    store.database.set_fact("attempts", json.dumps(numbers))
    return int(numbers[task])


def task_before(store: Store, task: str) -> bytes:
    """The encoded test matrix of a sketch that is aware of the task before; empty: blind.

    With noise, the mean of all rows released before.
    """
    columns = store.settings.sketch_columns
    if store.settings.noise is not None:
        held = store.aggregator.class_sums
        return encode_center(mean_row(held)) if held else b""
    earlier = [u for u in store.database.uploads() if u.task != task]
    summary = store.database.message(earlier[-1]) if columns and earlier else None
    if not isinstance(summary, Summary):
        return b""
    return encode_aware_omega(summary, columns, zlib.crc32(task.encode()))


def receive_sum(store: Store, opened: OpenSum, total: NDArray[np.uint32]) -> Receipt:
    """The store's decision about the total of a sum. One that describes no rows is refused."""
    attempt, fingerprint = opened.attempt, store.fingerprint
    survivors = opened.state.survivors
    client, task = cohort_name(attempt.number), attempt.task
    known = store.state.digest((client, task))
    if known is not None:  # the server was killed after the store had it
        return Receipt(Code.DUPLICATE, client, task, known)
    assert store.key is not None
    try:
        summary = sum_to_summary(
            total,
            opened.content,
            fingerprint,
            store.settings.out_features,
            len(survivors),
            opened.omega,
        )
    except Refused as reason:
        told = f"the sum describes no rows ({reason}); a site has added other numbers"
        receipt = Receipt(Code.INVALID, client, task, "?", told)
        store.events.write("upload", **receipt.fields(), verified=True, bytes=0, members=0)
    else:
        upload = encode(summary, "float32")
        members = tuple((member, task) for member in survivors)
        digest = hashlib.sha256(upload).hexdigest()
        said = Statement(
            attempt.federation,
            client,
            task,
            fingerprint.hash,
            digest,
            members,
            sum_number=attempt.number,
        )
        receipt = store.receive(Envelope(said, store.key.sign(said), upload).to_bytes())
    log.info("%s, %s: %s", client, task, f"{receipt.outcome} {receipt.reason}".strip())
    return receipt
