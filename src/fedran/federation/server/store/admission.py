"""Which uploads are accepted: the checks that refuse one. Which of them count, the gate decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedran.core.consistency import check_row_energy
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import named, ordered
from fedran.core.points import Points
from fedran.core.sums.aggregator import Aggregator, Message
from fedran.federation.protocol.identity import Statement, UploadId
from fedran.federation.protocol.messages import Envelope
from fedran.federation.protocol.receipts import Code, UploadRefused
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.state import State
from fedran.wire.codec import decode_message
from fedran.wire.container import unpack
from fedran.wire.head_codec import head_fits
from fedran.wire.validation import DEFAULT_LIMITS


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
    statement: Statement, accepted: Collection[UploadId], covered: Mapping[UploadId, UploadId]
) -> None:
    """Refuse an upload with rows that were accepted before, also in another secure sum.

    ``covered`` maps members of sums to these sums.
    """
    if statement.key in accepted:
        raise UploadRefused(
            Code.CONFLICT,
            "digest",
            f"the upload already accepted for {statement.client}, {statement.task}",
            "another one",
            hint="a site sends one upload per task; use a new task id for more data",
        )
    for member in statement.members:
        if member in covered:
            got = f"{member}, which was accepted in a sum of {covered[member][0]}"
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


def check_message(envelope: Envelope, settings: ServerSettings, state: State) -> Message:
    """The decoded message, after every check that could refuse it. Nothing is absorbed here."""
    statement, size = envelope.statement, len(envelope.upload)
    if settings.privacy != "none" and not statement.members:
        raise UploadRefused(Code.INVALID, "members", "a secure sum", "the upload of one site")
    if size > settings.budget_bytes and not statement.members:
        expected = f"at most {settings.budget_bytes} bytes, the budget of the offer"
        raise UploadRefused(Code.TOO_LARGE, "upload", expected, size)
    message = decode_message(unpack(envelope.upload, settings.limits), settings.limits)
    empty = Aggregator(fingerprint=state.fingerprint)
    empty.check(message, client=statement.client, task=statement.task)
    listed = settings.labels
    unknown = () if listed is None else ordered(set(message.classes).difference(listed))
    if unknown:
        raise UploadRefused(Code.INVALID, "classes", "labels of this federation", named(unknown))
    total, support = ordered({*state.classes, *message.classes}), 0
    if isinstance(message, Points):
        if not message.n_rows:
            raise UploadRefused(Code.INVALID, "points", "at least one", 0)
        message.validate(settings.min_group)
        width, support = message.in_features, max(settings.support, len(total))
    else:
        # A secure sum was truncated once, after all rows were added up, so it is one part.
        if message.accounts.energy <= 0:
            expected = "rows that are not all zero"
            raise UploadRefused(Code.INVALID, "energy", expected, message.accounts.energy)
        if message.accounts.parts != 1:
            raise UploadRefused(Code.INVALID, "parts", "1", message.accounts.parts)
        check_row_energy(message)
        width = message.out_features
    if not head_fits(total, width, DEFAULT_LIMITS, support):
        expected = "labels over all uploads for which sites can read the head"
        raise UploadRefused(Code.TOO_MANY_CLASSES, "classes", expected, f"{len(total)} labels")
    return message
