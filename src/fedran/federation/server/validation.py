"""The checks of an upload before it is accepted."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedran.core.consistency import check_one_site, check_row_energy
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label, named, ordered
from fedran.core.mixture import Mixture
from fedran.core.summary import Summary
from fedran.core.sums.aggregator import Aggregator
from fedran.federation.protocol.identity import Statement, UploadId
from fedran.federation.protocol.messages import Envelope
from fedran.federation.protocol.receipts import Code, UploadRefused
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.settings import ServerSettings
from fedran.wire.codec import decode_message
from fedran.wire.container import Container, unpack
from fedran.wire.head_codec import classes_fit
from fedran.wire.summary_codec import rounding_of
from fedran.wire.validation import DEFAULT_LIMITS


def check_sender(envelope: Envelope, federation: str, roster: Roster) -> None:
    """Refuse another federation, an unknown sender, a wrong signature or wrong members."""
    statement = envelope.statement
    if statement.federation != federation:
        raise UploadRefused(Code.WRONG_FEDERATION, "federation", federation, statement.federation)
    roster.check(statement, envelope.signature)


def check_fingerprint(statement: Statement, fingerprint: Fingerprint) -> None:
    """Refuse an upload that was made with another backbone or feature map."""
    if statement.fingerprint != fingerprint.hash:
        raise UploadRefused(
            Code.WRONG_FINGERPRINT,
            "fingerprint",
            f"{fingerprint.hash[:12]}... of this federation",
            f"{statement.fingerprint[:12]}...",
            hint="the site's backbone or feature map differs",
        )


def check_not_covered(
    statement: Statement, accepted: Mapping[UploadId, str], covered: Mapping[UploadId, UploadId]
) -> None:
    """Refuse an upload with rows that were accepted before, in a secure sum or in another upload.

    ``accepted`` maps uploads to their digests. ``covered`` maps members of sums to these sums.
    """
    if statement.key in accepted:
        raise UploadRefused(
            Code.CONFLICT,
            "digest",
            f"the upload already accepted for {statement.client}, {statement.task}",
            "another one",
            hint="a site sends one upload per task; use a new task id for more data",
        )
    for member in (statement.key, *statement.members):
        if member in covered or member in accepted:
            how = f"in a sum of {covered[member][0]}" if member in covered else "directly"
            got = f"{member}, which was accepted {how}"
            raise UploadRefused(
                Code.CONFLICT, "members", "uploads that were not accepted before", got
            )


def check_not_forgotten(statement: Statement, forgotten: Collection[UploadId]) -> None:
    """Refuse an upload that the owner removed, and a secure sum with a member that was removed."""
    removed = [key for key in (statement.key, *statement.members) if key in forgotten]
    if removed:
        raise UploadRefused(
            Code.FORGOTTEN,
            "upload",
            "uploads that the owner has not removed",
            "; ".join(map(", ".join, removed[:5])),
            hint="use a new task id for new data",
        )


def check_accounts(statement: Statement, message: Summary | Mixture, upload: Container) -> None:
    """Refuse a message of several sites, and accounts that the rows of one site cannot have.

    The ridge depends on the number of rows per site, so nobody may choose the number of sites. A
    secure sum was truncated once, after all rows were added up, so it is one part too.
    """
    parts = len(message.parts) if isinstance(message, Mixture) else message.accounts.parts
    if parts != 1:
        raise UploadRefused(Code.INVALID, "parts", "1: the upload describes one site", parts)
    if isinstance(message, Mixture):
        return
    if statement.members:
        check_row_energy(message)
    else:
        check_one_site(message, rounding_of(upload, message))


def check_message(
    envelope: Envelope,
    settings: ServerSettings,
    classes: tuple[Label, ...] | None,
    aggregator: Aggregator,
) -> Summary | Mixture:
    """The decoded message, after every check that could refuse it. Nothing is absorbed here.

    ``classes`` are the labels that it may contain; None: any.
    """
    statement, size = envelope.statement, len(envelope.upload)
    if size > settings.budget_bytes and not statement.members:
        expected = f"at most {settings.budget_bytes} bytes, the budget of the offer"
        raise UploadRefused(Code.TOO_LARGE, "upload", expected, size)
    upload = unpack(envelope.upload, settings.limits)
    message = decode_message(upload, settings.limits)
    if isinstance(message, Mixture) != (settings.message == "mixture"):
        got = type(message).__name__.lower()
        raise UploadRefused(Code.INVALID, "message", f"a {settings.message}", f"a {got}")
    unknown = () if classes is None else ordered(set(message.classes).difference(classes))
    if unknown:
        raise UploadRefused(Code.INVALID, "classes", "labels of this federation", named(unknown))
    if message.accounts.energy <= 0:
        expected = "rows that are not all zero"
        raise UploadRefused(Code.INVALID, "energy", expected, message.accounts.energy)
    check_accounts(statement, message, upload)
    total = ordered({*aggregator.classes, *message.classes})
    if len(total) > settings.max_classes:
        expected = f"at most {settings.max_classes} over all uploads"
        raise UploadRefused(Code.TOO_MANY_CLASSES, "classes", expected, len(total))
    if not classes_fit(total, settings.out_features, DEFAULT_LIMITS):
        expected = "labels over all uploads for which sites can read the head"
        raise UploadRefused(Code.TOO_MANY_CLASSES, "classes", expected, f"{len(total)} labels")
    aggregator.check(message, client=statement.client, task=statement.task)
    return message
