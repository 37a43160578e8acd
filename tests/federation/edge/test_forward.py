"""Sums of members' uploads: each member once, the server's state as without the edge."""

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.federation.edge import edge as module
from fedran.federation.edge.edge import ForwardConflict
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.server.store import Store
from helpers.made_edge import MEMBERS, outcomes, uploads, waiting
from helpers.made_federation import PHI, SETTINGS


def test_a_server_behind_an_edge_has_the_same_state_as_without_it(sites, opened, server, tmp_path):
    blobs = uploads(sites, "site-1", "site-2", "site-3")
    flat = Store(tmp_path / "flat", SETTINGS, sites.roster)
    assert outcomes(flat, *blobs) == ["accepted"] * 3
    edge = opened()
    assert outcomes(edge, *blobs) == ["accepted"] * 3
    made = edge.forward("may")
    assert made.statement.members == tuple((m, "may") for m in MEMBERS[:3])
    assert edge.outbox.pending() == ["may.sum-1"]
    assert server.receive(edge.outbox.envelope("may.sum-1")).outcome == "accepted"
    a, b = server.aggregator, flat.aggregator
    np.testing.assert_allclose(a.gram(), b.gram(), atol=1e-6 * b.accounts.energy)
    assert a.counts == b.counts
    for name in ("n_rows", "energy", "cut", "merges", "eta_loc"):
        assert getattr(a.accounts, name) == pytest.approx(getattr(b.accounts, name))
    assert a.accounts.eps_G == pytest.approx(b.accounts.eps_G, rel=1e-2)
    ours, theirs = server.solve(), flat.solve()
    assert ours.diagnosis.lam == pytest.approx(theirs.diagnosis.lam)
    np.testing.assert_allclose(ours.weights, theirs.weights, atol=1e-4)
    rows = PHI(np.random.default_rng(5).random((300, 6)))
    assert np.mean(ours.predict(rows) == theirs.predict(rows)) > 0.99
    flat.close()


def test_a_member_counts_directly_or_in_a_sum_but_not_both(sites, opened, server):
    first, second = uploads(sites, "site-1", "site-2")
    edge = opened()
    outcomes(edge, first, second)
    server.receive(first)
    overlap = server.receive(edge.forward("may").to_bytes())
    assert (overlap.outcome, "directly" in overlap.reason) == ("refused", True)
    june = uploads(sites, "site-1", "site-2", task="june")
    outcomes(edge, *june)
    assert server.receive(edge.forward("june").to_bytes()).outcome == "accepted"
    direct = server.receive(june[0])
    assert (direct.outcome, "in a sum of edge" in direct.reason) == ("refused", True)


def test_a_refused_sum_can_be_made_again_without_the_member_that_is_in(sites, opened, server):
    blobs = uploads(sites, "site-1", "site-2")
    edge = opened()
    outcomes(edge, *blobs)
    server.receive(blobs[0])
    assert not server.receive(edge.forward("may").to_bytes()).settled
    (edge.outbox.folder / "may.sum-1.envelope").unlink()
    again = edge.forward("may", without=["site-1"])
    assert again.statement.key == ("edge", "may.sum-1")
    assert again.statement.members == (("site-2", "may"),)
    assert server.receive(again.to_bytes()).outcome == "accepted"


def test_late_members_are_forwarded_in_a_second_sum(sites, opened, server):
    blobs = uploads(sites, "site-1", "site-2", "site-3")
    edge = opened()
    outcomes(edge, *blobs[:2])
    made = [edge.forward("may")]
    assert edge.forward("may") is None
    for late in blobs[2:]:
        edge.receive(late)
        assert waiting(edge, "may") == [("site-3", "may")]
        made.append(edge.forward("may"))
    assert [e.statement.task for e in made] == ["may.sum-1", "may.sum-2"]
    assert made[1].statement.members == (("site-3", "may"),)
    assert edge.forward("may") is None
    assert edge.outbox.pending() == ["may.sum-1", "may.sum-2"]
    assert outcomes(server, *(e.to_bytes() for e in reversed(made))) == ["accepted"] * 2
    assert server.aggregator.accounts.n_rows == 60


def test_tasks_are_summed_separately(sites, opened):
    edge = opened()
    outcomes(edge, *uploads(sites, "site-1"), *uploads(sites, "site-1", "site-2", task="june"))
    assert edge.forward("july") is None
    with pytest.raises(Refused, match="task: expected"):
        edge.forward("../may")
    with pytest.raises(Refused, match="marks forwarded sums"):
        edge.forward("may.sum-1")
    assert edge.forward("june").statement.members == (("site-1", "june"), ("site-2", "june"))
    assert edge.forward("may").statement.members == (("site-1", "may"),)


@pytest.mark.parametrize("own_first", [True, False])
def test_the_sites_own_upload_and_its_sums_have_different_names(own_first, sites, opened, server):
    edge = opened()
    own = open_envelope(sites.envelope("edge", "may"))
    if own_first:
        edge.outbox.put(own)
    for blob in uploads(sites, "site-1", "site-2"):
        edge.receive(blob)
        edge.forward("may")
    assert edge.outbox.put(own) == own.to_bytes()
    assert edge.outbox.pending() == ["may", "may.sum-1", "may.sum-2"]
    blobs = [edge.outbox.envelope(t) for t in edge.outbox.pending()]
    assert blobs[0] == own.to_bytes()
    assert outcomes(server, *blobs) == ["accepted"] * 3
    assert server.aggregator.accounts.n_rows == 60


def test_a_sum_whose_name_was_taken_meanwhile_is_an_error(sites, opened, monkeypatch):
    edge = opened()
    edge.receive(*uploads(sites, "site-1"))
    other = sites.envelope("edge", "may.sum-1")
    with monkeypatch.context() as patch:
        patch.setattr(edge.outbox, "put", lambda envelope: other)
        with pytest.raises(ForwardConflict, match="another process wrote"):
            edge.forward("may")
    assert edge.forward("may") is not None


def test_a_task_name_too_long_for_a_sum_is_refused(sites, opened):
    edge, task = opened(), "m" * 58
    outcomes(edge, sites.envelope("site-1", task))
    for _ in range(9):
        made = edge.forward(task)
        edge.outbox.settle(Receipt(Code.ACCEPTED, *made.statement.key, made.statement.digest))
        (edge.outbox.folder / f"{made.statement.task}.envelope").unlink()
    assert made.statement.task == f"{task}.sum-9"
    for name in (task, "m" * 59):
        outcomes(edge, sites.envelope("site-2", name))
        before = waiting(edge, name)
        with pytest.raises(Refused, match="task: expected"):
            edge.forward(name)
        assert waiting(edge, name) == before
        assert ("site-2", name) in before
    assert edge.outbox.pending() == []


def test_a_sum_of_sums_lists_all_members(sites, opened, server):
    inner = opened("inner")
    leaves = uploads(sites, "site-1", "site-2")
    outcomes(inner, *leaves)
    nested = inner.forward("may").to_bytes()
    assert open_envelope(nested).statement.key == ("inner", "may.sum-1")
    edge = opened()
    assert outcomes(edge, nested, leaves[0]) == ["accepted", "refused"]
    assert waiting(edge, "may") == [("inner", "may.sum-1")]
    edge.receive(sites.envelope("site-3", "may"))
    made = edge.forward("may")
    assert {m for m, _ in made.statement.members} == set(MEMBERS)
    assert server.receive(made.to_bytes()).outcome == "accepted"
    for blob in (nested, *leaves):
        late = server.receive(blob)
        assert (late.outcome, "in a sum of edge" in late.reason) == ("refused", True)


def test_a_sum_fits_its_budget_and_accounts_for_the_loss(sites, opened, server):
    edge = opened()
    outcomes(edge, *uploads(sites, "site-1", "site-2", "site-3"))
    made = edge.forward("may", budget_bytes=2200)
    assert len(made.upload) <= 2200
    summary = fedran.decode(made.upload)
    assert summary.rank < 24
    assert summary.accounts.merges == 1
    exact = sum(
        fedran.decode(open_envelope(b).upload).accounts.cut for b in edge.database.envelopes()
    )
    assert summary.accounts.cut > exact
    assert server.receive(made.to_bytes()).outcome == "accepted"
    assert server.solve().diagnosis.f == pytest.approx(summary.accounts.cut_fraction)
    edge.receive(sites.envelope("inner", "may"))
    with pytest.raises(ValueError, match="room for the sums of 2 classes"):
        edge.forward("may", budget_bytes=100)
    assert waiting(edge, "may") == [("inner", "may")]


def test_a_sum_larger_than_a_server_reads_is_not_made(sites, opened, monkeypatch):
    monkeypatch.setattr("fedran.federation.edge.edge.LARGEST_UPLOAD", 3000)
    edge = opened()
    outcomes(edge, *uploads(sites, "site-1", "site-2"))
    with pytest.raises(ValueError, match="give a smaller budget"):
        edge.forward("may")
    assert edge.outbox.pending() == []
    assert edge.forward("may", 2000) is not None


@pytest.mark.parametrize("step", ["combine", "encode", "seal", "put", "after"])
def test_a_crash_between_any_two_steps_forwards_no_member_twice(
    step, sites, opened, server, monkeypatch
):
    edge = opened()
    blobs = uploads(sites, "site-1", "site-2", "site-3")
    outcomes(edge, *blobs[:2])

    def crash(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step == "after":
            put = edge.outbox.put
            patch.setattr(edge.outbox, "put", lambda e: (put(e), crash()))
        else:
            patch.setattr(edge.outbox if step == "put" else module, step, crash)
        with pytest.raises(KeyboardInterrupt):
            edge.forward("may")
    edge = opened()
    edge.receive(blobs[2])
    edge.forward("may")
    edge.forward("may")
    sums = [open_envelope(edge.outbox.envelope(t)) for t in edge.outbox.pending()]
    members = [m for e in sums for m in e.statement.members]
    assert sorted(members) == [(m, "may") for m in MEMBERS[:3]]
    assert len(sums) == (2 if step == "after" else 1)
    assert outcomes(server, *(e.to_bytes() for e in sums)) == ["accepted"] * len(sums)


def test_a_sum_that_the_disk_damaged_ends_in_a_conflict_and_counts_once(sites, opened, server):
    edge = opened()
    outcomes(edge, *uploads(sites, "site-1"))
    edge.outbox.settle(server.receive(edge.forward("may").to_bytes()))
    (edge.outbox.folder / "may.sum-1.envelope").write_bytes(b"nonsense")
    assert edge.outbox.envelope("may.sum-1") is None  # as the site's client finds it: put aside
    again = edge.forward("may")
    assert again.statement.task == "may.sum-2"
    assert "in a sum of edge" in server.receive(again.to_bytes()).reason
    assert server.database.count() == 1


def test_an_edge_with_a_damaged_outbox_does_not_forward(sites, opened):
    edge = opened()
    outcomes(edge, *uploads(sites, "site-1"))
    (edge.outbox.folder / "old.envelope").write_bytes(b"nonsense")
    with pytest.raises(Refused, match=r"old\.envelope"):
        edge.forward("may")
