"""How large a message from a stranger may be, checked before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings for ``fedran.decode``. Raise them for larger models, lower them for a server.

    ``decoded`` bounds the arrays that decoding makes. On top come up to three copies of the
    message and, while its JSON is read, up to 25 times the header.
    """

    message: int = 256 * MIB
    """Bytes of the whole message."""
    header: int = 2 * MIB
    """Bytes of its JSON header."""
    decoded: int = 1024 * MIB
    """Bytes of everything that decoding allocates."""
    out_features: int = 2**17
    classes: int = 20_000
    label_length: int = 256
    """Characters of one string label."""


DEFAULT_LIMITS = Limits()
FILE_LIMITS = Limits(message=2**40, header=256 * MIB, decoded=2**40, classes=10**7)
"""For the server's own state files, which are as large as its state."""
