"""Nodes of a federation in memory: Flower's grid as the server's round sees it."""

import hashlib
import json
from contextlib import closing

import pytest

pytest.importorskip("flwr")

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    MessageType,
    RecordDict,
)
from flwr.supercore.task_identity import TaskIdentity

from fedran.federation.flower.records import make_record
from fedran.federation.server.store.database import Database
from helpers.federation.flower_messages import blobs_of, fields_of

NAMES = ("site-1", "site-2", "site-3")


def shorten_waits(monkeypatch):
    """Let rounds poll quickly, in a process that Flower would have started for a run."""
    for name, seconds in (("POLL", 0.01), ("HAND_BACK", 0.5), ("CATCH_UP", 0.4)):
        monkeypatch.setattr(f"fedran.federation.server.round.round.{name}_SECONDS", seconds)
    monkeypatch.setattr("fedran.federation.secure.server.secure_round.POLL_SECONDS", 0.01)
    monkeypatch.setattr("fedran.federation.server.round.messenger.RETRY_SECONDS", 0.02)
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Fleet:
    """Flower's grid as the round sees it; each node is a function from a message to its answer."""

    def __init__(self, nodes):
        self.nodes, self.sent, self.replies = dict(nodes), [], {}
        self.pulled = []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            assert message.metadata.ttl > 0
            node, number = message.metadata.dst_node_id, f"m{len(self.sent)}"
            self.sent.append(message)
            numbers.append(number)
            body = self.nodes[node](message)
            if isinstance(body, Error):
                body = Reply(error=body)
            elif body is not None:
                body = Reply(content=body)
            self.replies[number] = body
        return numbers

    def pull_messages(self, message_ids):
        numbers = list(message_ids)
        self.pulled.append(len(numbers))
        found = [self.replies.pop(n) for n in numbers if self.replies.get(n) is not None]
        return iter(found)

    def of(self, kind, node=None):
        return [
            m
            for m in self.sent
            if m.metadata.message_type == kind and node in (None, m.metadata.dst_node_id)
        ]


class Reply:
    """What the round uses of a Flower message."""

    def __init__(self, content=None, error=None):
        self.content, self.error = content, error

    def has_error(self):
        return self.error is not None


class Site:
    """An honest site: sends what it has, keeps the head."""

    def __init__(self, client, *blobs, told=""):
        self.client, self.blobs, self.told = client, blobs, told
        self.head, self.receipts = b"", []

    def __call__(self, message):
        fields = fields_of(message)
        if message.metadata.message_type == MessageType.QUERY:
            self.receipts += fields["receipts"]
            self.head = blobs_of(message).get("head", self.head)
            return make_record({"client": self.client, "head": self._digest(), "told": ""}, {})
        named = {f"b{n}": blob for n, blob in enumerate(self.blobs)}
        return make_record(
            {"client": self.client, "head": self._digest(), "told": self.told}, named
        )

    def _digest(self):
        return hashlib.sha256(self.head).hexdigest() if self.head else ""


class Flaky(Site):
    """Answers with an error so many times."""

    def __init__(self, client, times, *blobs):
        super().__init__(client, *blobs)
        self.times = times

    def __call__(self, message):
        if message.metadata.message_type == MessageType.TRAIN and self.times:
            self.times -= 1
            return Error(1, "it broke\x1b[31m")
        return super().__call__(message)


class Deaf(Site):
    """Takes no head: no answer, an error, another digest, or none that can be read."""

    def __call__(self, message):
        if message.metadata.message_type == MessageType.TRAIN:
            return super().__call__(message)
        return self.how


def served(folder):
    with closing(Database(folder, read_only=True)) as database:
        head, nodes = database.served()
    return {"head": head, "nodes": sorted(nodes)}


def heads(server):
    return server.store.database.heads()


def events(server, event):
    return [e for e in server.store.events.read() if e["event"] == event]


def offers(server):
    return [fields_of(m)["offer"] for m in server.grid.of(MessageType.TRAIN)]


def honest(sites, task="may", names=NAMES):
    return {n: Site(name, sites.envelope(name, task)) for n, name in enumerate(names, 11)}


def raw(array):
    fields = ConfigRecord({"json": json.dumps({"client": "site-3", "head": "", "told": ""})})
    return RecordDict({"fields": fields, "blobs": ArrayRecord({"may": array})})


def named(**fields):
    return make_record({"client": "site-3", "head": "", "told": "", **fields}, {})


def text(words):
    return RecordDict({"fields": ConfigRecord({"json": words})})
