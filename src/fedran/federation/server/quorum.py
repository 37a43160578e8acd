"""When a task goes on: enough uploads, or its deadline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fedran.federation.protocol.receipt import Receipt

Verdict = Literal["wait", "complete", "quorum", "short"]


@dataclass
class Quorum:
    """The open task: who was asked, who answered, how long it may take.

    ``complete``: everyone asked has answered. ``quorum``: the deadline has passed with enough
    uploads. ``short``: it has passed with too few; what came is kept all the same, and late
    uploads are taken in whenever they arrive.
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
                "`fedran federation add` lets a site in"
            )

    def answer(self, receipt: Receipt) -> None:
        """Count a receipt; once an upload is in, a refused one does not undo it."""
        before = self.answers.get(receipt.client)
        if before is None or receipt.settled or not before.settled:
            self.answers[receipt.client] = receipt

    def decline(self, client: str) -> None:
        """A client has nothing for this task: nobody waits for it. Its word is not signed."""
        self.declined.add(client)

    @property
    def accepted(self) -> int:
        """Clients whose upload is in."""
        good = ("accepted", "duplicate")
        return sum(r.outcome in good for c, r in self.answers.items() if c in self.asked)

    @property
    def missing(self) -> list[str]:
        """Clients that were asked and have not answered."""
        return sorted(self.asked - self.answers.keys() - self.declined)

    def verdict(self, seconds: float) -> Verdict:
        """Where the task stands so many seconds after its start.

        >>> q = Quorum(frozenset({"a", "b"}), 1, 60.0)
        >>> q.answer(Receipt("accepted", "a", "may", "d"))
        >>> q.verdict(10), q.verdict(60)
        ('wait', 'quorum')
        """
        if not self.missing:
            return "complete" if self.accepted >= self.min_clients else "short"
        if seconds < self.deadline:
            return "wait"
        return "quorum" if self.accepted >= self.min_clients else "short"
