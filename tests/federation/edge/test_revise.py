"""Sums that are made again: a member revised its upload, or the server's owner removed it."""

import pytest

pytest.importorskip("cryptography")

from fedran.federation.edge.edge import UploadMissing
from fedran.federation.edge.folder import revise_sums
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.protocol.receipts import Code
from fedran.federation.server.answers import not_here
from fedran.federation.server.store import Store
from helpers.made_edge import outcomes, uploads
from helpers.made_federation import SETTINGS, same_state, upload


def forwarded(edge, server, *blobs):
    """Members' uploads, forwarded as one sum that the server accepted."""
    assert set(outcomes(edge, *blobs)) == {"accepted"}
    edge.outbox.settle(server.receive(edge.forward("may").to_bytes()))


def forget(server, edge, *members):
    """Remove members at the server, and bring its requests to the edge."""
    for member in members:
        server.forget(member, "may", "me", SiteKey.generate())
    for receipt in not_here(server, "edge", edge.outbox.settled()):
        edge.outbox.settle(receipt)


def send(edge, server):
    """What the edge's site sends at its next contact; returns the codes."""
    receipts = [server.receive(edge.outbox.envelope(t)) for t in edge.outbox.pending()]
    for receipt in receipts:
        edge.outbox.settle(receipt)
    return [receipt.code for receipt in receipts]


def test_a_members_revision_revises_the_sum_bit_for_bit(sites, opened, server, tmp_path):
    first, second = uploads(sites, "site-1", "site-2")
    edge = opened()
    forwarded(edge, server, first, second)
    revised = sites.envelope("site-2", "may", upload(7, classes=(1, 2)), revision=1)
    assert outcomes(edge, revised, second) == ["accepted", "refused"]
    (total,) = opened().revise()
    edge = opened()
    assert edge.revise() == []
    assert (total.statement.task, total.statement.revision) == ("may.sum-1", 1)
    assert [p.statement.revision for p in total.proofs] == [0, 1]
    assert send(edge, server) == [Code.ACCEPTED]
    other = Store(tmp_path / "other", SETTINGS, sites.roster)
    assert other.receive(total.to_bytes()).code == Code.ACCEPTED
    assert same_state(server, other)
    other.close()


def test_a_sum_keeps_its_budget_when_it_is_revised(sites, opened, server):
    edge = opened()
    outcomes(edge, *uploads(sites, "site-1", "site-2", "site-3"))
    edge.forward("may", budget_bytes=2200)
    edge.receive(sites.envelope("site-2", "may", upload(7, classes=(1, 2)), revision=1))
    (total,) = edge.revise()
    assert len(total.upload) <= 2200


def test_a_revision_of_an_upload_that_was_not_forwarded_revises_nothing(sites, opened):
    edge = opened()
    revised = sites.envelope("site-1", "may", upload(7), revision=1)
    assert outcomes(edge, *uploads(sites, "site-1"), revised) == ["accepted"] * 2
    assert edge.revise() == []
    (proof,) = edge.forward("may").proofs
    assert proof.statement == open_envelope(revised).statement


def test_forgetting_a_member_asks_the_edge_for_a_revised_sum(sites, opened, server):
    blobs = uploads(sites, "site-1", "site-2", "site-3")
    edge = opened()
    forwarded(edge, server, *blobs)
    forget(server, edge, "site-2")
    assert server.database.count() == 0
    assert edge.outbox.receipt("may.sum-1").without == ("site-2",)
    assert edge.outbox.pending() == []
    said = []
    revise_sums(edge, None, said.append)
    assert "may.sum-1: the sum of site-1, site-3" in said[0]
    assert send(edge, server) == [Code.ACCEPTED]
    assert server.aggregator.accounts.n_rows == 40
    assert set(server.aggregator.classes) == {0, 1, 2, 3}
    edge = opened()
    assert outcomes(edge, blobs[1]) == ["refused"]  # it was deleted here too, for good
    assert blobs[1] not in list(edge.database.envelopes())
    assert edge.forward("may") is None


def test_a_sum_of_which_every_member_was_forgotten_is_deleted(sites, opened, server):
    edge = opened()
    forwarded(edge, server, *uploads(sites, "site-1", "site-2"))
    forget(server, edge, "site-1", "site-2")
    revise_sums(edge, None, print)
    assert edge.outbox.envelope("may.sum-1") is None
    assert edge.outbox.pending() == edge.outbox.to_revise() == []
    outcomes(edge, *uploads(sites, "site-3"))
    assert edge.forward("may").statement.task == "may.sum-2"


def test_forgetting_a_member_of_an_inner_edge_reaches_the_outer_sum(sites, opened, server):
    inner = opened("inner")
    outcomes(inner, *uploads(sites, "site-1", "site-2"))
    nested = inner.forward("may").to_bytes()
    edge = opened()
    forwarded(edge, server, nested, sites.envelope("site-3", "may"))
    forget(server, edge, "site-2")
    revise_sums(edge, None, print)
    assert send(edge, server) == [Code.ACCEPTED]
    assert open_envelope(edge.outbox.envelope("may.sum-1")).statement.members == (
        ("site-3", "may"),
    )
    assert outcomes(edge, nested) == ["refused"]
    inner = opened("inner")
    inner.forget("site-2", "may")
    (again,) = inner.revise()
    edge = opened()
    assert edge.receive(again.to_bytes()).code == Code.ACCEPTED
    assert edge.forward("may").statement.task == "may.sum-2"
    assert send(edge, server) == [Code.ACCEPTED]


def test_a_lost_sum_of_other_members_is_sent_again_as_it_is(sites, opened, server):
    """The server cannot know which of the edge's sums contained the forgotten member."""
    edge = opened()
    forwarded(edge, server, *uploads(sites, "site-1"))
    late = sites.envelope("site-2", "may", upload(3, classes=(1, 2)))
    forwarded(edge, server, late)
    server.database.sql.execute("DELETE FROM uploads WHERE task = 'may.sum-1'")
    server.state = server._rebuild()
    forget(server, edge, "site-2")
    assert {r.task: r.code for r in edge.outbox.to_revise()} == {
        "may.sum-1": Code.REVISE,
        "may.sum-2": Code.REVISE,
    }
    revise_sums(edge, None, print)
    assert edge.outbox.to_revise() == []
    assert edge.outbox.pending() == ["may.sum-1"]
    assert send(edge, server) == [Code.ACCEPTED]


def test_a_sum_is_not_revised_without_the_uploads_it_was_made_of(sites, opened):
    edge = opened()
    outcomes(edge, *uploads(sites, "site-1", "site-2"))
    edge.forward("may")
    edge.database.sql.execute("DELETE FROM uploads WHERE client = 'site-1'")
    edge = opened()
    edge.receive(sites.envelope("site-2", "may", upload(7), revision=1))
    with pytest.raises(UploadMissing, match="site-1"):
        edge.revise()


def test_an_edge_cannot_block_a_member_that_sent_nothing(sites, server):
    made = {"key": SiteKey.generate()}
    honest = sites.proof("site-1", "may")
    forged = sites.proof("site-2", "may", **made)
    blob = sites.envelope("edge", "may.sum-1", members=(("site-1", "may"), ("site-2", "may")))
    total = open_envelope(blob)
    for proofs in ((), (honest,), (honest, forged), (forged, honest)):
        sent = type(total)(total.statement, total.signature, total.upload, proofs)
        assert server.receive(sent.to_bytes()).outcome == "refused"
    assert server.receive(sites.envelope("site-2", "may")).code == Code.ACCEPTED
