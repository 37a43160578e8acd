"""A wrong answer of one node does not affect the others."""

import logging

import pytest

pytest.importorskip("flwr")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    MessageType,
    MetricRecord,
    RecordDict,
)

import fedran
from fedran.federation.flower.records import make_record
from fedran.federation.server import settings as server_settings
from helpers.federation.fleet import NAMES, Site, events, honest, named, raw, served, text
from helpers.federation.made_federation import D, full_disk, large, upload

MALFORMED = {
    "another kind of array": raw(Array("uint8", (3,), "numpy.ndarray", b"abc")),
    "nothing": RecordDict(),
    "no fields": RecordDict({"blobs": ArrayRecord({})}),
    "no JSON": text("{"),
    "a list": text("[]"),
    "a number": text("7"),
    "an array as fields": RecordDict({"fields": ArrayRecord({})}),
    "numbers as fields": RecordDict({"fields": MetricRecord({"json": 3})}),
    "no client": make_record({"head": "", "told": ""}, {}),
    "a path as client": named(client="../../x"),
    "a number as client": named(client=3),
    "an escape as client": named(client="\x1b[31m"),
}


CRASHING = {
    "nested": text("[" * 10**5),
    "words as blobs": RecordDict({**named(), "blobs": ConfigRecord({"may": "x"})}),
    "numbers as blobs": RecordDict({**named(), "blobs": MetricRecord({"may": 3})}),
}


CASES = [pytest.param(body, id=name) for name, body in MALFORMED.items()]
CASES += [pytest.param(body, id=name) for name, body in CRASHING.items()]


def test_a_forged_answer_for_another_site_counts_for_nobody(server, sites):
    nodes = honest(sites)
    forged = sites.envelope("site-1", "may", upload(77), key=sites.keys["site-2"])
    nodes[12] = Site("site-2", sites.envelope("site-2", "may"), forged)
    assert server("may", nodes) == "complete"
    assert [r["outcome"] for r in nodes[11].receipts] == ["accepted"]
    assert events(server, "task")[-1]["missing"] == []


def test_an_upload_that_is_too_large_is_refused_and_the_others_are_not(server, sites, monkeypatch):
    monkeypatch.setattr(server_settings, "LEAST_LIMIT", 1024)
    nodes = honest(sites)
    nodes[11] = Site("site-1", sites.envelope("site-1", "may"), b"\0" * 5000)
    assert server("may", nodes, budget_bytes=3072) == "complete"
    assert sorted(r["outcome"] for r in nodes[11].receipts) == ["accepted", "refused"]
    assert any("at most 4096 bytes" in r["reason"] for r in nodes[11].receipts)


def test_a_node_may_only_answer_for_its_own_client(server, sites, caplog):
    nodes = honest(sites, names=NAMES[:2])
    nodes[13] = Site("site-1", told="nothing from site-1")
    owners = {"11": "site-1", "12": "site-2", "13": "site-3"}
    assert server("may", nodes, owners=lambda: owners) == "quorum"
    assert "node 13: client: expected site-3, the owner of this node, got site-1" in caplog.text
    assert events(server, "declined") == []
    assert events(server, "task")[-1]["missing"] == ["site-3"]


def test_answers_of_nodes_without_a_known_owner_are_not_taken(server, sites, caplog):
    """The list of nodes may be lost with a damaged database."""
    nodes = honest(sites)
    assert server("may", nodes, owners=dict) == "short"
    assert "no client is known for the node" in caplog.text
    assert len(server.store.aggregator.absorbed) == 0
    owners = {"11": "site-1", "12": "site-2", "13": "site-3"}
    assert server("may", nodes, owners=lambda: owners) == "complete"


def test_answers_are_not_taken_while_the_list_of_nodes_cannot_be_read(server, sites, caplog):
    owners, reads = {"11": "site-1", "12": "site-2", "13": "site-3"}, []

    def damaged_twice():
        reads.append(1)
        if len(reads) <= 2:
            raise OSError("a row of the table nodes is not what was written")
        return owners

    assert server("may", honest(sites), deadline=5.0, owners=damaged_twice) == "complete"
    assert "the table nodes" in caplog.text
    assert len(server.grid.of(MessageType.TRAIN)) == 5


def test_a_line_of_progress_does_not_need_the_list_of_nodes(server, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("fedran.federation.server.round.round.FIRST_PROGRESS", 0.0)

    def damaged():
        raise OSError("a row of the table nodes is not what was written")

    assert server("may", {11: lambda _: None}, owners=damaged) == "short"
    assert "waiting for site-1, site-2, site-3; 0 s left" in caplog.text


def test_an_unsigned_client_name_beside_an_upload_proves_nothing(server, sites):
    """Only the client in the signed envelope counts."""
    nodes = honest(sites, names=NAMES[:1])
    stolen = sites.envelope("site-2", "may", key=sites.keys["site-3"])
    nodes[13] = Site("site-2", stolen)
    assert server("may", nodes, min_clients=2) == "short"
    assert nodes[13].receipts[0]["outcome"] == "refused"
    assert list(server.store.aggregator.absorbed) == [("site-1", "may")]


@pytest.mark.parametrize("body", CASES)
def test_a_malformed_answer_does_not_affect_other_nodes(body, server, sites, caplog, monkeypatch):
    monkeypatch.setattr(server_settings, "LEAST_LIMIT", 1024)
    nodes = honest(sites, names=NAMES[:2])
    nodes = {13: lambda m: body, **nodes}
    with caplog.at_level(logging.WARNING):
        assert server("may", nodes, budget_bytes=3072) == "quorum"
    assert "node 13: " in caplog.text
    assert "\x1b" not in caplog.text
    assert len(server.grid.of(MessageType.TRAIN, 13)) == 1
    assert set(server.store.aggregator.absorbed) == {("site-1", "may"), ("site-2", "may")}
    assert sorted(served(server.folder)["nodes"]) == ["11", "12"]


def test_a_site_with_a_later_protocol_is_told_apart_from_one_without_rows(server, sites):
    """Nobody waits for it, and the reason is in the status. Its uploads are not read."""
    nodes = honest(sites)
    blob = sites.envelope("site-1", "may")
    told = {"client": "site-1", "head": "", "told": "", "protocol": 2}
    nodes[11] = lambda message: make_record(told, {"b": blob})
    assert server("may", nodes, deadline=30.0) == "complete"
    assert server.seconds < 20
    (event,) = events(server, "declined")
    assert "expected version 1 or earlier, which this server knows, got 2" in event["reason"]
    assert "install the version of fedran that site-1 has" in event["reason"]
    assert ("site-1", "may") not in server.store.aggregator.absorbed


def test_an_answer_without_a_version_is_of_the_first_protocol(server, sites):
    nodes = honest(sites)
    assert server("may", nodes) == "complete"
    assert events(server, "declined") == []


def test_an_answer_with_a_null_problem_does_not_decline(server, sites):
    nodes = honest(sites)
    nodes[11].told = None
    assert server("may", nodes) == "complete"
    assert events(server, "declined") == []


def test_a_node_gets_one_receipt_per_upload_good_or_bad(server, sites):
    nodes = honest(sites, names=NAMES[:2])
    nodes[13] = Site("site-3", b"garbage", sites.envelope("site-3", "may"), b"\0" * 100)
    assert server("may", nodes) == "complete"
    assert [r["outcome"] for r in nodes[13].receipts] == ["refused", "accepted", "refused"]


def test_a_round_with_a_full_disk_acknowledges_nothing(server, sites, caplog):
    server("april", honest(sites, "april"))
    nodes = {
        n: Site(name, sites.envelope(name, "may", large(n))) for n, name in enumerate(NAMES, 11)
    }
    with full_disk(server.store.database):
        assert server("may", nodes) == "short"
    assert [site.receipts for site in nodes.values()] == [[], [], []]
    assert "node 11: its answer is not kept" in caplog.text
    assert server("may", nodes) == "complete"
    assert [site.receipts[0]["outcome"] for site in nodes.values()] == ["accepted"] * 3


def test_an_upload_of_another_feature_map_is_refused(server, sites):
    other = fedran.KernelFeatures(D, source="another")
    nodes = {11: Site("site-1", sites.envelope("site-1", "may", upload(1, phi=other)))}
    assert server("may", nodes) == "short"
    assert "feature map differs" in nodes[11].receipts[0]["reason"]
    assert nodes[11].head == b""
