"""A charged sum that cannot be repeated waits until the owner pays for another one."""

import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from fedran.cli.federation import app
from fedran.core.errors import Refused
from fedran.federation.ops.sums import OverBudget, recharge
from fedran.federation.secure.attempt import Stage
from fedran.federation.secure.contribution import read_sent
from fedran.federation.server import secure_round
from fedran.federation.server.ledger import Ledger
from fedran.federation.server.schema import Tombstone
from fedran.federation.server.settings import ServerPaths
from helpers.charged_sums import (
    EPSILON,
    TWICE,
    Killed,
    charges,
    cohorts,
    gone_after,
    kill,
    lose_files,
    made,
    run,
)
from helpers.secure_federation import SecureFederation


def test_sites_that_are_gone_for_good_cost_another_charge(tmp_path, monkeypatch):
    """Two of five die when they are asked to reveal, and four are needed."""
    federation = made(tmp_path, monkeypatch, n=5, tasks=("may",))
    names, left = federation.names, federation.names[:3]
    nodes = {i: federation.node(name) for i, name in enumerate(left)}
    dead = {i: federation.node(names[i], gone_after(Stage.REVEAL)) for i in (3, 4)}
    assert run(federation, nodes={**nodes, **dead}) == "short"
    assert run(federation, names=left) == "short"
    assert (charges(federation), cohorts(federation)) == ([("may", 1, names)], [])
    paths = ServerPaths(federation.server)
    federation.write_settings(epsilon=EPSILON, total_epsilon=EPSILON)
    with pytest.raises(OverBudget, match="another sum of task may is refused"):
        recharge(paths, "may", agreed=True)
    federation.write_settings(epsilon=EPSILON)
    said = CliRunner().invoke(app, ["recharge", str(federation.server), "may"])
    assert (said.exit_code, "nothing was changed" in said.output) == (1, True)
    assert f"of a row from 500 to {TWICE:.3g}" in said.output
    assert list((federation.server / "state" / "sums").glob("*.state"))
    cost = recharge(paths, "may", agreed=True)
    assert cost.sites == tuple(names)
    assert (cost.row, cost.person) == pytest.approx((EPSILON, EPSILON))
    assert (cost.row_after, cost.person_after) == pytest.approx((TWICE, TWICE))
    assert not list((federation.server / "state" / "sums").iterdir())
    assert run(federation, names=left) == "short", "sites that revealed a sum were not asked yet"
    for name in left:
        federation.files(name).allow_repeat("may")
    assert run(federation, names=left) == "quorum"
    assert [members for _, members in cohorts(federation)] == [left]
    (_, _, first), (_, _, second) = charges(federation)
    assert (first, second) == (names, left)
    sent = read_sent(federation.files("site-1").note("may"))
    assert [(s.agreement, s.members) for s in sent] == [(0, tuple(names)), (1, tuple(left))]
    assert len({s.content for s in sent}) == 2


def test_a_late_cohort_that_fails_is_given_up_beside_one_that_is_stored(tmp_path, monkeypatch):
    federation = made(tmp_path, monkeypatch, n=6, tasks=("may",))
    first, late = federation.names[:3], federation.names[3:]
    run(federation, names=first)
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names)}
    run(federation, nodes={**nodes, 5: federation.node("site-6", gone_after(Stage.REVEAL))})
    assert [members for _, _, members in charges(federation)] == [first, late]
    cost = recharge(ServerPaths(federation.server), "may", agreed=True)
    assert (cost.sites, cost.row) == (tuple(late), pytest.approx(EPSILON))
    for name in late:
        federation.files(name).allow_repeat("may")
    assert run(federation) == "complete"
    assert [members for _, members in cohorts(federation)] == [first, late]
    with federation.store() as store:
        assert len(Ledger(store.database).accepted("may")) == 1


def test_a_member_that_left_blocks_a_charged_sum_until_the_owner_pays(
    tmp_path, monkeypatch, caplog
):
    federation = made(tmp_path, monkeypatch, n=5, tasks=("may",))
    names, left = federation.names, federation.names[:4]
    nodes = {i: federation.node(name) for i, name in enumerate(names)}
    nodes |= {i: federation.node(names[i], gone_after(Stage.REVEAL)) for i in (3, 4)}
    run(federation, nodes=nodes)
    federation.set_roster(left)
    for name in left:
        federation.files(name).allow_repeat("may")
    assert run(federation, names=left) == "short"
    assert "exactly these sites (site-5 cannot take part)" in caplog.text
    recharge(ServerPaths(federation.server), "may", agreed=True)
    assert run(federation, names=left) == "complete"
    assert [members for _, members in cohorts(federation)] == [left]


def test_rows_that_were_forgotten_do_not_give_up_a_charged_sum_unasked(
    tmp_path, monkeypatch, caplog
):
    federation = made(tmp_path, monkeypatch, n=5, tasks=("may",))
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names)}
    nodes |= {i: federation.node(federation.names[i], gone_after(Stage.REVEAL)) for i in (3, 4)}
    run(federation, nodes=nodes)
    with federation.store() as store:
        store.database.forget([Tombstone("site-5", "may", "", 0.0, "owner")])
    assert run(federation, names=federation.names[:4]) == "short"
    assert "exactly these sites (site-5 cannot take part)" in caplog.text
    with federation.store() as store:
        assert Ledger(store.database).unfinished("may") is not None


def test_after_forget_the_other_members_make_another_sum_beside_one_that_is_stored(
    tmp_path, monkeypatch
):
    federation = made(tmp_path, monkeypatch, n=7, tasks=("may",))
    first, left = federation.names[:3], federation.names[3:6]
    run(federation, names=first)
    run(federation)
    folder = str(federation.server)
    said = CliRunner().invoke(app, ["forget", folder, "site-7", "--task", "may", "--yes"])
    assert "see `fedran federation recharge` first" in said.output
    assert CliRunner().invoke(app, ["recharge", folder, "may", "--yes"]).exit_code == 0
    for name in left:
        federation.files(name).allow_repeat("may")
    run(federation, names=federation.names[:6])
    assert [members for _, members in cohorts(federation)] == [first, left]
    assert len(charges(federation)) == 3


def test_a_sum_in_quarantine_is_not_given_up(tmp_path, monkeypatch):
    federation = made(tmp_path, monkeypatch, tasks=("may",))
    assert run(federation, first_rows=10) == "short"
    assert cohorts(federation) == [], "it waits for a person"
    with pytest.raises(Refused, match="one with a charged sum that the server does not have"):
        recharge(ServerPaths(federation.server), "may", agreed=True)
    with pytest.raises(Refused, match="got june, of which no sum was charged"):
        recharge(ServerPaths(federation.server), "june", agreed=True)


def test_a_site_whose_operator_agreed_sends_no_new_noise_for_nothing(tmp_path, monkeypatch):
    """The server would take it for the noise that it has charged."""
    federation = made(tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(secure_round, "receive_sum", kill)
        with pytest.raises(Killed):
            run(federation)
    lose_files(federation)
    federation.files("site-2").allow_repeat("may")
    run(federation)
    assert cohorts(federation) == []
    with federation.store() as store:
        told = [e.get("reason", "") for e in store.events.read() if e["event"] == "sum"]
    assert any("another draw of noise" in reason for reason in told)
    federation.write_settings(epsilon=EPSILON)
    recharge(ServerPaths(federation.server), "may", agreed=True)
    for name in federation.names:
        federation.files(name).allow_repeat("may")
    assert run(federation) == "complete"
    assert len(charges(federation)) == 2


def test_without_noise_a_removed_site_does_not_block_a_sum(tmp_path, monkeypatch):
    """There is no budget to account for, and the operators of the others agree."""
    federation = SecureFederation(tmp_path, monkeypatch, n=5, tasks=("may",))
    left = federation.names[:3]
    nodes = {i: federation.node(name) for i, name in enumerate(left)}
    dead = {i: federation.node(federation.names[i], gone_after(Stage.REVEAL)) for i in (3, 4)}
    assert federation.run("may", nodes={**nodes, **dead}) == "short"
    federation.set_roster(left)
    assert federation.run("may", left) == "short"
    for name in left:
        federation.files(name).allow_repeat("may")
    assert federation.run("may", left) == "complete"


def test_a_site_that_lost_an_attempt_which_needs_it_does_not_block_the_task_without_a_word(
    tmp_path, monkeypatch
):
    federation = made(tmp_path, monkeypatch, tasks=("may",))
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names)}
    run(federation, nodes={**nodes, 2: federation.node("site-3", gone_after(Stage.REVEAL))})
    files = federation.files("site-3")
    files.path("may", "state").write_bytes(b"damaged")
    files.allow_repeat("may")
    assert run(federation) == "short"
    recharge(ServerPaths(federation.server), "may", agreed=True)
    for name in ("site-1", "site-2"):
        federation.files(name).allow_repeat("may")
    assert run(federation) == "complete"
    assert len(charges(federation)) == 2
