"""Rounds with secure sums, in memory: sites with folders, a server with a store."""

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedran
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.secure.masking.attempt import Stage
from fedran.federation.secure.server.open_sum import BEFORE_VECTORS
from fedran.federation.server.round.quorum import CLOSED
from helpers.federation.secure_federation import SecureFederation, deaf, nodes_of, requests_in


@pytest.fixture
def federation(tmp_path, monkeypatch):
    return SecureFederation(tmp_path, monkeypatch)


@pytest.fixture
def four(tmp_path, monkeypatch):
    return SecureFederation(tmp_path, monkeypatch, n=4)


def summaries(store):
    """Key, members and summary of every accepted upload."""
    found = []
    for upload in store.database.uploads():
        envelope = open_envelope(store.database.envelope(upload))
        found.append((upload.key, upload.members, fedran.decode(envelope.upload)))
    return found


def test_three_sites_give_one_sum_that_equals_that_of_all_rows(federation):
    assert federation.run("may") == "complete"
    with federation.store() as store:
        ((key, members, found),) = summaries(store)
    assert key == ("cohort-1", "may")
    assert members == tuple((name, "may") for name in federation.names)
    exact = federation.exact("may")
    assert (found.classes, found.counts) == (exact.classes, exact.counts)
    assert np.linalg.norm(found.gram() - exact.gram(), 2) <= found.accounts.eps_G < 1
    for name in federation.names:
        assert (federation.state(name) / "head.fedran").is_file()
        assert [task for task, _ in federation.files(name).settled()] == ["may"]


def sum_events(store, state):
    return [e for e in store.events.read() if e["event"] == "sum" and e["state"] == state]


@pytest.mark.parametrize("stage", [Stage.SHARE, Stage.MASK, Stage.CONFIRM, Stage.REVEAL])
def test_a_site_that_drops_out_of_a_stage_does_not_stop_the_others(four, stage):
    federation = four
    verdict = federation.run("may", nodes=nodes_of(federation, site_4=deaf(stage)), min_clients=3)
    with federation.store() as store:
        ((_, members, found),) = summaries(store)
    dropped = stage in (Stage.SHARE, Stage.MASK)
    expected = federation.names[:3] if dropped else federation.names
    assert verdict == ("quorum" if dropped else "complete")
    assert [client for client, _ in members] == expected
    assert found.counts == federation.exact("may", expected).counts


def test_a_run_says_for_whom_it_waits(federation, caplog, monkeypatch):
    caplog.set_level("INFO")
    for name in ("FIRST_PROGRESS", "PROGRESS_SECONDS"):
        monkeypatch.setattr(f"fedran.federation.secure.server.secure_round.{name}", 0.0)
    slow = []

    def late(_, answer):
        slow.append(None)
        return answer() if len(slow) > 1 else None

    assert federation.run("may", nodes=nodes_of(federation, site_1=late)) == "complete"
    assert "task may: complete, 3 uploads in\n" in caplog.text
    assert "advertise: waiting for site-1;" in caplog.text
    assert "waiting for ;" not in caplog.text


def test_a_closed_task_gives_the_sum_of_the_sites_that_are_here(four):
    def close(_, answer):
        four.round.store.database.set_fact(CLOSED, "may")
        return answer()

    before, here = four.clock.now, {**nodes_of(four), 10: four.node("site-1", close)}
    del here[13]
    assert four.run("may", nodes=here, deadline=60.0) == "quorum"
    assert four.clock.now < before + 10
    with four.store() as store:
        ((_, members, _),) = summaries(store)
    assert [client for client, _ in members] == four.names[:3]


def test_with_too_few_shares_the_sum_is_attempted_again(federation):
    assert federation.run("may", nodes=nodes_of(federation, site_2=deaf(Stage.SHARE))) == "complete"
    with federation.store() as store:
        ((key, _, found),) = summaries(store)
        assert [e["name"] for e in sum_events(store, "failed")] == ["may.1"]
    assert key == ("cohort-2", "may")
    assert found.counts == federation.exact("may").counts


@pytest.mark.parametrize("stage", list(Stage))
def test_an_answer_that_is_lost_is_given_again(federation, stage):
    """As if the site was killed after it had written its state, before its answer left."""
    lost = []

    def lose(message, answer):
        found = answer()
        if stage in [r.stage for r in requests_in(message)] and not lost:
            return lost.append(found)
        return found

    assert federation.run("may", nodes=nodes_of(federation, site_2=lose)) == "complete"
    assert len(lost) == 1
    with federation.store() as store:
        ((key, _, found),) = summaries(store)
    assert (key, found.counts) == (("cohort-1", "may"), federation.exact("may").counts)


class Killed(BaseException):
    """The server's process ends."""


@pytest.mark.parametrize("stage", list(Stage))
def test_a_server_that_is_killed_in_any_stage_gets_the_sum_later(federation, stage):
    """From the first request for a vector on it is the same attempt, before it is another one."""

    def kill(message, answer):
        found = answer()
        if stage in [r.stage for r in requests_in(message)]:
            raise Killed
        return found

    with pytest.raises(Killed):
        federation.run("may", nodes=nodes_of(federation, site_2=kill))
    assert federation.run("may") == "complete"
    with federation.store() as store:
        ((key, _, found),) = summaries(store)
        assert not sum_events(store, "failed")
    number = 2 if stage in BEFORE_VECTORS else 1
    assert (key, found.counts) == ((f"cohort-{number}", "may"), federation.exact("may").counts)
    assert not list((federation.server / "state" / "sums").iterdir())


@pytest.mark.faults
def test_hundred_sites_of_which_some_drop_out_of_every_stage(tmp_path, monkeypatch):
    federation = SecureFederation(tmp_path, monkeypatch, n=100, tasks=("may",))
    faults = {f"site_{10 + i}": deaf(stage) for i, stage in enumerate(Stage)}
    faults |= {f"site_{50 + i}": deaf(stage) for i, stage in enumerate(Stage)}
    settings = {"min_clients": 67, "out_features": 1024, "sketch": 64}
    assert federation.run("may", nodes=nodes_of(federation, **faults), **settings) == "quorum"
    late = {f"site-{first + i}" for first in (10, 50) for i in range(3)}
    with federation.store(**settings) as store:
        ((_, members, found),) = summaries(store)
    assert [client for client, _ in members] == sorted(set(federation.names) - late)
    assert found.counts == federation.exact("may", [client for client, _ in members]).counts
