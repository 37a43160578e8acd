"""Who has answered the open task, and what sites are told about uploads of earlier runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.server.store.store import Store

log = logging.getLogger(__name__)
CLOSED = "closed_task"
"""Fact in the database: the task that the owner has closed before its deadline."""
HOW_TO_CLOSE = "; `fedran federation close` ends the task now"
Verdict = Literal["wait", "complete", "quorum", "short"]


@dataclass
class Quorum:
    """Who was asked for the open task, who answered, and whether that is enough.

    ``complete``: everyone asked has answered. ``quorum``: the deadline has passed, or the owner
    closed the task, with enough uploads. ``short``: there are too few. Uploads that arrived are
    kept in any case, and late ones are accepted whenever they arrive.
    """

    asked: frozenset[str]
    min_clients: int
    deadline: float
    """Seconds after the start."""
    answers: dict[str, Receipt] = field(default_factory=dict)
    declined: set[str] = field(default_factory=set)
    """Clients that said they have nothing to send. They are not waited for."""
    waiting: set[str] = field(default_factory=set)
    """Clients that have answered, and wait for others of their secure sum."""

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

    @property
    def accepted(self) -> int:
        """Number of clients whose upload was accepted."""
        return sum(r.settled for client, r in self.answers.items() if client in self.asked)

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


def lost_uploads(store: Store, client: str, stored: Sequence[tuple[str, str]]) -> list[Receipt]:
    """Receipts for uploads that a site believes to be stored, and that are not here.

    ``stored`` are tasks and digests. Uploads that are lost, for example because an older backup
    was restored, are asked for again. Forgotten ones are not.
    """
    found = []
    for task, digest in stored:
        key = client, task
        if key in store.state.covered or store.state.digest(key) == digest:
            continue
        code, reason = Code.LOST, "the server no longer has this upload and asks for it again"
        if key in store.forgotten:
            code, reason = Code.FORGOTTEN, "the server's owner removed this upload"
        found.append(Receipt(code, *key, digest, reason))
        log.info("%s, %s: %s", client, task, reason, extra=found[-1].log_fields())
        store.events.write(code.value, client=client, task=task)
    return found
