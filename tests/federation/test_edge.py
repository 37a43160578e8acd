"""An edge: members' uploads taken in once, summed, forwarded once; the server ends as if flat."""

import errno
import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.cli.federation import forward as command
from fedran.core.errors import Refused
from fedran.federation.edge import edge as module
from fedran.federation.edge.edge import Edge, EdgeRules, ForwardConflict
from fedran.federation.protocol.identity import Roster, SiteKey
from fedran.federation.protocol.lockfile import AlreadyRunning, locked
from fedran.federation.protocol.messages import Offer, open_envelope
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.server.store import Store
from fedran.federation.site.outbox import Outbox
from helpers.made_federation import PHI, RULES, M, Sites, upload

MEMBERS = ("site-1", "site-2", "site-3", "inner")


@pytest.fixture(scope="module")
def sites():
    return Sites(*MEMBERS, "edge")


@pytest.fixture
def opened(sites, tmp_path):
    """Opens the edge's folder, again and again: the one before is gone, as after a crash."""
    current = []

    def open_it(name="edge", **changes):
        close_all()
        rules = EdgeRules("trial", name, **changes)
        members = Roster({m: sites.keys[m].public for m in MEMBERS}, {"inner": MEMBERS[:2]})
        folder = tmp_path / name
        found = Edge(folder, rules, sites.keys[name], members, Outbox(folder / "outbox"))
        current.append(found)
        return found

    def close_all():
        while current:
            current.pop().close()

    yield open_it
    close_all()


@pytest.fixture
def server(sites, tmp_path):
    store = Store(tmp_path / "server", RULES, sites.roster)
    yield store
    store.close()


def outcomes(receiver, *blobs):
    return [receiver.receive(b).outcome for b in blobs]


def uploads(sites, *members, task="may"):
    """Envelopes whose classes overlap: (0, 1), (1, 2), ..."""
    return [sites.envelope(m, task, upload(k, classes=(k, k + 1))) for k, m in enumerate(members)]


def test_the_server_ends_where_the_flat_one_does(sites, opened, server, tmp_path):
    blobs = uploads(sites, "site-1", "site-2", "site-3")
    flat = Store(tmp_path / "flat", RULES, sites.roster)
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
    np.testing.assert_allclose(ours.weights, theirs.weights, atol=1e-5)
    rows = PHI(np.random.default_rng(5).random((300, 6)))
    assert np.mean(ours.predict(rows) == theirs.predict(rows)) > 0.99
    flat.close()


def test_overlap_is_refused_in_both_directions(sites, opened, server):
    first, second = uploads(sites, "site-1", "site-2")
    edge = opened()
    outcomes(edge, first, second)
    server.receive(first)
    overlap = server.receive(edge.forward("may").to_bytes())
    assert (overlap.outcome, "by itself" in overlap.reason) == ("refused", True)
    june = uploads(sites, "site-1", "site-2", task="june")
    outcomes(edge, *june)
    assert server.receive(edge.forward("june").to_bytes()).outcome == "accepted"
    direct = server.receive(june[0])
    assert (direct.outcome, "through edge" in direct.reason) == ("refused", True)


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


def test_a_late_member_is_a_second_forward(sites, opened, server):
    blobs = uploads(sites, "site-1", "site-2", "site-3")
    edge = opened()
    outcomes(edge, *blobs[:2])
    made = [edge.forward("may")]
    assert edge.forward("may") is None
    for late in blobs[2:]:
        edge.receive(late)
        assert edge.waiting("may") == [("site-3", "may")]
        made.append(edge.forward("may"))
    assert [e.statement.task for e in made] == ["may.sum-1", "may.sum-2"]
    assert made[1].statement.members == (("site-3", "may"),)
    assert edge.forward("may") is None
    assert edge.outbox.pending() == ["may.sum-1", "may.sum-2"]
    assert outcomes(server, *(e.to_bytes() for e in reversed(made))) == ["accepted"] * 2
    assert server.aggregator.accounts.n_rows == 60


def test_tasks_are_summed_apart(sites, opened):
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


def test_a_name_that_was_taken_meanwhile_is_no_forward(sites, opened, monkeypatch):
    edge = opened()
    edge.receive(*uploads(sites, "site-1"))
    other = sites.envelope("edge", "may.sum-1")
    with monkeypatch.context() as patch:
        patch.setattr(edge.outbox, "put", lambda envelope: other)
        with pytest.raises(ForwardConflict, match="made meanwhile"):
            edge.forward("may")
    assert edge.forward("may") is not None


def test_a_name_too_long_for_the_next_sum_is_refused_before_anything(sites, opened):
    edge, task = opened(), "m" * 58
    outcomes(edge, sites.envelope("site-1", task))
    for _ in range(9):
        made = edge.forward(task)
        edge.outbox.settle(Receipt(Code.ACCEPTED, *made.statement.key, made.statement.digest))
        (edge.outbox.folder / f"{made.statement.task}.envelope").unlink()
    assert made.statement.task == f"{task}.sum-9"
    for name in (task, "m" * 59):
        outcomes(edge, sites.envelope("site-2", name))
        waiting = edge.waiting(name)
        with pytest.raises(Refused, match="task: expected"):
            edge.forward(name)
        assert edge.waiting(name) == waiting
        assert ("site-2", name) in waiting
    assert edge.outbox.pending() == []


REFUSED = [
    ("wrong key", {"key": "other"}, "signature: expected one by the key of site-1"),
    ("another federation", {"federation": "elsewhere"}, "federation: expected trial"),
    ("a fingerprint that is not the summary's", {"fingerprint": "0" * 64}, "as signed"),
    ("damaged", {"data": b"nonsense"}, "not a fedran file"),
]


@pytest.mark.parametrize(("_", "changes", "words"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_refused_leaves_no_trace(_, changes, words, sites, opened):
    edge = opened()
    before = edge.journal.end
    if "key" in changes:
        changes = {"key": SiteKey.generate()}
    receipt = edge.receive(sites.envelope("site-1", "may", **changes))
    assert (receipt.outcome, receipt.client) == ("refused", "site-1")
    assert words in receipt.reason
    assert edge.journal.end == before
    assert edge.forward("may") is None
    assert edge.receive(sites.envelope("site-1", "may")).outcome == "accepted"


def test_strangers_garbage_and_the_edge_itself_are_refused(sites, opened):
    edge = opened()
    assert outcomes(edge, b"", b"x" * 100) == ["refused"] * 2
    stranger = edge.receive(Sites("site-9").envelope("site-9", "may"))
    assert "a site of the roster" in stranger.reason
    assert "its own outbox" in edge.receive(sites.envelope("edge", "may")).reason
    circle = sites.envelope("inner", "may", members=(("edge", "may"),))
    assert "this site itself" in edge.receive(circle).reason


def test_duplicates_are_harmless_and_conflicts_refused(sites, opened):
    edge = opened()
    blob = sites.envelope("site-1", "may", upload(1))
    assert outcomes(edge, blob, blob) == ["accepted", "duplicate"]
    conflict = edge.receive(sites.envelope("site-1", "may", upload(2)))
    assert (conflict.outcome, "already accepted" in conflict.reason) == ("refused", True)
    edge.forward("may")
    assert outcomes(opened(), blob) == ["duplicate"]
    assert opened().forward("may") is None


def test_other_features_are_refused(sites, opened):
    other = fedran.RandomFeatures(6, 40, seed=1, source="test")
    strange = sites.envelope(
        "site-2", "may", upload(1, phi=other), fingerprint=other.fingerprint.hash
    )
    edge = opened()
    edge.receive(*uploads(sites, "site-1"))
    assert "out_features: expected 48, got 40" in edge.receive(strange).reason
    assert "out_features" in opened().receive(strange).reason
    known = opened("inner", fingerprint=PHI.fingerprint)
    assert "M is 48 here and 40 there" in known.receive(strange).reason
    opened("inner").receive(strange)
    with pytest.raises(Refused, match="M is 48 here and 40 there"):
        opened("inner", fingerprint=PHI.fingerprint)


def test_a_sum_behind_a_sum_lists_everyone(sites, opened, server):
    inner = opened("inner")
    leaves = uploads(sites, "site-1", "site-2")
    outcomes(inner, *leaves)
    nested = inner.forward("may").to_bytes()
    assert open_envelope(nested).statement.key == ("inner", "may.sum-1")
    edge = opened()
    assert outcomes(edge, nested, leaves[0]) == ["accepted", "refused"]
    assert edge.waiting("may") == [("inner", "may.sum-1")]
    edge.receive(sites.envelope("site-3", "may"))
    made = edge.forward("may")
    assert {m for m, _ in made.statement.members} == set(MEMBERS)
    assert server.receive(made.to_bytes()).outcome == "accepted"
    for blob in (nested, *leaves):
        late = server.receive(blob)
        assert (late.outcome, "through edge" in late.reason) == ("refused", True)


def test_a_member_speaks_for_others_only_where_the_edge_lists_them(sites, opened):
    edge = opened()
    sums = [("inner", "site-3"), ("site-1", "site-2")]
    for sender, member in sums:
        blob = sites.envelope(sender, "may.sum-1", members=((member, "may"),))
        receipt = edge.receive(blob)
        assert receipt.outcome == "refused"
        assert f"members that the roster lists for {sender}, got ['{member}']" in receipt.reason
        assert edge.receive(sites.envelope(member, "may")).outcome == "accepted"
    assert edge.forward("may").statement.members == (("site-3", "may"), ("site-2", "may"))


def test_a_budget_holds_and_the_accounts_say_what_it_cost(sites, opened, server):
    edge = opened()
    outcomes(edge, *uploads(sites, "site-1", "site-2", "site-3"))
    made = edge.forward("may", budget_bytes=2200)
    assert len(made.upload) <= 2200
    summary = fedran.decode(made.upload)
    assert summary.rank < 24
    assert summary.accounts.merges == 1
    exact = sum(fedran.decode(open_envelope(b).upload).accounts.cut for b in edge.journal.records())
    assert summary.accounts.cut > exact
    assert server.receive(made.to_bytes()).outcome == "accepted"
    assert server.solve().diagnosis.f == pytest.approx(summary.accounts.cut_fraction)
    edge.receive(sites.envelope("inner", "may"))
    with pytest.raises(ValueError, match="room for the sums of 2 classes"):
        edge.forward("may", budget_bytes=100)
    assert edge.waiting("may") == [("inner", "may")]


def test_a_sum_that_no_server_would_read_is_not_made(sites, opened):
    edge = opened(largest_upload=3000)
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


def test_a_full_disk_takes_nothing_in(sites, opened, monkeypatch):
    edge, (blob,) = opened(), uploads(sites, "site-1")

    def full(record):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(edge.journal, "append", full)
        with pytest.raises(OSError, match="No space left"):
            edge.receive(blob)
    assert edge.forward("may") is None
    assert outcomes(edge, blob, blob) == ["accepted", "duplicate"]


def test_a_sum_that_the_disk_damaged_ends_in_a_conflict_and_counts_once(sites, opened, server):
    edge = opened()
    outcomes(edge, *uploads(sites, "site-1"))
    edge.outbox.settle(server.receive(edge.forward("may").to_bytes()))
    (edge.outbox.folder / "may.sum-1.envelope").write_bytes(b"nonsense")
    assert edge.outbox.envelope("may.sum-1") is None  # as the site's client finds it: put aside
    again = edge.forward("may")
    assert again.statement.task == "may.sum-2"
    assert "through edge" in server.receive(again.to_bytes()).reason
    assert server.journal.count == 1


def test_a_damaged_outbox_stops_forwarding(sites, opened):
    edge = opened()
    outcomes(edge, *uploads(sites, "site-1"))
    (edge.outbox.folder / "old.envelope").write_bytes(b"nonsense")
    with pytest.raises(Refused, match=r"old\.envelope"):
        edge.forward("may")


@pytest.fixture
def site_folder(sites, tmp_path):
    """A site's folder as `fedran federation forward` finds it."""
    folder = tmp_path / "hospital"
    (folder / "inbox").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "site.toml").write_text(
        'federation = "trial"\nclient = "edge"\nfolder = "data"\nkey = "site.key"\n'
    )
    sites.keys["edge"].save(folder / "site.key")
    Roster({m: sites.keys[m].public for m in MEMBERS}).save(folder / "members.toml")
    return folder


def test_the_command(sites, site_folder, server, tmp_path, capsys):
    first, second, third = uploads(sites, "site-1", "site-2", "site-3")
    (site_folder / "inbox" / "one.envelope").write_bytes(first)
    (site_folder / "inbox" / "bad.envelope").write_bytes(b"nonsense")
    (tmp_path / "two").write_bytes(second)
    command(site_folder, "may", [tmp_path / "two"])
    said = capsys.readouterr().out
    assert "two: accepted (site-2, may)" in said
    assert "one.envelope: accepted (site-1, may)" in said
    assert "bad.envelope: refused (?, ?): message: expected" in said
    assert "may.sum-1: the sum of site-2, site-1" in said
    outbox = Outbox(site_folder / "state" / "outbox")
    assert server.receive(outbox.envelope("may.sum-1")).outcome == "accepted"
    command(site_folder, "may", None)
    said = capsys.readouterr().out
    assert "one.envelope: duplicate" in said
    assert "nothing new to forward for may" in said
    (site_folder / "inbox" / "three.envelope").write_bytes(third)
    command(site_folder, "may", None, budget="2KB")
    assert "may.sum-2: the sum of site-3" in capsys.readouterr().out
    assert len(open_envelope(outbox.envelope("may.sum-2")).upload) <= 2000
    outbox.settle(Receipt(Code.CONFLICT, "edge", "may.sum-2", "d", "members: expected others"))
    command(site_folder, "may", None)
    assert "may.sum-2: the server refused it: members: expected others" in capsys.readouterr().out


def test_the_command_knows_the_features_that_were_offered(sites, site_folder, capsys):
    offer = Offer("trial", "may", 6, M, 9, "test", 20_000)
    (site_folder / "state").mkdir()
    (site_folder / "state" / "offer.json").write_text(json.dumps(offer.fields()))
    (site_folder / "inbox" / "one.envelope").write_bytes(*uploads(sites, "site-1"))
    command(site_folder, "may", None)
    assert "seed is 9 here and 0 there" in capsys.readouterr().out


def test_the_command_waits_for_the_sites_client(sites, site_folder):
    settings = site_folder / "site.toml"
    settings.write_text(settings.read_text() + "seconds = 1\n")
    with (
        locked(site_folder / "state" / "outbox"),
        pytest.raises(AlreadyRunning, match="expected nobody at work"),
    ):
        command(site_folder, "may", None)
    command(site_folder, "may", None)


def test_the_command_leaves_the_name_to_the_sites_own_rows(sites, site_folder, server, capsys):
    outbox = Outbox(site_folder / "state" / "outbox")
    own = outbox.put(open_envelope(sites.envelope("edge", "may")))
    (site_folder / "inbox" / "one.envelope").write_bytes(*uploads(sites, "site-1"))
    command(site_folder, "may", None, without=["site-1"])
    assert "nothing new" in capsys.readouterr().out
    command(site_folder, "may", None)
    assert "may.sum-1: the sum of site-1" in capsys.readouterr().out
    assert outbox.envelope("may") == own
    assert outcomes(server, own, outbox.envelope("may.sum-1")) == ["accepted"] * 2


def test_the_command_reads_no_file_that_is_too_large(sites, site_folder, capsys, monkeypatch):
    small = replace(module.DEFAULT_LIMITS, message=10)
    monkeypatch.setattr(
        "fedran.federation.edge.folder.EdgeRules", lambda *a: EdgeRules(*a, limits=small)
    )
    (site_folder / "inbox" / "one.envelope").write_bytes(*uploads(sites, "site-1"))
    command(site_folder, "may", None)
    assert "refused: larger than 10 B" in capsys.readouterr().out


@pytest.mark.parametrize(("task", "member"), [("may", "may"), ("may.sum-1", "june")])
def test_a_sum_that_the_server_would_refuse_is_refused_here(task, member, sites, tmp_path):
    members = Roster({"inner": sites.keys["inner"].public}, {"inner": ("site-1",)})
    outbox = Outbox(tmp_path / "outbox")
    edge = Edge(tmp_path / "edge", EdgeRules("trial", "edge"), sites.keys["edge"], members, outbox)
    blob = sites.envelope("inner", task, members=(("site-1", member),))
    assert edge.receive(blob).outcome == "refused"
    edge.close()
