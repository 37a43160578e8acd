"""One task at the server: offers, answers, deadline, receipts and the head."""

import hashlib
from contextlib import closing

import pytest

pytest.importorskip("flwr")

from flwr.app import MessageType

import fedran
from fedran.federation.flower.records import make_record
from fedran.federation.protocol.limits import MAX_EARLIER
from fedran.federation.protocol.messages import Offer, open_envelope
from fedran.federation.server.round.quorum import CLOSED
from fedran.federation.server.store.database import Database
from helpers.federation.fleet import (
    NAMES,
    Site,
    events,
    heads,
    honest,
    offers,
    served,
)
from helpers.federation.flower_messages import fields_of


def opened(server):
    return [task.task for task in server.store.database.tasks()]


def test_a_task_ends_with_receipts_and_the_head_for_everyone(server, sites):
    nodes = honest(sites)
    nodes[99] = Site("stranger")
    assert server("may", nodes) == "complete"
    head = (server.folder / "head.fedran").read_bytes()
    for n, name in enumerate(NAMES, 11):
        (receipt,) = nodes[n].receipts
        assert (receipt["client"], receipt["task"], receipt["outcome"]) == (name, "may", "accepted")
        assert nodes[n].head == head
    assert (nodes[99].receipts, nodes[99].head) == ([], head)
    note = served(server.folder)
    assert note["head"] == hashlib.sha256(head).hexdigest()
    assert sorted(note["nodes"]) == ["11", "12", "13", "99"]
    assert fedran.load(server.folder / "head.fedran").classes == (0, 1)
    assert [e["state"] for e in events(server, "task")] == ["open", "complete"]
    (solved,) = heads(server)
    assert (solved.task, solved.classes, solved.accuracy) == ("may", 2, None)
    assert (solved.digest, solved.last_upload) == (note["head"], 3)


def test_an_offer_lists_the_earlier_tasks(server, sites):
    for task, earlier in (("may", []), ("june", ["may"]), ("may", ["june"]), ("july", None)):
        server(task, honest(sites, task))
        found = offers(server)
        assert len(found) == 3
        assert all(Offer.read(f).task == task for f in found)
        assert found[0]["earlier"] == (["may", "june"] if earlier is None else earlier)
    assert opened(server) == ["may", "june", "july"]


def test_an_offer_lists_a_limited_number_of_earlier_tasks(server, sites):
    server("may", honest(sites))
    tasks = [f"task-{n}" for n in range(MAX_EARLIER + 50)]
    for task in tasks:
        server.store.database.set_task(task)
    server("new", {11: Site("site-1", told="none")})
    offer = Offer.read(offers(server)[0])
    assert offer.earlier == tuple(tasks[-MAX_EARLIER:])


def test_a_run_without_a_task_offers_the_newest_task_again(server, sites):
    server("may", honest(sites))
    server("june", honest(sites, "june", NAMES[:2]))
    before = len(events(server, "task")), len(events(server, "declined"))
    late = Site("site-3", sites.envelope("site-3", "june"), told="something")
    server("", {13: late})
    assert [Offer.read(f).task for f in offers(server)] == ["june"]
    assert late.receipts[0]["outcome"] == "accepted"
    assert late.head == (server.folder / "head.fedran").read_bytes()
    assert (len(events(server, "task")), len(events(server, "declined"))) == before
    assert served(server.folder)["nodes"] == ["13"]
    assert opened(server) == ["may", "june"]


def test_a_run_without_a_task_before_the_first_one_offers_nothing(server):
    site = Site("site-1")
    server("", {11: site})
    assert offers(server) == [None]
    assert (site.head, served(server.folder)) == (b"", {"head": "", "nodes": ["11"]})
    assert opened(server) == []
    assert not (server.folder / "head.fedran").exists()


def test_a_run_without_a_task_waits_a_limited_time_for_answers(server, sites, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("fedran.federation.server.round.round.FIRST_PROGRESS", 0.0)
    server("may", honest(sites))
    server("", {11: lambda _: None})
    assert 0.4 <= server.seconds < 5
    assert "waiting for 1 connected nodes; 0 s left" in caplog.text


def test_a_run_without_a_task_and_without_nodes_ends_at_once(server):
    server("", {})
    assert server.seconds < 0.3


@pytest.mark.parametrize("least", [1, 2])
def test_the_deadline_ends_a_task_with_the_uploads_that_came(least, server, sites):
    nodes = {11: Site("site-1", sites.envelope("site-1", "may")), 12: lambda _: None}
    assert server("may", nodes, min_clients=least) == ("quorum" if least == 1 else "short")
    assert 0.2 <= server.seconds < 0.2 + 0.5 + 3
    assert events(server, "task")[-1]["missing"] == ["site-2", "site-3"]
    assert nodes[11].receipts[0]["outcome"] == "accepted"
    assert served(server.folder)["nodes"] == ["11"]


def test_a_closed_task_ends_with_the_uploads_that_came_and_can_be_run_again(
    server, sites, monkeypatch, caplog
):
    caplog.set_level("INFO")
    monkeypatch.setattr("fedran.federation.server.round.round.FIRST_PROGRESS", 0.0)

    def close(_):
        with closing(Database(server.folder)) as database:
            database.set_fact(CLOSED, "may")

    nodes = {11: Site("site-1", sites.envelope("site-1", "may")), 12: close}
    owners = {"11": "site-1", "12": "site-2"}
    assert server("may", nodes, deadline=60.0, owners=lambda: owners) == "quorum"
    assert server.seconds < 20
    assert fedran.load(server.folder / "head.fedran").classes == (0, 1)
    (task,) = server.store.database.tasks()
    assert (task.missing, task.deadline) == (("site-2", "site-3"), pytest.approx(0, abs=20))
    nodes[12] = lambda _: None
    server("may", nodes, deadline=0.6, owners=lambda: owners)
    assert server.seconds >= 0.6
    assert (
        "waiting for site-2, site-3 (not connected); 1 s left; `fedran federation close` ends the "
        "task now"
    ) in caplog.text


def test_a_task_does_not_wait_for_sites_that_declined(server, sites):
    nodes = honest(sites, names=NAMES[:1])
    nodes[12] = Site("site-2", told="no rows\x1b[31m for task may yet")
    nodes[13] = Site("site-3", told="x" * 10**5)
    assert server("may", nodes, deadline=30.0) == "complete"
    assert server.seconds < 10
    assert [e["client"] for e in events(server, "declined")] == ["site-2", "site-3"]
    assert "\x1b" not in str(events(server, "declined"))
    assert nodes[12].head == (server.folder / "head.fedran").read_bytes()


class Hoarder(Site):
    """Sends one upload per message and says that it has more."""

    def __call__(self, message):
        fields = fields_of(message)
        if message.metadata.message_type != MessageType.TRAIN:
            return super().__call__(message)
        known = {receipt["task"] for receipt in fields["receipts"]}
        left = [b for b in self.blobs if open_envelope(b).statement.task not in known]
        told = {"client": self.client, "head": self._digest(), "told": "", "more": len(left) > 1}
        return make_record(told, {"one": left[0]} if left else {})


def test_a_node_with_more_uploads_is_asked_again_and_told_what_arrived(server, sites):
    tasks = ["jan", "feb", "march", "april"]
    server("jan", {})
    for task in tasks:
        server.store.database.set_task(task)
    server.store.open_task("april")
    hoarder = Hoarder("site-1", *(sites.envelope("site-1", t) for t in tasks))
    server("", {11: hoarder})
    assert sorted(server.store.aggregator.absorbed) == sorted(("site-1", t) for t in tasks)
    assert len(server.grid.of(MessageType.TRAIN, 11)) == 4
    assert [r["outcome"] for r in hoarder.receipts] == ["accepted"] * 4


def test_a_task_does_not_wait_for_older_uploads_which_are_fetched_afterwards(server, sites):
    server("april", {})
    nodes = honest(sites)
    nodes[11] = Hoarder("site-1", *(sites.envelope("site-1", t) for t in ("may", "april")))
    assert server("may", nodes, deadline=5.0) == "complete"
    assert "11" not in served(server.folder)["nodes"], "so the next update asks it again"
    server("", nodes)
    assert ("site-1", "april") in server.store.aggregator.absorbed
    assert "11" in served(server.folder)["nodes"]


def test_a_node_that_always_claims_to_have_more_is_asked_only_while_it_sends_something_new(
    server, sites
):
    blob = sites.envelope("site-1", "may")

    def liar(message):
        told = {"client": "site-1", "head": "", "told": "", "more": True}
        return make_record(told, {"b": blob})

    server("may", {11: liar}, deadline=0.5)
    assert len(server.grid.of(MessageType.TRAIN, 11)) == 2, "the second reply has nothing new"


def test_uploads_of_other_tasks_do_not_count_for_the_open_task(server, sites):
    nodes = honest(sites)
    server("april", honest(sites, "april", NAMES[:0]))
    late, foreign = (sites.envelope("site-1", task) for task in ("april", "never-opened"))
    nodes[11] = Site("site-1", late, foreign)
    assert server("may", nodes) == "quorum"
    assert events(server, "task")[-1]["missing"] == ["site-1"]
    assert [r["outcome"] for r in nodes[11].receipts] == ["accepted", "refused"]
    assert ("site-1", "april") in server.store.aggregator.absorbed


def test_a_repeated_task_counts_the_uploads_of_its_first_run(server, sites):
    nodes = honest(sites)
    server("may", nodes)
    for node in nodes.values():
        node.blobs = ()
    assert server("may", nodes, deadline=5.0) == "complete"
    assert server.seconds < 4


def test_a_site_that_sends_an_upload_has_not_declined_whatever_it_says(server, sites):
    nodes = honest(sites)
    nodes[11].told = "no rows for may yet"
    assert server("may", nodes) == "complete"
    assert events(server, "declined") == []


def test_uploads_sent_twice_count_for_the_quorum_and_leave_the_head_unchanged(server, sites):
    nodes = honest(sites)
    server("may", nodes)
    head = (server.folder / "head.fedran").read_bytes()
    assert server("may", nodes) == "complete"
    assert [site.receipts[-1]["outcome"] for site in nodes.values()] == ["duplicate"] * 3
    assert (server.folder / "head.fedran").read_bytes() == head
    assert len(heads(server)) == 1


def test_an_offer_lists_the_classes_that_are_known_or_allowed(server, sites):
    def listed():
        return offers(server)[0]["classes"], offers(server)[0]["known_classes"]

    server("may", honest(sites))
    assert listed() == ([], [])
    server("june", honest(sites, "june"))
    assert listed() == ([], [0, 1])
    server("july", honest(sites, "july"), classes=[1, 0, "x"])
    assert listed() == ([0, 1, "x"], [])
