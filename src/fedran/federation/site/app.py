"""The Flower app of a site: answers with what its outbox holds, keeps receipts and heads.

Which rows it reads, and where, comes from the file that FEDRAN_SITE names on the site's own
machine; a message can only name a task. Whatever a message holds, it gets an answer.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedran.core.errors import Refused, printable
from fedran.core.fingerprint import require_same
from fedran.core.head import Head
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.logs import log_to
from fedran.federation.protocol.messages import Offer
from fedran.federation.protocol.settings import load_settings
from fedran.federation.protocol.transport import blobs_of, content, fields_of, read_receipts
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import SiteSettings
from fedran.federation.site.worker import because, work, work_apart
from fedran.wire.codec import decode
from fedran.wire.files import write_atomically
from fedran.wire.validation import DEFAULT_LIMITS

VARIABLE = "FEDRAN_SITE"
MOST_AT_ONCE = 16 * 2**20
"""Bytes of envelopes in one message, unless a single one is larger: what was missed in months
must not come at the server all at once."""
log = logging.getLogger(__name__)
app = ClientApp()


@app.train()
def upload(message: Message, context: Context) -> Message:
    """The envelope for the task that is offered, and every other one not yet settled.

    Without an offer nothing is made, and what was refused before is not sent again.
    """
    reply, given = Reply(), None
    with reply.telling():
        here = reply.here = Here.find(context)
        with reply.telling():
            given = fields_of(message).get("offer")
            if given is not None:
                reply.told.append(here.make(Offer.read(given)))
        for task in here.outbox.pending(refused=given is not None):
            with reply.telling():
                blob = here.outbox.envelope(task) or b""
                if reply.blobs and reply.size + len(blob) > MOST_AT_ONCE:
                    log.info("task %s: goes with the next message", task)
                    continue
                reply.blobs[task] = blob
    return reply.to(message)


@app.query()
def settle(message: Message, context: Context) -> Message:
    """Keep the receipts and the newest head."""
    reply = Reply()
    with reply.telling():
        here = reply.here = Here.find(context)
        with reply.telling():
            for receipt in read_receipts(fields_of(message).get("receipts", [])):
                if receipt.client == here.settings.client:
                    here.outbox.settle(receipt)
                    words = (receipt.task, " ".join((receipt.outcome, receipt.reason)).strip())
                    log.info("task %s: %s", *map(printable, words))
        with reply.telling():
            head = blobs_of(message, DEFAULT_LIMITS.message).get("head")
            if head is not None:
                here.keep(head)
    return reply.to(message)


@dataclass(frozen=True)
class Here:
    """The site that this machine's configuration describes, and what it remembers."""

    file: Path
    settings: SiteSettings
    outbox: Outbox
    simulated: bool = False
    """One of many in a process of the simulation engine: the work is done there."""

    @classmethod
    def find(cls, context: Context) -> Here:
        """The site of FEDRAN_SITE; of a folder with several, the one with this node's number."""
        where = os.environ.get(VARIABLE, "")
        file = site_file(where, context.node_config.get("partition-id"))
        settings = load_settings(SiteSettings, file)
        log_to(file.parent)
        outbox = Outbox(file.parent / settings.state / "outbox")
        return cls(file, settings, outbox, simulated=Path(where).is_dir())

    def make(self, offer: Offer) -> str:
        """Have the upload for a task in the outbox; why not, in a sentence."""
        offer.require(self.settings.federation, self.settings.source)
        write_atomically(self._state("offer.json"), json.dumps(offer.fields()).encode())
        with locked(self._state("outbox"), self.settings.seconds):  # one message at a time
            if not self.outbox.lost() and all(map(self.outbox.has, (offer.task, *offer.earlier))):
                return ""
            if self.settings.own_process and not self.simulated:
                return work_apart(self.file, self.settings, offer)
            return work(self.file, offer)

    def keep(self, head: bytes) -> None:
        """Put a head in the place of the old one; refused unless it is for the offered features."""
        found, path = decode(head, Head), self._state("offer.json")
        if path.is_file():
            offer = Offer.read(json.loads(path.read_bytes()))
            require_same(offer.features().fingerprint, found.fingerprint, "site and head")
        write_atomically(self._state("head.fedran"), head)

    def head(self) -> str:
        """SHA-256 of the head that is kept; empty without one."""
        path = self._state("head.fedran")
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""

    def _state(self, name: str) -> Path:
        return self.file.parent / self.settings.state / name


@dataclass
class Reply:
    """What the server hears: who answers, what went wrong, which head is held, envelopes."""

    here: Here | None = None
    told: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the envelopes."""
        return sum(map(len, self.blobs.values()))

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell of what fails inside, and go on."""
        try:
            yield
        except Exception as reason:
            self.told.append(because(reason, self.here.file.parent if self.here else None))

    def to(self, message: Message) -> Message:
        """As Flower carries it."""
        fields = {"client": "", "head": ""}
        if self.here is not None:
            with self.telling():
                fields = {"client": self.here.settings.client, "head": self.here.head()}
        told = "; ".join(filter(None, self.told))
        if told:
            log.warning("told the server: %s", told)
        return Message(content({**fields, "told": told}, self.blobs), reply_to=message)


def site_file(where: str, number: object) -> Path:
    """The configuration at ``where``: a file, or the numbered one of ``FOLDER/NAME/site.toml``."""
    if not where:
        raise Refused(VARIABLE, "the path of the site's configuration (.toml)", "nothing")
    path = Path(where).absolute()
    if not path.is_dir():
        return path
    found = sorted(path.glob("*/site.toml"))
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(found):
        raise Refused("partition-id", f"a number below {len(found)}, one of the sites", number)
    return found[number]
