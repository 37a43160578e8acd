"""The Flower app of a site: answers with what its outbox holds, keeps receipts and heads.

Which rows it reads, and where, comes from the file that FEDRAN_SITE names on the site's own
machine; a message can only name a task.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedran.core.errors import Refused
from fedran.core.head import Head
from fedran.federation.identity import SiteKey
from fedran.federation.offer import Offer
from fedran.federation.outbox import Outbox
from fedran.federation.records import blobs_of, content, fields_of, read_receipts
from fedran.federation.settings import SiteSettings, configured
from fedran.federation.site import Site
from fedran.federation.source import make_source
from fedran.wire.codec import decode
from fedran.wire.files import write_atomically
from fedran.wire.limits import DEFAULT_LIMITS

VARIABLE = "FEDRAN_SITE"
log = logging.getLogger(__name__)
app = ClientApp()


def site_here() -> tuple[Site, Path]:
    """The site that this machine's configuration describes, and its folder of state."""
    settings, here = configured(SiteSettings, VARIABLE, "site's")
    folder = None if settings.folder is None else str(here / settings.folder)
    state = here / settings.state
    site = Site(
        settings.client,
        settings.federation,
        SiteKey.load(here / settings.key),
        make_source(folder=folder, entry=settings.entry),
        Outbox(state / "outbox"),
        min_class_count=settings.min_class_count,
        pseudo_labels=settings.pseudo_labels,
    )
    return site, state


@app.train()
def upload(message: Message, context: Context) -> Message:  # noqa: ARG001
    """The envelope for the task that is offered, and every other one not yet settled."""
    site, _ = site_here()
    told, blobs = "", {}
    offer = Offer.read(fields_of(message)["offer"])
    try:
        site.prepare(offer)
    except (Refused, FileNotFoundError) as reason:
        told = str(reason)
        log.warning("task %s: nothing to send: %s", offer.task, reason)
    for task in site.outbox.pending():
        blobs[task] = site.outbox.envelope(task) or b""
    return Message(content({"client": site.client, "told": told}, blobs), reply_to=message)


@app.query()
def settle(message: Message, context: Context) -> Message:  # noqa: ARG001
    """Keep the receipts and the newest head."""
    site, state = site_here()
    for receipt in read_receipts(fields_of(message).get("receipts", [])):
        if receipt.client == site.client:
            site.outbox.settle(receipt)
            log.info("task %s: %s %s", receipt.task, receipt.outcome, receipt.reason)
    head = blobs_of(message, DEFAULT_LIMITS.message).get("head")
    if head is not None:
        decode(head, Head)
        write_atomically(state / "head.fedran", head)
    return Message(content({"client": site.client}, {}), reply_to=message)
