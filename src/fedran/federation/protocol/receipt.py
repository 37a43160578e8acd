"""What became of an upload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["accepted", "duplicate", "quarantined", "refused"]
SETTLED: tuple[Outcome, ...] = ("accepted", "duplicate", "quarantined")
"""Outcomes after which a client need not send again; a refused one must be looked at first."""


@dataclass(frozen=True)
class Receipt:
    """The server's answer to one envelope."""

    outcome: Outcome
    client: str
    task: str
    digest: str
    reason: str = ""

    @property
    def settled(self) -> bool:
        """Whether the server has the upload, or has it aside."""
        return self.outcome in SETTLED
