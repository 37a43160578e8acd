"""An edge aggregator: a site that sums its own members' uploads and forwards one.

A member's envelope is checked as the server would check it and lies in a journal before it is
acknowledged. A forward lists the keys of its members and goes into the site's outbox; that
envelope is also the record of what was forwarded, so no crash can put a member into two sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from fedran.core.aggregator import Aggregator
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint, require_same
from fedran.core.ids import check_id
from fedran.core.summary import Summary, combine
from fedran.federation.protocol.identity import (
    SUM,
    Roster,
    SiteKey,
    Statement,
    UploadId,
    base_task,
    check_sum,
    check_task,
)
from fedran.federation.protocol.messages import Envelope, Receipt, open_envelope, seal
from fedran.federation.server.journal import Journal
from fedran.federation.server.settings import ServerSettings
from fedran.federation.site.outbox import Outbox
from fedran.wire.codec import decode, encode
from fedran.wire.files import refusals_name_file
from fedran.wire.plan import plan
from fedran.wire.validation import DEFAULT_LIMITS, FILE_LIMITS, Limits


@dataclass(frozen=True)
class EdgeRules:
    """Who forwards, in which federation, and what is expected of members."""

    federation: str
    client: str
    """The edge's own id, under which the server knows its key."""
    fingerprint: Fingerprint | None = None
    """Of the federation's features; None: the first upload that is taken in decides."""
    limits: Limits = DEFAULT_LIMITS
    largest_upload: int = ServerSettings.largest_upload
    """Bytes of a forward that a server with the default settings still reads."""

    def __post_init__(self) -> None:
        check_id(self.federation, "federation")
        check_id(self.client, "client")


class Edge:
    """Members' uploads in one folder, and the sums of them that go into an outbox.

    Uploads that are sums themselves (of an edge behind this one) are taken in too; their members
    are listed along. One process at a time: who opens it holds the outbox by ``locked``.

    >>> import tempfile, numpy as np, fedran
    >>> member, key, folder = SiteKey.generate(), SiteKey.generate(), Path(tempfile.mkdtemp())
    >>> phi = fedran.RandomFeatures(3, 8)
    >>> s = fedran.summarize(phi(np.eye(3)), [0, 1, 1], fingerprint=phi.fingerprint)
    >>> said = {"federation": "trial", "task": "may", "fingerprint": phi.fingerprint.hash}
    >>> blob = seal(encode(s), member, client="ward-1", **said).to_bytes()
    >>> members, outbox = Roster({"ward-1": member.public}), Outbox(folder / "outbox")
    >>> edge = Edge(folder / "edge", EdgeRules("trial", "hospital"), key, members, outbox)
    >>> edge.receive(blob).outcome, edge.forward("may").statement.members
    ('accepted', (('ward-1', 'may'),))
    >>> edge.forward("may"), outbox.pending()
    (None, ['may.sum-1'])
    >>> edge.close()
    """

    def __init__(
        self, folder: str | Path, rules: EdgeRules, key: SiteKey, members: Roster, outbox: Outbox
    ) -> None:
        self.folder, self.rules, self.key = Path(folder), rules, key
        self.members, self.outbox = members, outbox
        self.taken: dict[UploadId, str] = {}
        """Uploads that are in -> their digests."""
        self.covered: dict[UploadId, UploadId] = {}
        """Everything that is in, by itself or in a sum -> the upload that brought it."""
        self._checker: Aggregator | None = None
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.journal = Journal(self.folder / "journal")
        try:
            for envelope in self._received():
                upload = envelope.upload
                first = None if self._checker else decode(upload, Summary, limits=FILE_LIMITS)
                self._remember(envelope.statement, first)
        except BaseException:
            self.journal.close()
            raise

    def receive(self, blob: bytes) -> Receipt:
        """Take in a member's envelope; whatever is wrong with it, the answer is a receipt.

        Only a failing disk raises (OSError): then nothing was taken in.
        """
        key, digest = ("?", "?"), "?"
        try:
            envelope = open_envelope(blob, self.rules.limits)
            key, digest = envelope.statement.key, envelope.statement.digest
            self._check_sender(envelope)
            if self.taken.get(key) == digest:
                return Receipt("duplicate", *key, digest)
            summary = self._checked(envelope)
        except Refused as reason:
            return Receipt("refused", *key, digest, str(reason))
        self.journal.append(blob)
        self._remember(envelope.statement, summary)
        return Receipt("accepted", *key, digest)

    def forward(
        self,
        task: str,
        budget_bytes: int | None = None,
        *,
        without: Collection[str] = (),
    ) -> Envelope | None:
        """One signed sum of a task's uploads that were not forwarded yet; None without any.

        It lies in the outbox as TASK.sum-1; late members make a second forward, TASK.sum-2.
        Without a budget every column goes, in float32, and the server ends where it would have
        ended with the members' own uploads, to rounding. With one, the largest rank that fits
        goes, in the wire's default precision. ``without``: members to leave out.

        Cost: that of ``combine`` and ``encode``; all members' factors are in memory at once.
        """
        check_task(task)
        chosen = [e for e in self._waiting(task) if e.statement.client not in without]
        if not chosen:
            return None
        name = self._free_name(task)
        summaries = [decode(e.upload, Summary, limits=self.rules.limits) for e in chosen]
        envelope = seal(
            self._encoded(summaries, budget_bytes),
            self.key,
            federation=self.rules.federation,
            client=self.rules.client,
            task=name,
            fingerprint=chosen[0].statement.fingerprint,
            members=tuple(k for e in chosen for k in _keys(e.statement)),
        )
        blob = envelope.to_bytes()
        if len(blob) > self.rules.largest_upload:
            most = f"at most {self.rules.largest_upload} bytes"
            raise Refused("forward", most, len(blob), hint="give a smaller budget in bytes")
        if self.outbox.put(envelope) != blob:
            raise Refused("outbox", f"room for {name}", "an upload made meanwhile; forward again")
        return envelope

    def waiting(self, task: str) -> list[UploadId]:
        """Uploads of a task that were taken in and not forwarded yet."""
        return [e.statement.key for e in self._waiting(task)]

    def close(self) -> None:
        """Nothing is lost without it."""
        self.journal.close()

    def _check_sender(self, envelope: Envelope) -> None:
        said = envelope.statement
        if said.federation != self.rules.federation:
            raise Refused("federation", self.rules.federation, said.federation)
        if self.rules.client in {client for client, _ in _keys(said)}:
            told = f"{self.rules.client}, this site itself"
            raise Refused("client", "members only", told, hint="its own outbox sends its uploads")
        self.members.check(said, envelope.signature)
        check_sum(said)  # as the server does: one that it refuses must not spoil the whole sum

    def _checked(self, envelope: Envelope) -> Summary:
        """The summary, after every check that could refuse it or, later, the sum."""
        said = envelope.statement
        if said.key in self.taken:
            raise Refused(
                "digest",
                f"the upload already taken in for {said.client}, {said.task}",
                "another one",
                hint="a member sends one upload a task; use a new task id for more data",
            )
        for member in _keys(said):
            if member in self.covered:
                told = f"{member}: already in, through {self.covered[member][0]}"
                raise Refused("members", "uploads that are not in yet", told)
        summary = decode(envelope.upload, Summary, limits=self.rules.limits)
        if summary.fingerprint is None or summary.fingerprint.hash != said.fingerprint:
            raise Refused("fingerprint", "that of the summary, as signed", said.fingerprint)
        checker = self._checker or self._make_checker(summary)
        checker.check(summary, client=said.client, task=said.task)
        return summary

    def _remember(self, said: Statement, summary: Summary | None) -> None:
        self.taken[said.key] = said.digest
        self.covered.update(dict.fromkeys(_keys(said), said.key))
        if summary is not None and self._checker is None:
            self._checker = self._make_checker(summary)

    def _make_checker(self, first: Summary) -> Aggregator:
        """Never absorbs: it knows what can be added, and is as wide as the first summary."""
        fingerprint = self.rules.fingerprint or first.fingerprint
        require_same(fingerprint, first.fingerprint, "this site and its members")
        return Aggregator(first.out_features, fingerprint=fingerprint)

    def _received(self) -> Iterator[Envelope]:
        return (open_envelope(record, FILE_LIMITS) for record in self.journal.records())

    def _waiting(self, task: str) -> list[Envelope]:
        done = self._forwarded()
        return [
            e
            for e in self._received()
            if base_task(e.statement.task) == task and e.statement.key not in done
        ]

    def _forwarded(self) -> set[UploadId]:
        done: set[UploadId] = set()
        for path in self.outbox.folder.glob("*.envelope"):
            with refusals_name_file(path):
                done.update(open_envelope(path.read_bytes(), FILE_LIMITS).statement.members)
        return done

    def _free_name(self, task: str) -> str:
        names = (f"{task}{SUM}{n}" for n in count(1))
        return next(name for name in names if not self.outbox.has(name))

    def _encoded(self, summaries: list[Summary], budget: int | None) -> bytes:
        if budget is None:
            return encode(combine(summaries), "float32")
        classes = {c for s in summaries for c in s.classes}
        width = summaries[0].out_features
        rank = plan(budget, out_features=width, n_classes=max(1, len(classes))).rank
        if rank < 1:
            raise Refused("budget_bytes", f"room for the sums of {len(classes)} classes", budget)
        return encode(combine(summaries, rank), max_bytes=budget)


def _keys(said: Statement) -> tuple[UploadId, ...]:
    """What an upload brings in: itself and, for a sum, its members."""
    return tuple(dict.fromkeys((said.key, *said.members)))
