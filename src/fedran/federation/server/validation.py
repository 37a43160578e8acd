"""The checks of an upload before it is accepted. Edges use them too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedran.core.aggregator import Aggregator
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label
from fedran.core.summary import Summary
from fedran.federation.protocol.identity import Roster, Statement, UploadId
from fedran.federation.protocol.messages import Envelope
from fedran.federation.protocol.receipts import Code, UploadRefused
from fedran.wire.codec import decode
from fedran.wire.validation import DEFAULT_LIMITS, Limits


@dataclass(frozen=True)
class Rules:
    """What the server expects of every upload."""

    federation: str
    fingerprint: Fingerprint
    out_features: int
    classes: tuple[Label, ...] | None = None
    """The labels that may occur; None: any, up to the limits."""
    max_classes: int = 10_000
    """Of all uploads together, because every class takes room in the state and in the head."""
    limits: Limits = DEFAULT_LIMITS
    snapshot_every: int = 20
    """Uploads between two snapshots."""


def check_sender(envelope: Envelope, federation: str, roster: Roster) -> None:
    """Refuse another federation, an unknown or wrong signature, and sums that are not allowed."""
    said = envelope.statement
    if said.federation != federation:
        raise UploadRefused(Code.WRONG_FEDERATION, "federation", federation, said.federation)
    roster.check(said, envelope.signature)
    said.check_sum_name()


def check_fingerprint(said: Statement, fingerprint: Fingerprint) -> None:
    """Refuse an upload that was made with another backbone or feature map."""
    if said.fingerprint != fingerprint.hash:
        raise UploadRefused(
            Code.WRONG_FINGERPRINT,
            "fingerprint",
            f"{fingerprint.hash[:12]}... of this federation",
            f"{said.fingerprint[:12]}...",
            hint="the site's backbone or feature map differs",
        )


def check_not_covered(
    said: Statement, accepted: Mapping[UploadId, str], covered: Mapping[UploadId, UploadId]
) -> None:
    """Refuse an upload with rows that are already in, by themselves or as part of a sum.

    ``accepted`` maps uploads to their digests, ``covered`` members of sums to these sums.
    """
    if said.key in accepted:
        raise UploadRefused(
            Code.CONFLICT,
            "digest",
            f"the upload already accepted for {said.client}, {said.task}",
            "another one",
            hint="a site sends one upload per task; use a new task id for more data",
        )
    for member in (said.key, *said.members):
        if member in covered or member in accepted:
            how = f"through {covered[member][0]}" if member in covered else "by itself"
            got = f"{member}: already in, {how}"
            raise UploadRefused(Code.CONFLICT, "members", "uploads that are not in yet", got)


def check_summary(envelope: Envelope, rules: Rules, aggregator: Aggregator) -> Summary:
    """The decoded summary, after every check that could refuse it. Nothing is absorbed here."""
    said = envelope.statement
    summary = decode(envelope.upload, Summary, limits=rules.limits)
    if rules.classes is not None:
        unknown = [c for c in summary.classes if c not in rules.classes]
        if unknown:
            raise UploadRefused(Code.INVALID, "classes", "labels of this federation", unknown[:5])
    if summary.accounts.energy <= 0:
        expected = "rows that are not all zero"
        raise UploadRefused(Code.INVALID, "energy", expected, summary.accounts.energy)
    total = len({*aggregator.classes, *summary.classes})
    if total > rules.max_classes:
        expected = f"at most {rules.max_classes} in all"
        raise UploadRefused(Code.TOO_MANY_CLASSES, "classes", expected, total)
    aggregator.check(summary, client=said.client, task=said.task)
    return summary
