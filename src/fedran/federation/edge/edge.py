"""An edge aggregator: a site that sums the uploads of its members and forwards one upload.

A member's envelope is checked as the server would check it and written to a database before it is
acknowledged. A forwarded sum carries what its members signed and goes into the site's outbox. That
envelope is also the record of what was forwarded, so that no crash can put a member into two sums.
If a member revises its upload, or the server asks for a sum without it, the sum is made again as a
revision.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import reduce
from itertools import count
from operator import add
from pathlib import Path

from fedran.core.aggregator import Aggregator
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint, require_same
from fedran.core.mixture import Mixture
from fedran.core.summary import Summary, combine
from fedran.federation.protocol.identity import (
    SUM,
    Proof,
    SiteKey,
    UploadId,
    base_task,
    check_task,
)
from fedran.federation.protocol.messages import Envelope, Offer, open_envelope, seal
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.database import Database
from fedran.federation.server.schema import Tombstone
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.validation import (
    check_accounts,
    check_not_covered,
    check_not_forgotten,
    check_parts,
    check_sender,
)
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import SiteSettings
from fedran.wire.codec import decode_message, encode
from fedran.wire.container import unpack
from fedran.wire.files import refusals_name_file
from fedran.wire.plan import plan
from fedran.wire.validation import DEFAULT_LIMITS, FILE_LIMITS

LARGEST_UPLOAD = ServerSettings.largest_upload
"""Bytes of a sum that a server with default settings still reads."""


class ForwardConflict(OSError):
    """Another process put a sum of the same name into the outbox."""


class UploadMissing(OSError):
    """An upload of which a sum was made is not in the edge's database any more."""


class Edge:
    """Uploads of members in one folder, and sums of them that go into an outbox.

    Members may be edges themselves: their sums are accepted too, and the members of these sums
    are listed in the forwarded one. Only one process may use the folder; it holds the lock of the
    outbox (``locked``).

    >>> import tempfile, numpy as np, fedran
    >>> member, key, folder = SiteKey.generate(), SiteKey.generate(), Path(tempfile.mkdtemp())
    >>> phi = fedran.RandomFeatures(3, 8)
    >>> s = fedran.summarize(phi(np.eye(3)), [0, 1, 1], fingerprint=phi.fingerprint)
    >>> fields = {"federation": "trial", "task": "may", "fingerprint": phi.fingerprint.hash}
    >>> blob = seal(encode(s), member, client="ward-1", **fields).to_bytes()
    >>> members, outbox = Roster({"ward-1": member.public}), Outbox(folder / "outbox")
    >>> settings = SiteSettings("trial", "hospital", folder="data")
    >>> edge = Edge(folder / "edge", settings, key, members, outbox)
    >>> edge.receive(blob).outcome, edge.forward("may").statement.members
    ('accepted', (('ward-1', 'may'),))
    >>> edge.forward("may"), outbox.pending()
    (None, ['may.sum-1'])
    >>> edge.close()
    """

    def __init__(
        self,
        folder: str | Path,
        settings: SiteSettings,
        key: SiteKey,
        members: Roster,
        outbox: Outbox,
        offer: Offer | None = None,
    ) -> None:
        self.folder, self.settings, self.key = Path(folder), settings, key
        self.members, self.outbox = members, outbox
        self.offer = offer
        """The last offer; None: features and kind are those of the first accepted upload."""
        self.accepted: dict[UploadId, str] = {}
        """Accepted uploads -> their digests."""
        self.covered: dict[UploadId, UploadId] = {}
        """Members of accepted sums -> the sum that contains them."""
        self.revisions: dict[UploadId, int] = {}
        self.forgotten: set[UploadId] = set()
        """Clients and tasks whose uploads the server's owner removed."""
        self._kind = ""
        """Of the uploads so far, which must be of one kind; empty before the first."""
        self._aggregator: Aggregator | None = None
        """Checks which uploads can be added to the first one. It keeps none of them."""
        self.database = Database(self.folder)
        try:
            self._read_database()
        except BaseException:
            self.database.close()
            raise

    def receive(self, blob: bytes) -> Receipt:
        """Decide about a member's envelope. Every problem with it is answered by a receipt.

        Only a failing disk raises (OSError): then nothing was accepted.
        """
        key, digest = ("?", "?"), "?"
        try:
            envelope = open_envelope(blob, DEFAULT_LIMITS)
            statement = envelope.statement
            key, digest = statement.key, statement.digest
            me = self.settings.client
            if me in {client for client, _ in (statement.key, *statement.members)}:
                got = f"{me}, the edge itself"
                hint = "the edge's own outbox sends its uploads"
                raise Refused("client", "members only", got, hint)
            check_sender(envelope, self.settings.federation, self.members)
            if self.accepted.get(key) == digest:
                return Receipt(Code.DUPLICATE, *key, digest)
            check_not_forgotten(statement, self.forgotten)
            revised = statement.revision > self.revisions.get(key, statement.revision)
            check_not_covered(
                statement,
                {k: d for k, d in self.accepted.items() if not revised or k != key},
                {k: s for k, s in self.covered.items() if not revised or s != key},
            )
            upload = unpack(envelope.upload, DEFAULT_LIMITS)
            message = decode_message(upload, DEFAULT_LIMITS)
            if message.fingerprint is None or message.fingerprint.hash != statement.fingerprint:
                expected = "the fingerprint of the message, as signed"
                raise Refused("fingerprint", expected, statement.fingerprint)
            if self._kind not in ("", _kind(message)):
                expected = f"a {self._kind}, as the other members sent"
                raise Refused("message", expected, f"a {_kind(message)}")
            aggregator = self._aggregator or self._aggregator_for(message)
            aggregator.check(message, client=statement.client, task=statement.task)
            check_parts(statement, message)
            check_accounts(statement, message, upload)
        except Refused as reason:
            return Receipt.refusal(reason, *key, digest)
        self.database.add_upload(statement, message, blob)
        self._read_database()
        return Receipt(Code.ACCEPTED, *key, digest)

    def forward(
        self,
        task: str,
        budget_bytes: int | None = None,
        *,
        without: Collection[str] = (),
    ) -> Envelope | None:
        """Sum the uploads of a task that were not forwarded yet; None if there are none.

        The signed sum goes into the outbox as TASK.sum-1. Late members make a second sum,
        TASK.sum-2. Without a budget, all columns are sent in float32, and the server's state is
        the same as with the members' own uploads, to rounding. With a budget, the largest rank
        that fits is sent in the default precision. A sum of mixtures holds the groups of all
        members side by side, as they were sent. ``without`` lists members to leave out.

        A sum beyond the limits of a message is refused here, before it is sent.

        Cost: that of ``combine``, ``encode`` and ``decode``. The factors of all members are in
        memory at once.
        """
        check_task(task)
        chosen = [e for e in self.not_forwarded(task) if e.statement.client not in without]
        if not chosen:
            return None
        names = (f"{task}{SUM}{number}" for number in count(1))
        name = next(name for name in names if not self.outbox.has(name))
        envelope, blob = self._seal_sum(name, chosen, budget_bytes)
        self.outbox.set_note(name, {"budget": budget_bytes})
        if self.outbox.put(envelope) != blob:
            raise ForwardConflict(
                f"outbox: another process wrote {name} meanwhile; run forward again"
            )
        return envelope

    def revise(self, budget_bytes: int | None = None) -> list[Envelope]:
        """Make the sums again whose members have revised or lost their uploads.

        A revision replaces the sum in the outbox, and at the server. A sum without any member left
        is deleted. Without ``budget_bytes``, that of the earlier sum is used.
        """
        made = []
        for total in self._sums():
            name, said = total.statement.task, {p.statement.key: p.statement for p in total.proofs}
            inner = {member for statement in said.values() for member in statement.members}
            direct = {key: s.digest for key, s in said.items() if key not in inner}
            gone = {(c, t) for c, t in said if (c, base_task(t)) in self.forgotten}
            if not gone and all(self.accepted.get(k, d) == d for k, d in direct.items()):
                continue
            kept = [k for k in direct if k in self.accepted]
            removed = {k for k in direct if gone.intersection((k, *said[k].members))}
            missing = sorted(direct.keys() - removed - set(kept))
            if missing:
                raise UploadMissing(
                    f"{name} must be made again, but the uploads of {missing[:5]} are no longer "
                    "here; ask these members for them"
                )
            if not kept:
                self.outbox.withdraw(name)
                continue
            rows = {upload.key: upload for upload in self.database.uploads()}
            chosen = [self.database.opened(rows[k]) for k in kept]
            budget = budget_bytes or self.outbox.note(name).get("budget")
            revision = total.statement.revision + 1
            envelope, _ = self._seal_sum(name, chosen, budget, revision)
            self.outbox.replace(envelope, "")
            made.append(envelope)
        return made

    def forget(self, client: str, task: str) -> None:
        """Delete a member's upload, which the server's owner removed, and accept no other one."""
        keys = [*self.accepted, *self.covered, (client, task)]
        mine = {k for k in keys if k[0] == client and base_task(k[1]) == task}
        now = time.time()
        self.database.forget([Tombstone(*k, self.accepted.get(k, ""), now, "server") for k in mine])
        self.database.checkpoint()
        self._read_database()

    def _seal_sum(
        self, name: str, chosen: list[Envelope], budget_bytes: int | None, revision: int = 0
    ) -> tuple[Envelope, bytes]:
        """The signed sum of these uploads, and its bytes."""
        messages = [e.message() for e in chosen]
        proofs = (p for e in chosen for p in (Proof(e.statement, e.signature), *e.proofs))
        envelope = seal(
            _encode_sum(messages, budget_bytes),
            self.key,
            federation=self.settings.federation,
            client=self.settings.client,
            task=name,
            fingerprint=chosen[0].statement.fingerprint,
            proofs=tuple({proof.statement.key: proof for proof in proofs}.values()),
            revision=revision,
        )
        blob = envelope.to_bytes()
        if len(blob) > LARGEST_UPLOAD:
            raise ValueError(
                f"the sum must have at most {LARGEST_UPLOAD} bytes, got {len(blob)}; "
                "give a smaller budget in bytes"
            )
        envelope.message()  # a sum that the server would refuse stays here
        return envelope, blob

    def not_forwarded(self, task: str) -> list[Envelope]:
        """Accepted uploads of a task that are in no sum that the server has or will get."""
        forwarded = {key for total in self._sums() for key in total.statement.members}
        return [
            self.database.opened(upload)
            for upload in self.database.uploads()
            if base_task(upload.task) == task and upload.key not in forwarded
        ]

    def close(self) -> None:
        """Close the database. Nothing is lost without it."""
        self.database.close()

    def _sums(self) -> list[Envelope]:
        """The sums in the outbox."""
        found = []
        for path in sorted(self.outbox.folder.glob("*.envelope")):
            with refusals_name_file(path):
                envelope = open_envelope(path.read_bytes(), FILE_LIMITS)
            if envelope.statement.members:
                found.append(envelope)
        return found

    def _read_database(self) -> None:
        """Read which uploads are accepted and which are forgotten."""
        uploads = self.database.uploads()
        self.accepted = {upload.key: upload.digest for upload in uploads}
        self.covered = {member: upload.key for upload in uploads for member in upload.members}
        self.revisions = {upload.key: upload.revision for upload in uploads}
        self.forgotten = {(t.client, base_task(t.task)) for t in self.database.tombstones()}
        if self._aggregator is None and uploads:
            first = self.database.message(uploads[0])
            self._kind, self._aggregator = _kind(first), self._aggregator_for(first)

    def _aggregator_for(self, first: Summary | Mixture) -> Aggregator:
        """An empty aggregator, which refuses what cannot be added to the first upload."""
        if self.offer is not None:
            require_same(self.offer.fingerprint, first.fingerprint, "this site and its members")
            if _kind(first) != self.offer.message:
                raise Refused("message", f"a {self.offer.message}", f"a {_kind(first)}")
        if isinstance(first, Mixture):
            # Mixtures fit any width, so an aggregator of the smallest one can check them.
            fields = {**first.fingerprint.fields, "M": 1, "seed": 0}
            return Aggregator(1, fingerprint=Fingerprint(fields))
        return Aggregator(first.out_features, fingerprint=first.fingerprint)


def _kind(message: Summary | Mixture) -> str:
    return "mixture" if isinstance(message, Mixture) else "summary"


def _encode_sum(messages: list[Summary | Mixture], budget: int | None) -> bytes:
    """The sum of messages of one kind as bytes."""
    mixtures = [m for m in messages if isinstance(m, Mixture)]
    if mixtures:
        return encode(reduce(add, mixtures), max_bytes=budget)
    summaries = [m for m in messages if isinstance(m, Summary)]
    if budget is None:
        return encode(combine(summaries), "float32")
    n_classes = max(1, len({c for s in summaries for c in s.classes}))
    rank = plan(budget, out_features=summaries[0].out_features, n_classes=n_classes).rank
    if rank < 1:
        raise ValueError(
            f"budget_bytes must have room for the sums of {n_classes} classes, got {budget}"
        )
    return encode(combine(summaries, rank), max_bytes=budget)
