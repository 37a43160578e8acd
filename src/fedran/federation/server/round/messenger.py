"""Messages to nodes: retries, lost nodes, and replies one at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedran.core.errors import Refused, check_id
from fedran.federation.protocol.limits import MAX_FAILURES, MAX_SETTLED, RETRY_SECONDS, SLOW_SECONDS
from fedran.federation.protocol.messages import (
    Question,
    check_protocol,
    read_labels,
    read_settled,
    read_tasks,
)
from fedran.wire.validation import Header


@dataclass(frozen=True)
class Incoming:
    """What came back for a message: fields and blobs, or why there are none."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    error: str = ""
    """Why the message was not answered, in the words of the transport."""
    refused: Refused | None = None
    """Why the answer cannot be read."""

    def require(self) -> None:
        """Raise unless this is an answer that can be read."""
        if self.error:
            raise Refused("message", "an answer", self.error)
        if self.refused is not None:
            raise self.refused


class Network(Protocol):
    """What carries messages to nodes. ``flower/serverapp.py`` has the one over Flower."""

    def nodes(self) -> Iterable[int]:
        """The connected nodes."""

    def send(
        self,
        node: int,
        kind: Question,
        fields: Mapping[str, Any],
        blobs: Mapping[str, bytes],
        seconds: float,
    ) -> str:
        """Send one message that expires; returns its id, or "" if it was not taken."""

    def reply(self, number: str) -> Incoming | None:
        """The reply to one message, or None if none has arrived."""


class Messenger:
    """Knows which nodes to ask, which messages are unanswered, and what has come back."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.unanswered: dict[str, int] = {}
        """Message id -> node, for messages without a reply so far."""
        self._failures: dict[int, int] = {}
        self._ask_at: dict[int, float] = {}
        """Node -> time from which it is asked again: 0 is at once, and infinity is never."""

    def nodes_to_ask(self) -> list[int]:
        """Connected nodes that were not asked yet, failed, were disconnected, or are slow.

        A node that was killed at work and came back has lost its message, and Flower may not
        report it. A second message to a node that is only slow does no harm.
        """
        now, connected = time.monotonic(), set(self.network.nodes())
        self._ask_at.update(dict.fromkeys(set(self.unanswered.values()) - connected, 0.0))
        due = {node for node in connected if self._ask_at.get(node, 0.0) <= now}
        return [n for n in sorted(due) if self._failures.get(n, 0) < MAX_FAILURES]

    def send(
        self,
        node: int,
        kind: Question,
        fields: Mapping[str, Any],
        blobs: Mapping[str, bytes],
        seconds: float,
    ) -> None:
        """Send one message to one node. It expires after so many seconds."""
        silent = list(self.unanswered.values()).count(node)
        self._ask_at[node] = time.monotonic() + SLOW_SECONDS * 2**silent
        if number := self.network.send(node, kind, fields, blobs, seconds):
            self.unanswered[number] = node
        else:
            self.retry_later(node)

    def retry_later(self, node: int) -> None:
        """Count a failure of a node, and let it be asked again after a pause."""
        self._failures[node] = self._failures.get(node, 0) + 1
        self._ask_at[node] = time.monotonic() + RETRY_SECONDS

    def ask_again(self, node: int) -> None:
        """Let a node that has more to send, or that is asked something else, be asked at once."""
        self._ask_at[node] = 0.0

    def replies(self) -> Iterator[tuple[int, Incoming]]:
        """Replies that have arrived, with their nodes. Only one is in memory at a time."""
        for number in list(self.unanswered):
            if (reply := self.network.reply(number)) is not None:
                node = self.unanswered.pop(number)
                if self._ask_at[node]:
                    self._ask_at[node] = math.inf
                yield node, reply


@dataclass(frozen=True)
class Reply:
    """What a node sent for its client."""

    node: int
    client: str
    fields: Mapping[str, Any]
    problem: object
    """Why the site sends nothing for the task, in its own words; empty if it does."""
    blobs: Mapping[str, bytes]
    stored: Sequence[tuple[str, str]]
    """Tasks and digests of uploads that the site believes to be here."""
    waiting: Sequence[str]
    """Tasks whose secure sum the site has revealed, without knowing that it is here."""
    validates: bool
    """Whether the site has validation rows."""

    @classmethod
    def read(cls, node: int, incoming: Incoming) -> Reply:
        """Check every field of a reply."""
        incoming.require()
        fields, blobs, header = incoming.fields, incoming.blobs, Header(dict(incoming.fields))
        client = check_id(fields.get("client"), "client")
        stored, waiting = read_settled(header), read_tasks(header, "waiting", MAX_SETTLED)
        validates, problem = bool(read_labels(header, "validated")), fields.get("told")
        try:
            check_protocol(fields.get("protocol", 1), "this server", client)
        except Refused as reason:  # nothing in the answer can be trusted to mean what it says here
            problem, blobs, stored, waiting = str(reason), {}, [], ()
        return cls(node, client, fields, problem, blobs, stored, waiting, validates)
