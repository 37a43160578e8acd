"""A sum that was charged stays charged, and its rows are in no other sum of the task."""

import itertools
import json
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedran.federation.flower.records import make_record
from fedran.federation.ops.maintenance import back_up, restore
from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import AttemptFailed, Stage
from fedran.federation.secure.server import secure_round
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.schema import Tombstone
from helpers.federation.secure_federation import (
    PrivateFederation,
    SecureFederation,
    deaf,
    nodes_of,
    requests_in,
)

EPSILON = 500.0


class Killed(BaseException):
    """The server's process ends."""


def kill(*_):
    raise Killed


def kill_at(stage):
    """A site that answers a stage, and then the server is killed."""

    def tamper(message, answer):
        found = answer()
        return kill() if stage in [r.stage for r in requests_in(message)] else found

    return tamper


def lose_files(federation):
    """The files of the server's attempts are gone."""
    for path in (federation.server / "state" / "sums").iterdir():
        path.unlink()


def made(tmp_path, monkeypatch, n=3, **options):
    federation = PrivateFederation(tmp_path, monkeypatch, n=n, **options)
    federation.write_settings(epsilon=EPSILON)
    return federation


def run(federation, task="may", names=None, **changes):
    return federation.run(task, names, epsilon=EPSILON, min_clients=3, **changes)


def charges(federation):
    return [(c.task, c.attempt, list(c.sites)) for c in federation.learned()[1]]


def cohorts(federation):
    uploads = federation.learned()[2]
    return [(u.key, [client for client, _ in u.members]) for u in uploads]


def gone_after(stage):
    """A site that answers nothing from the request of this stage on, for good."""
    dead = []

    def tamper(message, answer):
        dead.extend(r for r in requests_in(message) if r.stage is stage)
        return None if dead else answer()

    return tamper


@pytest.fixture
def wrong_shares(monkeypatch):
    """Shares that give no sum in the first attempt at it."""
    seen, original = [], unmasking.unmask

    def unmask(state):
        seen.append((state.attempt.task, state.survivors))
        if len(seen) == 1:
            raise AttemptFailed("sites sent wrong shares")
        return original(state)

    monkeypatch.setattr(unmasking, "unmask", unmask)
    return seen


@pytest.mark.parametrize("kind", [made, SecureFederation])
def test_a_charged_sum_that_fails_needs_a_new_task_id(
    tmp_path, monkeypatch, wrong_shares, caplog, kind
):
    federation = kind(tmp_path, monkeypatch)
    options = {"epsilon": EPSILON} if kind is made else {}
    assert federation.run("may", **options) == "short"
    assert federation.run("may", **options) == "short"
    assert len(wrong_shares) == 1, "the members are not asked again"
    assert "need a new task id" in caplog.text
    assert federation.run("june", **options) == "complete"
    with federation.store(**options) as store:
        assert [c.task for c in store.database.ledger()] == ["may", "june"]
        assert json.loads(store.database.fact("attempts")) == {"may": 1, "june": 1}
        (upload,) = store.database.uploads()
    assert upload.task.startswith("june")


@pytest.mark.parametrize("fault", ["roster", "file", "forgotten"])
def test_a_charged_sum_ends_with(tmp_path, monkeypatch, fault):
    """... a new roster, the loss of the server's files, or a member whose rows were forgotten."""
    federation = made(tmp_path, monkeypatch, n=4, tasks=("may",))
    first = federation.names[:3]
    federation.set_roster(first)
    nodes = {i: federation.node(name) for i, name in enumerate(first)}
    with pytest.raises(Killed):
        run(federation, nodes={**nodes, 1: federation.node("site-2", kill_at(Stage.REVEAL))})
    assert charges(federation) == [("may", 1, first)]
    if fault == "roster":
        federation.set_roster(federation.names)
    elif fault == "file":
        lose_files(federation)
    else:
        with federation.store() as store:
            store.database.forget([Tombstone("site-2", "may", "", 0.0, "owner")])
    run(federation, names=first)
    assert (charges(federation), cohorts(federation)) == ([("may", 1, first)], [])


@pytest.mark.parametrize("stage", [Stage.MASK, Stage.CONFIRM, Stage.REVEAL])
def test_a_sum_waits_for_sites_that_are_away_and_is_charged_once(tmp_path, monkeypatch, stage):
    """Two of five are away from a stage on. Without one of them nothing can be opened."""
    federation = made(tmp_path, monkeypatch, n=5, tasks=("may",))
    away = {"site_4": gone_after(stage), "site_5": gone_after(stage)}
    assert run(federation, nodes=nodes_of(federation, **away)) == "short"
    assert run(federation, names=federation.names[:3]) == "short"
    assert len(charges(federation)) == (stage is Stage.REVEAL)
    assert run(federation) == "complete"
    assert cohorts(federation) == [(("cohort-1", "may"), federation.names)]
    assert charges(federation) == [("may", 1, federation.names)]


@pytest.mark.parametrize(
    "where", ["charge", "receive_sum", pytest.param("SecureRound._close", marks=pytest.mark.faults)]
)
def test_a_server_that_is_killed_between_the_charge_and_the_store(tmp_path, monkeypatch, where):
    """It goes on with the same attempt. A site that comes later is in no sum of the task."""
    federation = made(tmp_path, monkeypatch, n=4, tasks=("may",))
    first = federation.names[:3]
    with monkeypatch.context() as patch:
        patch.setattr(f"{secure_round.__name__}.{where}", kill)
        with pytest.raises(Killed):
            run(federation, names=first)
    assert run(federation) == "quorum"
    assert cohorts(federation) == [(("cohort-1", "may"), first)]
    assert charges(federation) == [("may", 1, first)]


def test_a_charge_is_written_before_any_site_is_asked_to_reveal(tmp_path, monkeypatch):
    federation = made(tmp_path, monkeypatch, tasks=("may",))
    seen = []

    def look(message, answer):
        if Stage.REVEAL in [r.stage for r in requests_in(message)]:
            seen.append(len(federation.round.store.database.ledger()))
        return answer()

    run(federation, nodes=nodes_of(federation, site_1=look, site_2=look, site_3=look))
    assert seen == [1, 1, 1]


def test_a_sum_that_was_revealed_is_charged_although_a_backup_has_replaced_the_ledger(
    tmp_path, monkeypatch
):
    """Also where the budget would not allow it. The file of the attempt tells."""
    federation = made(tmp_path, monkeypatch, tasks=("may",))
    state = federation.server / "state"
    with federation.store() as store:
        store.database.copy_to(tmp_path / "backup.db")
    with monkeypatch.context() as patch:
        patch.setattr(secure_round, "receive_sum", kill)
        with pytest.raises(Killed):
            run(federation)
    for path in state.glob("store.db*"):
        path.unlink()
    (tmp_path / "backup.db").rename(state / "store.db")
    assert charges(federation) == []
    assert run(federation, names=["site-1"], total_epsilon=EPSILON - 1) == "complete"
    assert charges(federation) == [("may", 1, federation.names)]
    assert cohorts(federation) == [(("cohort-1", "may"), federation.names)]


def test_a_restored_backup_undoes_no_charge(tmp_path, monkeypatch):
    federation = made(tmp_path, monkeypatch, tasks=("may",))
    paths = ServerPaths(federation.server)
    paths.nodes.mkdir()
    with federation.store():
        back_up(paths, tmp_path / "backup")
    assert run(federation) == "complete"
    restore(paths, tmp_path / "backup")
    assert (charges(federation), cohorts(federation)) == ([("may", 1, federation.names)], [])
    assert run(federation) == "short", "its rows are in no second sum"
    assert len(charges(federation)) == 1


FAULTS = ["wrong shares", "killed", "files lost", "quiet at confirm", "other task"]


@pytest.mark.faults
@pytest.mark.parametrize("faults", list(itertools.product(FAULTS, repeat=2)), ids=" then ".join)
def test_after_any_two_faults_at_most_one_sum_was_revealed_and_charged(
    tmp_path, monkeypatch, faults
):
    federation = made(tmp_path, monkeypatch, n=4)
    unmasked, original = set(), unmasking.unmask
    for fault in (*faults, "none"):

        def unmask(state, wrong=fault == "wrong shares"):
            total = original(state)
            if state.attempt.task == "may":
                unmasked.add((state.attempt.number, state.survivors, total.tobytes()))
                if wrong:
                    raise AttemptFailed("sites sent wrong shares")
            return total

        monkeypatch.setattr(unmasking, "unmask", unmask)
        tamper = {
            "killed": kill_at(Stage.REVEAL),
            "files lost": kill_at(Stage.REVEAL),
            "quiet at confirm": gone_after(Stage.CONFIRM),
        }.get(fault)
        with suppress(Killed):
            run(federation, nodes=nodes_of(federation, site_4=tamper))
        if fault == "files lost":
            lose_files(federation)
        if fault == "other task":
            run(federation, "june")
    assert len(unmasked) <= 1
    found = [members for (_, task), members in cohorts(federation) if task.startswith("may")]
    assert found in ([], [federation.names])
    assert [task for task, _, _ in charges(federation)].count("may") == 1


def refuses_to_reveal(message, answer):
    """A site that reveals nothing and says so."""
    for request in requests_in(message):
        if request.stage is Stage.REVEAL:
            number = request.attempt.number
            refused = {f"may.{number}": "none of your business"}
            fields = {"client": "site-1", "head": "", "settled": [], "waiting": [], "protocol": 1}
            return make_record({**fields, "refused": refused}, {})
    return answer()


def test_one_site_cannot_end_a_sum_that_the_others_can_reveal(tmp_path, monkeypatch):
    federation = made(tmp_path, monkeypatch, n=5, tasks=("may",))
    run(federation, nodes=nodes_of(federation, site_1=refuses_to_reveal))
    assert cohorts(federation) == [(("cohort-1", "may"), federation.names)]


def test_rows_that_changed_after_a_vector_was_sent_are_not_in_a_second_sum(tmp_path, monkeypatch):
    """Site 4 revealed nothing, but its vector is in the sum that the others have revealed.

    The difference of two sums would be the row that was added.
    """
    federation = made(tmp_path, monkeypatch, n=4, tasks=("may",))
    with monkeypatch.context() as patch:
        patch.setattr(secure_round, "receive_sum", kill)
        with pytest.raises(Killed):
            run(federation, nodes=nodes_of(federation, site_4=deaf(Stage.REVEAL)))
    lose_files(federation)
    X, y = federation.data["site-4", "may"]
    federation.put("site-4", "may", np.concatenate([X, X[:1]]), np.append(y, y[:1]))
    with federation.store() as store:  # a server that keeps no ledger
        store.database.sql.execute("DELETE FROM ledger")
    assert run(federation) == "short"
    assert cohorts(federation) == []
    with federation.store() as store:
        told = [e for e in store.events.read() if e.get("state") == "refused"]
    assert {e["client"] for e in told} == set(federation.names)
