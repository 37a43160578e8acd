"""Messages to nodes over Flower's grid: retries, lost nodes, and replies one at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedran.core.errors import Refused, check_id
from fedran.core.labels import Label
from fedran.federation.protocol.messages import (
    MAX_SETTLED,
    check_protocol,
    read_labels,
    read_settled,
    read_tasks,
)
from fedran.federation.protocol.transport import blobs_of, fields_of
from fedran.wire.validation import Header

MAX_FAILURES = 5
"""Errors after which a node is not asked again within one run."""
RETRY_SECONDS = 10.0
"""Seconds until a node whose answer is an error is asked again."""
SLOW_SECONDS = 75.0
"""Seconds without an answer until a node is asked again, then twice as many, ... A slow node is
asked again for as long as the run lasts."""


class Messenger:
    """Knows which nodes to ask, which messages are unanswered, and what has come back."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.unanswered: dict[str, int] = {}
        """Message id -> node, for messages without a reply so far."""
        self._failures: dict[int, int] = {}
        self._patience: dict[int, float] = {}
        """Node -> seconds until it is asked again if it does not answer."""
        self._asked_at: dict[int, float] = {}
        self._ask_from: dict[int, float] = {}
        """Node -> time from which it may be asked (again)."""
        self._disconnected: set[int] = set()
        """Nodes that disconnected before they answered."""
        self._urgent: set[int] = set()
        """Nodes that are asked at once, although an earlier message may be unanswered."""

    def nodes_to_ask(self) -> list[int]:
        """Connected nodes that were not asked yet, failed, were disconnected, or are slow.

        A node that was killed at work and came back has lost its message, and Flower may not
        report it. A second message to a node that is only slow does no harm.
        """
        now = time.monotonic()
        connected, busy = set(self.grid.get_node_ids()), set(self.unanswered.values())
        self._disconnected |= busy - connected
        again = self._disconnected & connected
        self._disconnected -= again
        again |= {
            node for node in busy & connected if now - self._asked_at[node] > self._patience[node]
        }
        due = {node for node in connected - busy if self._ask_from.get(node, 0.0) <= now}
        due |= self._urgent & connected
        return [n for n in sorted(due | again) if self._failures.get(n, 0) < MAX_FAILURES]

    def send(self, node: int, body: RecordDict, kind: str, ttl: float) -> None:
        """Send one message to one node, so that the id of the message is known."""
        message = Message(body, dst_node_id=node, message_type=kind, ttl=ttl)
        waited_for = node in self.unanswered.values() and node not in self._urgent
        self._urgent.discard(node)
        self._patience[node] = 2 * self._patience[node] if waited_for else SLOW_SECONDS
        self._asked_at[node] = time.monotonic()
        self._ask_from[node] = float("inf")
        for message_id in self.grid.push_messages([message]):
            if message_id:
                self.unanswered[message_id] = node
            else:  # Flower did not take it
                self.retry_later(node)

    def retry_later(self, node: int) -> None:
        """Count a failure of a node, and let it be asked again after a pause."""
        self._failures[node] = self._failures.get(node, 0) + 1
        self._ask_from[node] = time.monotonic() + RETRY_SECONDS

    def ask_again(self, node: int) -> None:
        """Let a node that has more to send, or that is asked something else, be asked at once."""
        self._urgent.add(node)

    def replies(self) -> Iterator[tuple[int, Message]]:
        """Replies that have arrived, with their nodes. Only one is in memory at a time."""
        for message_id in list(self.unanswered):
            for reply in self.grid.pull_messages([message_id]):
                yield self.unanswered.pop(message_id), reply


@dataclass(frozen=True)
class Reply:
    """What a node sent for its client."""

    node: int
    client: str
    fields: Mapping[str, Any]
    problem: object
    """Why the site sends nothing for the task, in its own words; empty if it does."""
    blobs: Mapping[str, bytes]
    oversized: Mapping[str, int]
    """Names and sizes of blobs that are too large. They were not read."""
    settled: Sequence[tuple[str, str]]
    """Tasks and digests of uploads that the site believes to be here."""
    waiting: Sequence[str]
    """Tasks whose upload the site believes to be in quarantine."""
    validated: tuple[Label, ...]
    """Classes for which the site has validation rows."""

    @classmethod
    def read(cls, node: int, message: Message, largest: int) -> Reply:
        """Parse a reply with blobs of at most ``largest`` bytes. Every field is checked."""
        oversized: dict[str, int] = {}
        blobs, fields = blobs_of(message, largest, oversized), fields_of(message)
        header, client = Header(fields), check_id(fields.get("client"), "client")
        settled, waiting = read_settled(header), read_tasks(header, "waiting", MAX_SETTLED)
        validated, problem = read_labels(header, "validated"), fields.get("told")
        try:
            check_protocol(fields.get("protocol", 1), "this server", client)
        except Refused as reason:  # nothing in the answer can be trusted to mean what it says here
            problem, blobs, settled, waiting = str(reason), {}, [], ()
        return cls(node, client, fields, problem, blobs, oversized, settled, waiting, validated)
