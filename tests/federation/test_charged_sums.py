"""A private sum that fails after it was charged is repeated for nothing."""

import itertools
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedran.core.errors import Refused
from fedran.federation.ops.sums import recharge
from fedran.federation.protocol.transport import message_content
from fedran.federation.secure import unmasking
from fedran.federation.secure.attempt import AttemptFailed, Stage
from fedran.federation.server import secure_round
from fedran.federation.server.settings import ServerPaths
from helpers.charged_sums import (
    EPSILON,
    Killed,
    charges,
    cohorts,
    gone_after,
    kill,
    kill_at,
    lose_files,
    made,
    run,
)
from helpers.secure_federation import SecureFederation, deaf, requests_in


@pytest.fixture
def wrong_shares(monkeypatch):
    """Shares that give no sum in the first attempt; what the sums are nevertheless."""
    totals, original = [], unmasking.unmask

    def unmask(state):
        totals.append((state.survivors, original(state).tolist()))
        if len(totals) == 1:
            raise AttemptFailed("sites sent wrong shares")
        return original(state)

    monkeypatch.setattr(unmasking, "unmask", unmask)
    return totals


@pytest.mark.parametrize("n", [pytest.param(3, marks=pytest.mark.faults), 4])
def test_wrong_shares_are_followed_by_the_same_sum_for_nothing(
    tmp_path, monkeypatch, wrong_shares, n
):
    """Of four sites, one never reveals: it cannot know whether the sum is known, and repeats its
    noise too. Otherwise a server that repeats the sum could average the noise out."""
    federation = made(tmp_path, monkeypatch, n)
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names)}
    if n == 4:
        quiet = federation.names[3]

        def tamper(message, answer):
            return None if Stage.REVEAL in [r.stage for r in requests_in(message)] else answer()

        nodes[3] = federation.node(quiet, tamper)
    assert run(federation, nodes=nodes) == "complete"
    assert len(wrong_shares) == 2
    assert wrong_shares[0] == wrong_shares[1], "the same sites, rows and noise"
    assert charges(federation) == [("may", 1, federation.names)]
    assert cohorts(federation) == [(("cohort-2", "may"), federation.names)]
    (noted,) = federation.files("site-1").sent()["may"]
    assert (noted.attempt, noted.members) == (2, tuple(federation.names)), "its own record"
    federation.write_settings(epsilon=EPSILON)
    with pytest.raises(Refused, match="one with a charged sum that the server does not have"):
        recharge(ServerPaths(federation.server), "may", agreed=True)


@pytest.mark.parametrize(
    "fault", ["roster", "other task", pytest.param("file", marks=pytest.mark.faults)]
)
def test_a_charged_sum_is_finished_after(tmp_path, monkeypatch, fault):
    """... the roster, the server's files or its state have changed in the meantime.

    With four new sites in the attempt, the old ones would refuse it: both sums could be opened.
    """
    federation = made(tmp_path, monkeypatch, n=7)
    first = federation.names[:3]
    federation.set_roster(first)

    nodes = {i: federation.node(name) for i, name in enumerate(first)}
    with pytest.raises(Killed):
        run(federation, nodes={**nodes, 1: federation.node("site-2", kill_at(Stage.REVEAL))})
    assert charges(federation) == [("may", 1, first)]
    if fault == "roster":
        federation.set_roster(federation.names)
    else:
        lose_files(federation)
    if fault == "other task":
        run(federation, "june", first)
    run(federation, names=None if fault == "roster" else first)
    assert (("cohort-2", "may"), first) in cohorts(federation), "without the new sites"
    assert [t for t, _, members in charges(federation) if members == first] == (
        ["may", "june"] if fault == "other task" else ["may"]
    )


@pytest.mark.parametrize(
    "where",
    [
        "receive_sum",
        "Ledger.finish",
        pytest.param("Coordinator.forget", marks=pytest.mark.faults),
    ],
)
def test_a_server_that_is_killed_between_the_charge_and_the_store(tmp_path, monkeypatch, where):
    """Late sites have a sum of their own afterwards."""
    federation = made(tmp_path, monkeypatch, n=6, tasks=("may",))
    first, late = federation.names[:3], federation.names[3:]

    with monkeypatch.context() as patch:
        patch.setattr(f"{secure_round.__name__}.{where}", kill)
        with pytest.raises(Killed):
            run(federation, names=first)
    assert run(federation) == "complete"
    assert [members for _, members in cohorts(federation)] == [first, late]
    assert [members for _, _, members in charges(federation)] == [first, late]


def test_the_status_names_the_sites_for_which_a_charged_sum_waits(
    tmp_path, monkeypatch, wrong_shares
):
    federation = made(tmp_path, monkeypatch, tasks=("may",))
    monkeypatch.setattr(secure_round, "MAX_ATTEMPTS", 1)
    assert run(federation) == "short"
    assert len(wrong_shares) == 1
    assert run(federation, names=["site-1", "site-3"]) == "short"
    assert run(federation) == "complete"
    assert len(charges(federation)) == 1


def test_a_repetition_in_which_a_member_is_late_is_attempted_again(
    tmp_path, monkeypatch, wrong_shares, caplog
):
    federation = made(tmp_path, monkeypatch, n=4, tasks=("may",))
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names)}
    nodes[3] = federation.node("site-4", deaf(Stage.MASK, attempt=2))
    assert run(federation, nodes=nodes) == "complete"
    assert "repeats a sum, and site-4 did not answer stage mask" in caplog.text
    assert wrong_shares[0] == wrong_shares[1]
    assert cohorts(federation) == [(("cohort-3", "may"), federation.names)]


def test_a_site_that_dropped_out_before_the_charge_is_not_asked_for_its_vector_again(
    tmp_path, monkeypatch, wrong_shares
):
    """It is back, and helps the others by its shares."""
    federation = made(tmp_path, monkeypatch, n=4, tasks=("may",))
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names)}
    nodes[3] = federation.node("site-4", deaf(Stage.MASK))
    assert run(federation, nodes=nodes) == "quorum"
    assert wrong_shares[0] == wrong_shares[1]
    assert cohorts(federation) == [(("cohort-2", "may"), federation.names[:3])]
    assert federation.files("site-4").state("may").stage is Stage.MASK


def test_sums_without_noise_are_repeated_in_the_same_way(tmp_path, monkeypatch, wrong_shares):
    federation = SecureFederation(tmp_path, monkeypatch)
    assert federation.run("may") == "complete"
    assert wrong_shares[0] == wrong_shares[1]
    with federation.store() as store:
        (upload,) = store.database.uploads()
        assert np.isinf([c.epsilon for c in store.database.ledger()]).tolist() == [True]
    assert upload.client == "cohort-2"


FAULTS = ["wrong shares", "killed", "files lost", "quiet at confirm", "other task"]


@pytest.mark.faults
@pytest.mark.parametrize("faults", list(itertools.product(FAULTS, repeat=2)), ids=" then ".join)
def test_after_any_two_faults_one_sum_was_revealed_and_charged_once(tmp_path, monkeypatch, faults):
    federation = made(tmp_path, monkeypatch, n=4)
    unmasked, original = set(), unmasking.unmask
    for fault in (*faults, "none"):

        def unmask(state, wrong=fault == "wrong shares"):
            total = original(state)
            if state.attempt.task == "may":
                unmasked.add((state.attempt.content, state.survivors, total.tobytes()))
                if wrong:
                    raise AttemptFailed("sites sent wrong shares")
            return total

        monkeypatch.setattr(unmasking, "unmask", unmask)
        tamper = {
            "killed": kill_at(Stage.REVEAL),
            "files lost": kill_at(Stage.REVEAL),
            "quiet at confirm": gone_after(Stage.CONFIRM),
        }.get(fault)
        nodes = {i: federation.node(name) for i, name in enumerate(federation.names)}
        with suppress(Killed):
            run(federation, nodes={**nodes, 3: federation.node("site-4", tamper)})
        if fault == "files lost":
            lose_files(federation)
        if fault == "other task":
            run(federation, "june")
    assert len(unmasked) == 1
    found = [members for (_, task), members in cohorts(federation) if task.startswith("may")]
    assert found == [federation.names]
    assert [task for task, _, _ in charges(federation)].count("may") == 1


def says_it_is_ahead(message, answer):
    """A site that reveals nothing and says that it knows a later attempt."""
    for request in requests_in(message):
        if request.stage is Stage.REVEAL:
            number = request.attempt.number
            refused = {f"may.{number}": {"reason": "none of your business", "number": number + 1}}
            fields = {"client": "site-1", "head": "", "settled": [], "waiting": [], "protocol": 1}
            return message_content({**fields, "refused": refused}, {})
    return answer()


def test_one_site_cannot_end_a_sum_that_the_others_can_reveal(tmp_path, monkeypatch):
    federation = made(tmp_path, monkeypatch, n=5, tasks=("may",))
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names)}
    run(federation, nodes={**nodes, 0: federation.node("site-1", says_it_is_ahead)})
    assert cohorts(federation) == [(("cohort-1", "may"), federation.names)]


def test_a_charged_sum_of_fewer_sites_than_are_needed_now_says_so(tmp_path, monkeypatch, caplog):
    federation = made(tmp_path, monkeypatch, n=4, tasks=("may",))
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names[:3])}
    run(federation, nodes={**nodes, 1: federation.node("site-2", gone_after(Stage.REVEAL))})
    lose_files(federation)
    assert run(federation, min_sites=4) == "short"
    assert "exactly these sites (min_sites is 4 now)" in caplog.text
    run(federation)
    assert [members for _, members in cohorts(federation)] == [federation.names[:3]]
