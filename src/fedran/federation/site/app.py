"""How a site answers: it sends the uploads in its outbox, keeps receipts and the newest head.

Which rows it reads comes from the site's own configuration; a message can only name a task. Every
message gets an answer, whatever it contains.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedran.core.errors import Refused, printable
from fedran.core.fingerprint import require_same
from fedran.core.labels import Label
from fedran.core.solve.head import Head
from fedran.federation.protocol.class_counts import counts_to_json
from fedran.federation.protocol.configuration import load_settings
from fedran.federation.protocol.limits import (
    MAX_BLOBS,
    MAX_CLASSES,
    MAX_SETTLED,
    MESSAGE_BYTES,
)
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.logs import log_to
from fedran.federation.protocol.messages import PROTOCOL, Offer, Question
from fedran.federation.protocol.receipts import Code, read_receipts
from fedran.federation.secure.site.participant import Participant
from fedran.federation.secure.site.sum_files import SumFiles
from fedran.federation.site.failures import text_for_server, time_limit
from fedran.federation.site.held_out_rows import count_held_out, held_points
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.pseudo_labels import TooFewRows
from fedran.federation.site.settings import HEAD, OFFER, OUTBOX, SiteSettings, last_offer
from fedran.federation.site.source import NoRows
from fedran.federation.site.upload import Site
from fedran.wire.codec import decode
from fedran.wire.files import write_atomically
from fedran.wire.validation import plain_calibration

LIKELY_CAUSES = (
    "likely causes: features of another scale or backbone, rows that are counted twice, labels "
    "that are not named as at the other sites. Correct the data and run the task again: the site "
    "then makes a new upload"
)
NOTHING = NoRows, TooFewRows
"""Reasons for which a site has nothing to send. They are no failures."""
log = logging.getLogger(__name__)
Fields = Mapping[str, Any]
Blobs = Mapping[str, bytes]


def respond(
    kind: Question, fields: Fields, blobs: Blobs, file: Path, unreadable: Refused | None = None
) -> tuple[Fields, Blobs]:
    """Fields and blobs of the answer to a message. There is one whatever happens.

    ``file`` is the site's configuration, and ``unreadable`` says why the message has neither.
    """
    reply, received = Reply(), set[str]()
    with reply.catch_errors():
        site = reply.site = LocalSite.load(file)
        if unreadable is not None:
            reply.report(unreadable)
        with reply.catch_errors():
            received = site.settle(fields.get("receipts", []))
        if kind is Question.OFFER:
            answer_offer(fields, blobs, reply, site, received)
        elif kind is Question.VALIDATE:
            validate_heads(fields, blobs, reply, site)
        elif (head := blobs.get("head")) is not None:
            keep_head(head, site)
    return reply.fields(), reply.blobs


def answer_offer(
    fields: Fields, blobs: Blobs, reply: Reply, site: LocalSite, received: set[str]
) -> None:
    """Send the envelope of the offered task, then every other one that the server may lack.

    Without an offer no upload is made. The server asks a second time if the reply had no room for
    all uploads. It then says what it ``received``.
    """
    first, plain = list[str](), site.settings.privacy == "none"
    with reply.catch_errors():
        if fields.get("offer") is not None:
            offer = Offer.read(fields["offer"])
            first, plain = [offer.task, *offer.earlier], plain and offer.privacy == "none"
            site.accept(offer)
            if offer.privacy == "none":
                make_uploads(offer, reply, site)
            else:
                answer_sums(offer, fields.get("sums"), blobs, reply, site)
    if not plain:
        return
    pending = site.outbox.pending()
    order = dict.fromkeys([task for task in first if task in pending] + pending)
    for task in (task for task in order if task not in received):
        with reply.catch_errors():
            if blob := site.outbox.envelope(task):  # none if it is damaged
                reply.add(task, blob)
    held = held_points(site.outbox, site.settings.hold_out)
    classes: dict[Label, None] = dict.fromkeys(c for points in held for c in points.classes)
    reply.extra["validated"] = [*classes][:MAX_CLASSES]


def make_uploads(offer: Offer, reply: Reply, site: LocalSite) -> None:
    """Make the upload of the offered task, and those of earlier tasks that are lost or missing.

    Missing rows of an earlier task are not a problem.
    """
    with site.one_message(), time_limit(site.settings.seconds):
        due = site.outbox.to_make((offer.task, *offer.earlier))
        if not due:
            return
        maker = Site.load(site.file)
        for task in sorted(due, key=lambda task: task != offer.task):
            try:
                maker.prepare(replace(offer, task=task, earlier=()))
            except (Exception, SystemExit) as reason:
                if not (isinstance(reason, NOTHING) and task in offer.earlier):
                    reply.report(reason, f"task {task}: ")


def validate_heads(fields: Fields, blobs: Blobs, reply: Reply, site: LocalSite) -> None:
    """Count how many of the site's validation rows each head labels correctly, and how surely."""
    held, offer = held_points(site.outbox, site.settings.hold_out), last_offer(site.state)
    if not held or offer is None:
        raise Refused("validation", "a site with validation rows and an offer", "none")
    if site.settings.privacy != "none" or offer.privacy != "none":
        raise Refused("validation", "a federation without secure sums", offer.privacy)
    counts, histograms = count_held_out(held, offer, blobs, fields)
    reply.extra["counts"] = {name: counts_to_json(found) for name, found in counts.items()}
    told = {name: plain_calibration(found) for name, found in histograms.items()}
    reply.extra["histograms"] = told


def answer_sums(
    offer: Offer, given: object, requests: Blobs, reply: Reply, site: LocalSite
) -> None:
    """Answer the requests of secure sums. One that is refused does not stop the others.

    A task without rows is no problem unless it is the offered one.
    """
    fields = given if isinstance(given, Mapping) else {}
    contents = fields.get("contents")
    known = contents if isinstance(contents, Mapping) else {}
    refused: dict[str, str] = reply.extra.setdefault("refused", {})
    with site.one_message():
        me = Participant.load(site.file, site.settings, fields.get("roster"))
        for name, request in sorted(requests.items()):
            try:
                reply.blobs[name] = me.answer(offer, request, known.get(name))
            except Exception as reason:
                what = f"secure sum {printable(name)}"
                refused[name] = text_for_server(reason, site.file.parent, what)
                if name.rpartition(".")[0] == offer.task:
                    reply.note(refused[name], reason)


def keep_head(head: bytes, site: LocalSite) -> None:
    """Keep the newest head. One for other features than the offered ones is refused."""
    offer, found = last_offer(site.state), decode(head, Head)
    if offer is not None:
        require_same(offer.fingerprint, found.fingerprint, "site and head")
    write_atomically(site.state / HEAD, head)


@dataclass(frozen=True)
class LocalSite:
    """The site that this machine's configuration describes, with its outbox and head."""

    file: Path
    settings: SiteSettings
    outbox: Outbox

    @classmethod
    def load(cls, file: Path) -> LocalSite:
        """The site of a configuration file. Its log goes to its folder."""
        settings = load_settings(SiteSettings, file)
        log_to(file.parent)
        return cls(file, settings, Outbox(file.parent / settings.state / OUTBOX))

    def accept(self, offer: Offer) -> None:
        """Keep the offer, unless it is for other features or protects this site too little."""
        demanded = self.settings.privacy
        if demanded not in ("none", offer.privacy):
            raise Refused("privacy", f"{demanded}, as this site's settings demand", offer.privacy)
        offer.require(self.settings.federation, self.settings.source)
        write_atomically(self.state / OFFER, json.dumps(offer.fields()).encode())

    def one_message(self) -> AbstractContextManager[None]:
        """Work for one message at a time. Another one waits as long as the work may take."""
        return locked(self.state / OUTBOX, self.settings.seconds)

    def settle(self, receipts: object) -> set[str]:
        """Write the receipts for this site to the outbox; returns the tasks that arrived."""
        mine = [r for r in read_receipts(receipts) if r.client == self.settings.client]
        for receipt in mine:
            if self.sums.state(receipt.task) is not None:
                # Not while a request is answered: its record of what was revealed would be lost.
                with self.one_message():
                    self.sums.settle(receipt)
                continue
            before = self.outbox.receipt(receipt.task)
            self.outbox.settle(receipt)
            if receipt != before:
                answer = f"{receipt.outcome} {receipt.reason}".strip()
                what = (printable(receipt.task), printable(answer))
                log.info("task %s: %s", *what, extra=receipt.log_fields())
                if receipt.correctable:
                    log.warning("task %s: %s", printable(receipt.task), LIKELY_CAUSES)
        return {receipt.task for receipt in mine if receipt.code != Code.LOST}

    @property
    def sums(self) -> SumFiles:
        """What this site remembers of secure sums."""
        return SumFiles(self.state)

    @property
    def state(self) -> Path:
        """The folder of the outbox, of the last offer and of the newest head."""
        return self.file.parent / self.settings.state


@dataclass
class Reply:
    """The answer to the server: who answers, which head it has, envelopes, and what went wrong."""

    site: LocalSite | None = None
    problems: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    failed: bool = False
    """Whether a problem is more than rows that do not exist yet."""
    more: bool = False
    """Whether the site has uploads for which this reply has no room."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields of some answers: ``validated`` are classes with held-out rows, ``counts`` and
    ``histograms`` say what heads make of them, ``refused`` names secure sums, with reasons."""

    def add(self, task: str, blob: bytes) -> None:
        """Add an envelope if there is room for it."""
        size = sum(map(len, self.blobs.values())) + len(blob)
        if self.blobs and (size > MESSAGE_BYTES or len(self.blobs) >= MAX_BLOBS):
            self.more = True
            log.info("task %s: the message is full; sent with the next one", task)
        else:
            self.blobs[task] = blob

    @contextmanager
    def catch_errors(self) -> Iterator[None]:
        """Report an exception of the block to the server, and continue after the block."""
        try:
            yield
        except Exception as reason:
            self.report(reason)

    def report(self, reason: BaseException, what: str = "") -> None:
        """Tell the server why something is missing."""
        folder = self.site.file.parent if self.site else None
        self.note(what + text_for_server(reason, folder), reason)

    def note(self, text: str, reason: BaseException) -> None:
        """A site that has nothing to send has not failed."""
        self.problems.append(text)
        self.failed = self.failed or not isinstance(reason, NOTHING)

    def fields(self) -> dict[str, Any]:
        """The fields of the message to the server."""
        fields: dict[str, Any] = {"client": "", "head": "", "settled": [], "waiting": []}
        if self.site is not None:
            with self.catch_errors():
                settled = [*self.site.outbox.settled(), *self.site.sums.settled()][-MAX_SETTLED:]
                waiting = self.site.sums.waiting()[-MAX_SETTLED:]
                client, path = self.site.settings.client, self.site.state / HEAD
                head = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                fields = {"client": client, "head": head, "settled": settled, "waiting": waiting}
        problems = "; ".join(filter(None, self.problems))
        if problems:
            level = logging.WARNING if self.failed else logging.INFO
            log.log(level, "reported to the server: %s", problems)
        fields |= {"told": problems, "failed": self.failed, "more": self.more, "protocol": PROTOCOL}
        return fields | {name: value for name, value in self.extra.items() if value}
