"""Servers that deviate from the protocol of secure sums, against real sites in memory.

The server is honest, and what it sends to a site is altered on the way. So the sites see what a
dishonest server would send. At the end, a dishonest site.
"""

import json
from dataclasses import replace

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, MessageType

from fedran.federation.flower.records import make_record
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.secure.masking.attempt import Request, Stage
from fedran.federation.secure.masking.contribution import Content
from fedran.federation.secure.site.sum_files import SumFiles
from helpers.federation.flower_messages import blobs_of, fields_of
from helpers.federation.secure_federation import SecureFederation


@pytest.fixture
def four(tmp_path, monkeypatch, short_waits):
    return SecureFederation(tmp_path, monkeypatch, n=4)


def run(federation, change, task="may", **options):
    """A run in which ``change(name, request)`` alters the requests to each site.

    Returns what every site refused, by stage.
    """
    refused = {}

    def node(name):
        answer = federation.node(name)

        def altered(message):
            if message.metadata.message_type != MessageType.TRAIN:
                return answer(message)
            blobs, stages = blobs_of(message), {}
            for key, blob in blobs.items():
                found = Request.read(blob)
                stages[key] = found.stage
                blobs[key] = change(name, found).to_bytes()
            content = make_record(fields_of(message), blobs)
            body = answer(Message(content=content, metadata=message.metadata))
            said = json.loads(body["fields"]["json"]).get("refused", {})
            for key, why in said.items():
                refused.setdefault((name, stages[key]), why)
            return body

        return altered

    nodes = {10 + i: node(name) for i, name in enumerate(federation.names)}
    federation.run(task, nodes=nodes, **options)
    return refused


def revealed(federation, task="may"):
    """The sites that sent shares of somebody."""
    states = {name: federation.files(name).state(task) for name in federation.names}
    return [name for name, state in states.items() if state and Stage.REVEAL in state.answers]


def without(request, client):
    return replace(request, parts={c: p for c, p in request.parts.items() if c != client})


def sums(federation):
    with federation.store() as store:
        return [[client for client, _ in u.members] for u in store.database.uploads()]


def test_different_lists_of_survivors_for_different_sites(four):
    """Half of the sites are told that site-4 dropped out, the others that it survived."""

    def change(name, request):
        hide = request.stage is Stage.CONFIRM and name in ("site-1", "site-2")
        return without(request, "site-4") if hide else request

    refused = run(four, change)
    assert revealed(four) == []
    assert sums(four) == []
    assert all(stage in (Stage.CONFIRM, Stage.REVEAL) for _, stage in refused)


def test_a_site_that_is_named_alive_and_then_dead_in_one_attempt(four):
    """After the honest list the server asks again with another one, to get the other shares."""
    asked = []

    def change(name, request):
        if request.stage is Stage.REVEAL and name == "site-1" and request not in asked:
            asked.append(request)
            dead = dict.fromkeys(["site-1", "site-2", "site-3"], b"")
            return replace(request, stage=Stage.CONFIRM, parts=dead)
        return request

    refused = run(four, change)
    assert "expected the one that this site has answered" in refused["site-1", Stage.REVEAL]


def test_a_peers_key_that_the_server_replaced(four):
    """The server puts a key of its own in place of site-2's, to read what site-1 sends to it."""

    def change(name, request):
        if request.stage is Stage.SHARE and name == "site-1":
            forged = bytes(range(32)) + request.parts["site-2"][32:]
            return replace(request, parts={**request.parts, "site-2": forged})
        return request

    refused = run(four, change)
    assert refused["site-1", Stage.SHARE].startswith("signature of site-2: expected one by its key")
    assert all(members == four.names[1:] for members in sums(four))


def test_requests_of_an_earlier_attempt(four):
    """The first attempt fails before any vector. The second one gets the first one's requests."""
    recorded = {}

    def change(name, request):
        if request.attempt.number == 1:
            recorded[name, request.stage] = request
            hidden = request.stage is Stage.SHARE and name in ("site-2", "site-3")
            return without(request, name) if hidden else request
        return recorded[name, Stage.SHARE] if request.stage is Stage.SHARE else request

    refused = run(four, change)
    assert revealed(four) == []
    assert refused["site-1", Stage.SHARE].startswith("number of the attempt: expected 2, got 1")


def test_too_few_survivors(four):
    def change(name, request):
        few = request.stage is Stage.CONFIRM
        return without(without(request, "site-4"), "site-3") if few else request

    refused = run(four, change)
    assert refused["site-1", Stage.CONFIRM] == "survivors: expected 3 to 128 sites, got 2"
    assert set(refused) == {(name, Stage.CONFIRM) for name in four.names}
    assert revealed(four) == []


def test_a_site_that_refuses_everything_uses_up_no_attempt(four):
    """It would keep the server busy for ever, or end the sum of the others."""

    def lie(message, answer):
        body = answer()
        if message.metadata.message_type != MessageType.TRAIN:
            return body
        fields = json.loads(body["fields"]["json"])
        claims = {"may.x": "?", "may": {"number": 9}, "": 9, "may.2": "?"}
        claims |= {key: {"reason": "?"} for key in blobs_of(message)}
        return make_record({**fields, "refused": claims}, {})

    nodes = {10 + i: four.node(name) for i, name in enumerate(four.names)}
    nodes[13] = four.node("site-4", lie)
    four.run("may", nodes=nodes, min_clients=3)
    assert sums(four) == [four.names[:3]]
    with four.store() as store:
        assert json.loads(store.database.fact("attempts")) == {"may": 1}


def test_a_receipt_cannot_arrive_while_a_request_is_answered(four, monkeypatch):
    """A false receipt at the right moment could make a site forget that it has revealed shares."""
    held = []
    settle = SumFiles.settle

    def watched(files, receipt):
        held.append(lock_holder(files.folder.parent / "outbox") is not None)
        settle(files, receipt)

    monkeypatch.setattr(SumFiles, "settle", watched)
    four.run("may")
    assert len(held) >= 4
    assert all(held)


def test_a_contribution_to_another_content_than_agreed_is_not_sent(four, monkeypatch):
    """The sites were killed when they had made one for an attempt with the classes in another
    order, before they could note that they take part in it. So the first attempt goes on.
    """
    contents, killed, save = {}, set(), SumFiles.save

    def kill(files, state):
        if state.attempt.number == 2:
            killed.add(files.folder.parent.parent.name)
            raise InterruptedError
        save(files, state)

    monkeypatch.setattr(SumFiles, "save", kill)

    def node(name):
        answer = four.node(name)

        def altered(message):
            if message.metadata.message_type != MessageType.TRAIN:
                return answer(message)
            fields = fields_of(message)
            contents.update(fields["sums"]["contents"])
            for key, blob in blobs_of(message).items():
                found = Request.read(blob)
                if found.stage is not Stage.SHARE or name == "site-1":
                    continue
                known = Content.read(contents[key])
                other = replace(known, classes=known.classes[::-1])
                attempt = replace(found.attempt, number=2, content=other.digest)
                sums = {**fields["sums"], "contents": {"may.2": other.fields()}}
                forged = Request(attempt, Stage.ADVERTISE).to_bytes()
                content = make_record({**fields, "sums": sums}, {"may.2": forged})
                answer(Message(content=content, metadata=message.metadata))
            return answer(message)

        return altered

    four.run("may", nodes={10 + i: node(name) for i, name in enumerate(four.names)})
    assert killed == set(four.names[1:])
    assert sums(four) == []
    assert [four.files(name).state("may").stage for name in four.names[1:]] == [Stage.MASK] * 3
