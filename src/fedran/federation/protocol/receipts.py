"""Receipts: what the server decided about an upload, with a machine-readable code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fedran.core.errors import Refused


class Code(StrEnum):
    """What was decided, and for a refused upload why. Programs read the code, people the reason."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """The same bytes were accepted before."""
    CONFLICT = "conflict"
    """Another upload with the rows of this client and task was accepted before."""
    FORGOTTEN = "forgotten"
    """The server's owner removed the upload, and accepts none for this client and task."""
    LOST = "lost"
    """The server no longer has an upload that it accepted, and asks for it again."""
    WRONG_FEDERATION = "wrong_federation"
    UNKNOWN_CLIENT = "unknown_client"
    """The roster does not list the client."""
    BAD_SIGNATURE = "bad_signature"
    FOREIGN_MEMBERS = "foreign_members"
    """Only the server's own secure sums have members, and only sites of the roster."""
    UNKNOWN_TASK = "unknown_task"
    """The server never opened the task."""
    WRONG_FINGERPRINT = "wrong_fingerprint"
    """The sender uses another backbone or feature map."""
    TOO_LARGE = "too_large"
    TOO_MANY_CLASSES = "too_many_classes"
    INVALID = "invalid"
    """The envelope or the upload in it fails a check."""
    SERVER_ERROR = "server_error"
    UNKNOWN = "unknown"
    """Sent by a peer that has no codes, or has a code that is not in this list."""


SETTLED = Code.ACCEPTED, Code.DUPLICATE
"""Codes after which the sender need not send again. Every other code means "refused"."""
CORRECTABLE = Code.WRONG_FINGERPRINT, Code.TOO_LARGE, Code.TOO_MANY_CLASSES, Code.INVALID
"""Codes after which the site makes a new upload if its rows or its settings have changed."""


class UploadRefused(Refused):
    """An upload that is not accepted, with the code for its receipt."""

    def __init__(self, code: Code, field: str, expected: str, got: object, hint: str = "") -> None:
        super().__init__(field, expected, got, hint)
        self.code = code


@dataclass(frozen=True)
class Receipt:
    """The answer to one envelope."""

    code: Code
    client: str
    task: str
    digest: str
    """SHA-256 of the upload."""
    reason: str = ""
    """A sentence for people."""

    @classmethod
    def refusal(cls, reason: Refused, client: str, task: str, digest: str) -> Receipt:
        """The receipt for an upload that was refused for this reason."""
        code = reason.code if isinstance(reason, UploadRefused) else Code.INVALID
        return cls(code, client, task, digest, str(reason))

    @classmethod
    def read(cls, given: object) -> Receipt:
        """A receipt of a message or a file. A missing or unknown code is ``UNKNOWN``: refused.

        >>> Receipt.read({"client": "a", "task": "may", "digest": "d", "reason": ""}).code
        <Code.UNKNOWN: 'unknown'>
        """
        names = ("client", "task", "digest", "reason")
        if not isinstance(given, dict) or not all(isinstance(given.get(n), str) for n in names):
            raise Refused("receipts", f"objects with the texts {', '.join(names)}", given)
        try:
            code = Code(str(given.get("code")))
        except ValueError:
            code = Code.UNKNOWN
        return cls(code, *(given[name] for name in names))

    def fields(self) -> dict[str, Any]:
        """The receipt as plain values for a message or a file."""
        return {**vars(self), "code": self.code.value, "outcome": self.outcome}

    @property
    def outcome(self) -> str:
        """The code, or "refused" for every code that is a reason for a refusal.

        >>> Receipt(Code.CONFLICT, "site-1", "may", "d").outcome
        'refused'
        """
        return self.code.value if self.settled else "refused"

    def log_fields(self) -> dict[str, str]:
        """The decision as fields of a log in JSON."""
        return {
            "site": self.client,
            "task": self.task,
            "decision": self.outcome,
            "code": self.code.value,
        }

    @property
    def settled(self) -> bool:
        """Whether the receiver has the upload."""
        return self.code in SETTLED

    @property
    def final(self) -> bool:
        """Whether sending the upload again cannot change the outcome."""
        return self.settled or self.code in (Code.CONFLICT, Code.FORGOTTEN)

    @property
    def correctable(self) -> bool:
        """Whether an upload of other rows for the same task may have another outcome."""
        return self.code in CORRECTABLE


def read_receipts(given: object) -> list[Receipt]:
    """The receipts in a message."""
    if not isinstance(given, list):
        raise Refused("receipts", "a list of objects", given)
    return list(map(Receipt.read, given))
