"""Whether a task has ended: who was asked, who answered, and whether that is enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fedran.federation.protocol.receipts import Code, Receipt

Verdict = Literal["wait", "complete", "quorum", "short"]


@dataclass
class Quorum:
    """Who was asked for the open task, who answered, and whether that is enough.

    ``complete``: everyone asked has answered. ``quorum``: the deadline has passed with enough
    uploads. ``short``: there are too few. Uploads that arrived are kept in any case, and late ones
    are accepted whenever they arrive.
    """

    asked: frozenset[str]
    min_clients: int
    deadline: float
    """Seconds after the start."""
    answers: dict[str, Receipt] = field(default_factory=dict)
    declined: set[str] = field(default_factory=set)
    """Clients that said they have nothing to send."""

    def __post_init__(self) -> None:
        if self.min_clients > len(self.asked):
            who = f"{len(self.asked)} sites" if self.asked else "none"
            raise ValueError(
                f"min_clients is {self.min_clients}, but the roster has {who}; "
                "`fedran federation add` adds a site"
            )

    def answer(self, receipt: Receipt) -> None:
        """Count a receipt. A refused upload does not replace an accepted one."""
        before = self.answers.get(receipt.client)
        if before is None or receipt.settled or not before.settled:
            self.answers[receipt.client] = receipt

    def decline(self, client: str) -> None:
        """Do not wait for a client that has nothing to send. This answer is not signed."""
        self.declined.add(client)

    @property
    def accepted(self) -> int:
        """Number of clients whose upload was accepted."""
        accepted = (Code.ACCEPTED, Code.DUPLICATE)
        return sum(r.code in accepted for client, r in self.answers.items() if client in self.asked)

    @property
    def correctable(self) -> bool:
        """Whether a client may replace its upload, which was not accepted."""
        return any(r.correctable for c, r in self.answers.items() if c in self.asked)

    @property
    def missing(self) -> list[str]:
        """Clients that were asked and have not answered."""
        return sorted(self.asked - self.answers.keys() - self.declined)

    def verdict(self, seconds: float) -> Verdict:
        """The state of the task, this many seconds after its start.

        >>> q = Quorum(frozenset({"a", "b"}), 1, 60.0)
        >>> q.answer(Receipt(Code.ACCEPTED, "a", "may", "d"))
        >>> q.verdict(10), q.verdict(60)
        ('wait', 'quorum')
        """
        enough = self.accepted >= self.min_clients
        if not self.missing:
            return "complete" if enough else "short"
        if seconds < self.deadline:
            return "wait"
        return "quorum" if enough else "short"
