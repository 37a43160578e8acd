"""One task from the server's side: offers go out, envelopes come in, receipts and the head go back.

Messages are pulled one at a time and dropped when absorbed: the server's memory does not grow
with the number of sites.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedran.core.errors import Refused
from fedran.core.ids import check_id
from fedran.federation.protocol.identity import base_task
from fedran.federation.protocol.messages import MOST_EARLIER, Receipt
from fedran.federation.protocol.transport import blobs_of, content, fields_of, receipts_fields
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store import Store
from fedran.federation.server.validation import Validation
from fedran.wire.codec import encode
from fedran.wire.files import read_json_object, write_atomically

POLL = 1.0
TRIES = 5
"""How often a node whose answer is an error is asked within one run."""
AGAIN = 10.0
"""Seconds before it is asked again."""
SLOW = 75.0
"""Seconds without an answer after which a node is asked again, then twice as many, ..."""
CATCH_UP = 120.0
"""Seconds that a run without a task waits for answers."""
WAITING = 30.0
"""Seconds between two lines about who is waited for."""
HAND_BACK = 90.0
"""Seconds that nodes have to take receipts and head."""
log = logging.getLogger(__name__)
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


class Round:
    """One run of the server app.

    ``owners`` says whose node is whose, where node keys are known: no site speaks for another.
    """

    def __init__(
        self,
        grid: Grid,
        settings: ServerSettings,
        store: Store,
        validation: Validation | None = None,
        owners: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.grid, self.settings, self.store = grid, settings, store
        self.validation, self.owners = validation, owners
        self.waiting: dict[str, int] = {}
        """Message -> node that it went to."""
        self.due: dict[int, float] = {}
        """Node -> when it may be asked (again)."""
        self.tries: dict[int, int] = {}
        self.asked: dict[int, float] = {}
        self.lost: set[int] = set()
        """Nodes that went away while they were waited for."""
        self.answered: dict[int, list[Receipt]] = {}
        self.holds: dict[int, str] = {}
        """Node -> digest of the head that it holds, as it says."""

    def run(self, task: str) -> Verdict:
        """The task to its end: everyone answered, or the deadline passed."""
        clients = frozenset(self.store.roster.clients) if task else frozenset[str]()
        least = self.settings.min_clients if task else 0
        deadline = self.settings.deadline if task else CATCH_UP
        quorum = Quorum(clients, least, deadline)
        for (client, name), digest in self.store.aggregator.absorbed.items():
            if task and base_task(name) == task:  # of an earlier run of the same task
                quorum.answer(Receipt("duplicate", client, name, digest))
        self._note(task, "open", quorum)
        verdict = self._collect(task, quorum)
        self._note(task, verdict, quorum)
        self._hand_back(task)
        return verdict

    def _collect(self, task: str, quorum: Quorum) -> Verdict:
        start, told = time.monotonic(), 0.0
        body = content({"offer": self._offer(task)}, {})
        while True:
            left = max(1.0, quorum.deadline - (time.monotonic() - start))
            self._ask(
                Message(body, dst_node_id=node, message_type=MessageType.TRAIN, ttl=left)
                for node in self._to_ask()
            )
            for node, reply in self._replies():
                self._take(node, reply, task, quorum)
            seconds = time.monotonic() - start
            verdict = quorum.verdict(seconds)
            answered = verdict != "wait" and (task or not self.waiting)
            if answered or seconds >= quorum.deadline:
                return verdict
            if seconds >= told + WAITING:
                told = seconds
                away = ", ".join(quorum.missing[:10])
                log.info("waiting for %s; %.0f s left", away, quorum.deadline - seconds)
            time.sleep(POLL)

    def _offer(self, task: str) -> dict[str, Any] | None:
        """The task and those before it; without one, the newest again for who missed it."""
        path = self.store.folder / "tasks.json"
        before = [str(t) for t in read_json_object(path).get("tasks", [])]
        came = sorted({base_task(t) for _, t in self.store.aggregator.absorbed})
        tasks = list(dict.fromkeys((*before, *came, *([task] if task else []))))
        if tasks != before:
            _write(path, json.dumps({"tasks": tasks}).encode())
        self.store.tasks = frozenset(tasks)
        newest = task or (tasks[-1] if tasks else "")
        earlier = [t for t in tasks if t != newest][-MOST_EARLIER:]
        return self.settings.offer(newest, earlier).fields() if newest else None

    def _to_ask(self) -> list[int]:
        """Connected nodes that were not asked yet, answered with an error, were away, or are slow.

        A node that was killed at work and is back has lost its message, and Flower may not say
        so; to one that is only slow, a second message does no harm.
        """
        now = time.monotonic()
        here, busy = set(self.grid.get_node_ids()), set(self.waiting.values())
        self.lost |= busy - here
        back = self.lost & here
        self.lost -= back
        back |= {n for n in busy & here if now - self.asked[n] > SLOW * self.tries[n]}
        due = {n for n in here - busy if self.due.get(n, 0.0) <= now}
        return [n for n in sorted(due | back) if self.tries.get(n, 0) < TRIES]

    def _ask(self, messages: Iterable[Message]) -> None:
        """Push messages one at a time, so that each one's number is known."""
        for message in messages:
            node = message.metadata.dst_node_id
            self.tries[node] = self.tries.get(node, 0) + 1
            self.asked[node] = time.monotonic()
            self.due[node] = float("inf")
            for number in self.grid.push_messages([message]):
                if number:
                    self.waiting[number] = node
                else:  # Flower did not take it
                    self.due[node] = time.monotonic() + AGAIN

    def _replies(self) -> Iterator[tuple[int, Message]]:
        """What has come, one message at a time in memory."""
        for number in list(self.waiting):
            for reply in self.grid.pull_messages([number]):
                yield self.waiting.pop(number), reply

    def _take(self, node: int, reply: Message, task: str, quorum: Quorum) -> None:
        """The envelopes of one node; only those of the open task count for it."""
        if reply.has_error():
            log.warning("node %s: %s; it is asked again", node, reply.error.reason)
            self.due[node] = time.monotonic() + AGAIN
            return
        try:
            large: dict[str, int] = {}
            blobs = blobs_of(reply, self.settings.largest_upload, large)
            fields = fields_of(reply)
            client, told = check_id(fields.get("client"), "client"), fields.get("told")
            owners = self.owners()
            if owners and owners.get(str(node)) != client:
                owner = owners.get(str(node), "nobody")
                raise Refused("client", f"{owner}, whose node it is", client)
        except Refused as reason:
            log.warning("node %s: %s", node, reason)
            return
        try:
            receipts = [self.store.receive(blob) for blob in blobs.values()]
        except OSError as reason:
            log.error("%s: not taken in, the disk refuses: %s; it is asked again", client, reason)
            self.due[node] = time.monotonic() + AGAIN
            return
        receipts += [_too_large(client, t, n, self.settings) for t, n in large.items()]
        self.answered[node] = receipts
        self.holds[node] = str(fields.get("head", ""))
        for receipt in receipts:
            why = f": {receipt.reason}" if receipt.reason else ""
            log.info("%s, %s: %s%s", receipt.client, receipt.task, receipt.outcome, why)
            if base_task(receipt.task) == task and receipt.client == client:
                quorum.answer(receipt)
        self.store.events.write("seen", client=client)
        if task and isinstance(told, str) and told and client not in quorum.answers:
            log.warning("%s, %s: nothing sent: %s", client, task, told)
            self.store.events.write("declined", client=client, task=task, reason=told)
            quorum.decline(client)

    def _hand_back(self, task: str) -> None:
        """Receipts and the newest head, to every node that is connected."""
        head, digest = self._head(task)
        nodes = list(self.grid.get_node_ids())
        self.waiting.clear()
        for node in nodes:
            fields = {"receipts": receipts_fields(self.answered.get(node, []))}
            lacks = head and self.holds.get(node) != digest
            body = content(fields, {"head": head} if lacks else {})
            kind = MessageType.QUERY
            self._ask([Message(body, dst_node_id=node, message_type=kind, ttl=HAND_BACK)])
        before = read_json_object(self.store.folder / "served.json")
        served = set(before.get("nodes", [])) if before.get("head") == digest else set()
        deadline = time.monotonic() + HAND_BACK
        while self.waiting and time.monotonic() < deadline:
            for node, reply in self._replies():
                if not reply.has_error() and _holds(reply) == digest and node in self.answered:
                    served.add(str(node))  # others are asked again: they may have rows to send
            time.sleep(POLL / 2)
        note = {"head": digest, "nodes": sorted(served)}
        _write(self.store.folder / "served.json", json.dumps(note).encode())
        lacking = {str(n) for n in nodes} - served
        if head and lacking:
            log.warning("%d of %d nodes will be asked again", len(lacking), len(nodes))

    def _head(self, task: str) -> tuple[bytes, str]:
        """The newest head as bytes, and their digest; nothing before the first upload."""
        if not self.store.aggregator.absorbed:
            return b"", ""
        start = time.monotonic()
        head = self.store.solve()
        seconds = time.monotonic() - start
        blob = encode(head)
        digest = hashlib.sha256(blob).hexdigest()
        path = self.store.folder / "head.fedran"
        if not path.is_file() or path.read_bytes() != blob:
            _write(path, blob)
            accuracy = self.validation.accuracy(head) if self.validation else None
            shown = "" if accuracy is None else f", accuracy {100 * accuracy:.2f} %"
            log.info("new head: %d classes%s", len(head.classes), shown)
            self.store.events.write(
                "head",
                task=task,
                classes=len(head.classes),
                bytes=len(blob),
                digest=digest,
                accuracy=accuracy,
                seconds=round(seconds, 3),
            )
        return blob, digest

    def _note(self, task: str, state: str, quorum: Quorum) -> None:
        if not task:
            return
        missing = quorum.missing
        log.info(
            "task %s: %s, %d %s in%s",
            task,
            state,
            quorum.accepted,
            "upload" if quorum.accepted == 1 else "uploads",
            f", missing {', '.join(missing[:10])}" if missing and state != "open" else "",
        )
        self.store.events.write(
            "task",
            task=task,
            state=state,
            asked=sorted(quorum.asked),
            min_clients=quorum.min_clients,
            deadline=quorum.deadline,
            missing=missing,
        )


def _too_large(client: str, task: str, size: int, settings: ServerSettings) -> Receipt:
    expected = f"at most {settings.largest_upload} bytes"
    reason = Refused("upload", expected, size, hint="the server's `largest_upload` limits it")
    return Receipt("refused", client, task, "?", str(reason))


def _write(path: Path, data: bytes) -> None:
    """Keep what can be made again; a full disk must not end a task."""
    try:
        write_atomically(path, data)
    except OSError as reason:
        log.error("%s not written: %s", path.name, reason)


def _holds(reply: Message) -> Any:
    """The digest of the head that a node says it holds."""
    try:
        return fields_of(reply).get("head")
    except Refused:
        return None
