"""Nodes that fail, vanish or come late are asked again, a limited number of times."""

import pytest

pytest.importorskip("flwr")

from flwr.app import (
    Error,
    Message,
    MessageType,
)

from fedran.federation.protocol.limits import MAX_FAILURES
from fedran.federation.server.round import messenger
from helpers.federation.fleet import (
    Flaky,
    Fleet,
    Reply,
    honest,
    served,
)


def test_a_node_whose_answer_is_an_error_is_asked_again(server, sites, caplog):
    nodes = honest(sites)
    nodes[11] = Flaky("site-1", 2, sites.envelope("site-1", "may"))
    assert server("may", nodes) == "complete"
    assert len(server.grid.of(MessageType.TRAIN, 11)) == 3
    assert len(server.grid.of(MessageType.TRAIN, 12)) == 1
    assert "node 11: it broke" in caplog.text


def test_a_node_that_always_fails_is_asked_a_limited_number_of_times(server, sites):
    nodes = honest(sites)
    nodes[11] = Flaky("site-1", 10**6, sites.envelope("site-1", "may"))
    assert server("may", nodes) == "quorum"
    assert len(server.grid.of(MessageType.TRAIN, 11)) == MAX_FAILURES
    assert len(server.grid.of(MessageType.TRAIN)) == MAX_FAILURES + 2
    assert "11" not in served(server.folder)["nodes"], "it may have an upload: it is asked again"


def test_a_node_that_connects_later_is_asked_too(server, sites):
    nodes = honest(sites)

    class Growing(Fleet):
        def get_node_ids(self):
            self.looks = getattr(self, "looks", 0) + 1
            return list(self.nodes)[: self.looks]

    assert server("may", Growing(nodes), deadline=5.0) == "complete"
    assert [len(server.grid.of(MessageType.TRAIN, n)) for n in nodes] == [1, 1, 1]


def test_a_node_that_is_silent_for_long_is_asked_again(server, sites, monkeypatch):
    monkeypatch.setattr(messenger, "SLOW_SECONDS", 0.1)
    nodes = honest(sites)
    site, asked = nodes[11], []

    def deaf_once(message):
        asked.append(message)
        return site(message) if len(asked) > 1 else None

    nodes[11] = deaf_once
    assert server("may", nodes, deadline=5.0) == "complete"
    assert len(server.grid.of(MessageType.TRAIN, 11)) == 2


def test_a_slow_node_does_not_use_up_the_budget_for_errors(server, sites, monkeypatch):
    monkeypatch.setattr(messenger, "SLOW_SECONDS", 0.0)
    nodes = honest(sites)
    site, asked = nodes[11], []

    def slow(message):
        asked.append(message)
        return site(message) if len(asked) > MAX_FAILURES + 2 else None

    nodes[11] = slow
    assert server("may", nodes, deadline=5.0) == "complete"


def test_a_node_that_was_killed_at_work_and_is_back_is_asked_again(server, sites):
    """Flower may deliver a message to a process that dies without reporting it."""
    nodes = honest(sites)
    honest_site, asked = nodes[11], []

    def killed_once(message):
        if message.metadata.message_type == MessageType.TRAIN and not asked:
            asked.append(message)
            return None
        return honest_site(message)

    nodes[11] = killed_once

    class Leaving(Fleet):
        def get_node_ids(self):
            self.looks = getattr(self, "looks", 0) + 1
            return [n for n in self.nodes if n != 11 or self.looks not in (3, 4)]

    assert server("may", Leaving(nodes), deadline=5.0) == "complete"
    assert len(server.grid.of(MessageType.TRAIN, 11)) == 2
    assert server.seconds < 4


def test_messages_that_flower_does_not_take_are_sent_again(server, sites):
    """Flower returns an empty id for such a message, and an error for that id."""

    class Refusing(Fleet):
        refusals = 2

        def push_messages(self, messages):
            (message,) = messages
            if self.refusals and message.metadata.message_type == MessageType.TRAIN:
                self.refusals -= 1
                return [""]
            return super().push_messages([message])

        def pull_messages(self, message_ids):
            if list(message_ids) == [""]:
                return [Reply(error=Error(1, "unknown message"))]
            return super().pull_messages(message_ids)

    assert server("may", Refusing(honest(sites))) == "complete"


def test_messages_are_pulled_one_at_a_time(server, sites):
    server("may", honest(sites))
    assert set(server.grid.pulled) == {1}


def test_offers_are_flower_messages_that_expire_with_the_deadline(server, sites):
    server("may", honest(sites))
    assert all(isinstance(m, Message) for m in server.grid.sent)
    assert all(m.metadata.ttl <= 1.0 for m in server.grid.of(MessageType.TRAIN))
