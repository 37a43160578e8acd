"""What the rows of a site have spent, by the site's own record.

A server keeps a ledger too, but a dishonest one need not, and one that restored a backup has lost a
part of it. So a site notes every vector with noise before it leaves, limits what they spend
together, and tells the server which sums it has revealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedran.core.dp import Budget, composed, gaussian_epsilon
from fedran.core.errors import Refused
from fedran.core.ids import check_id
from fedran.federation.protocol.messages import read_object
from fedran.federation.secure.attempt import MAX_ATTEMPTS, MAX_SITES, check_digest


@dataclass(frozen=True)
class SentNoise:
    """Rows with noise that left this site masked, in an attempt whose sum may be known."""

    agreement: int
    """How often this site's operator had agreed to another sum of the task before."""
    attempt: int
    """The newest attempt with these integers."""
    content: str
    """Digest of the content. A site draws its noise once for each."""
    epsilon: float
    delta: float
    members: tuple[str, ...] = ()
    """The sites for whose sum this site revealed shares; empty if it revealed none."""

    @classmethod
    def read(cls, fields: object) -> SentNoise:
        """An entry of a file or a message. Every field is checked."""
        header = read_object(fields, "noise that was sent")
        found = cls(
            header.integer("agreement", 0, MAX_ATTEMPTS),
            header.integer("attempt", 1, MAX_ATTEMPTS),
            check_digest(header.get("content"), "content"),
            header.number("epsilon"),
            header.number("delta"),
            tuple(check_id(name, "client") for name in header.items("members", MAX_SITES)),
        )
        try:
            Budget(found.epsilon, found.delta)
        except ValueError as reason:
            raise Refused("noise that was sent", "a budget", str(reason)) from None
        return found


def read_sent(note: Mapping[str, Any]) -> tuple[SentNoise, ...]:
    """What a note says about the noise that was sent."""
    return tuple(map(SentNoise.read, note.get("sent", [])))


def task_mu(sent: Iterable[SentNoise]) -> float:
    """The mu that the rows of one task have spent.

    Contents compose: each has noise of its own, and its sum may be known, also if this site
    revealed no share. With one content, a vector of this site is in one sum at most
    (``docs/explanation/secure-sums.md``). An attempt that gave no sum is counted too.
    """
    spent = {one.content: Budget(one.epsilon, one.delta).mu for one in sent}
    return composed(list(spent.values()))


def spent_epsilon(tasks: Iterable[Iterable[SentNoise]], delta: float) -> float:
    """The epsilon of a person with rows in all of these tasks."""
    return gaussian_epsilon(composed([task_mu(sent) for sent in tasks]), delta)
