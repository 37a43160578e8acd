"""A private sum that fails after it was charged: it is repeated for nothing, or paid for again."""

import itertools
from contextlib import suppress
from dataclasses import asdict, replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from fedran.cli.federation import app
from fedran.core.dp import Budget, composed, gaussian_epsilon
from fedran.core.errors import Refused
from fedran.federation.ops.budget import OverBudget, recharge
from fedran.federation.ops.maintenance import back_up, restore
from fedran.federation.protocol.transport import message_content
from fedran.federation.secure import unmasking
from fedran.federation.secure.attempt import AttemptFailed, Stage
from fedran.federation.secure.spending import SentNoise, read_sent
from fedran.federation.server import secure_round
from fedran.federation.server.entries import Tombstone
from fedran.federation.server.ledger import Ledger
from fedran.federation.server.settings import ServerPaths
from fedran.federation.status.reader import Reader
from helpers.secure_federation import PrivateFederation, SecureFederation, deaf, requests_in

EPSILON = 500.0
TWICE = gaussian_epsilon(composed([Budget(EPSILON, 1e-5).mu] * 2), 1e-5)


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


def replace_database(federation, backup):
    """The database is lost, and somebody copies an older one into its place."""
    state = federation.server / "state"
    for path in (*state.glob("snapshot-*"), *state.glob("store.db*")):
        path.unlink()
    backup.rename(state / "store.db")


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
    assert cohorts(federation) == [(("cohort-2", "may.sum-2"), federation.names)]
    (noted,) = federation.files("site-1").sent()["may"]
    assert (noted.attempt, noted.members) == (2, tuple(federation.names)), "its own record"
    federation.write_settings(epsilon=EPSILON)
    with pytest.raises(Refused, match="one with a sum that the server does not have"):
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
    assert (("cohort-2", "may.sum-2"), first) in cohorts(federation), "without the new sites"
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


def test_the_status_names_the_sites_for_which_a_charged_sum_waits(
    tmp_path, monkeypatch, wrong_shares
):
    federation = made(tmp_path, monkeypatch, tasks=("may",))
    monkeypatch.setattr(secure_round, "MAX_ATTEMPTS", 1)
    assert run(federation) == "short"
    assert len(wrong_shares) == 1
    assert run(federation, names=["site-1", "site-3"]) == "short"
    (waiting,) = Reader(federation.server).read().sums
    assert waiting.text == "a charged sum of 3 sites is repeated; it waits for site-2"
    assert run(federation) == "complete"
    assert len(charges(federation)) == 1


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
    (waiting,) = Reader(federation.server).read().sums
    assert waiting.text == "a charged sum of 5 sites is repeated; it waits for site-5"
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
    said = CliRunner().invoke(app, ["forget", folder, "site-7", "--task", "may"])
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
    with pytest.raises(Refused, match="one with a sum that the server does not have"):
        recharge(ServerPaths(federation.server), "may", agreed=True)


def test_a_repetition_in_which_a_member_is_late_is_attempted_again(
    tmp_path, monkeypatch, wrong_shares, caplog
):
    federation = made(tmp_path, monkeypatch, n=4, tasks=("may",))
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names)}
    nodes[3] = federation.node("site-4", deaf(Stage.MASK, attempt=2))
    assert run(federation, nodes=nodes) == "complete"
    assert "repeats a sum, and site-4 did not answer stage mask" in caplog.text
    assert wrong_shares[0] == wrong_shares[1]
    assert cohorts(federation) == [(("cohort-3", "may.sum-3"), federation.names)]


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


def test_a_site_that_dropped_out_before_the_charge_is_not_asked_for_its_vector_again(
    tmp_path, monkeypatch, wrong_shares
):
    """It is back, and helps the others by its shares."""
    federation = made(tmp_path, monkeypatch, n=4, tasks=("may",))
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names)}
    nodes[3] = federation.node("site-4", deaf(Stage.MASK))
    assert run(federation, nodes=nodes) == "quorum"
    assert wrong_shares[0] == wrong_shares[1]
    assert cohorts(federation) == [(("cohort-2", "may.sum-2"), federation.names[:3])]
    assert federation.files("site-4").state("may").stage is Stage.MASK


def test_sums_without_noise_are_repeated_in_the_same_way(tmp_path, monkeypatch, wrong_shares):
    federation = SecureFederation(tmp_path, monkeypatch)
    assert federation.run("may") == "complete"
    assert wrong_shares[0] == wrong_shares[1]
    with federation.store() as store:
        (upload,) = store.database.uploads()
        assert np.isinf([c.epsilon for c in store.database.ledger()]).tolist() == [True]
    assert upload.client == "cohort-2"


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


@pytest.mark.parametrize("lost", ["by restore", "with the database"])
def test_a_sum_that_was_revealed_before_its_charge_was_lost_is_stored_with_a_charge(
    tmp_path, monkeypatch, lost
):
    """``restore`` keeps the charge. Otherwise the file of the attempt tells that it is needed."""
    federation = made(tmp_path, monkeypatch, tasks=("may",))
    paths = ServerPaths(federation.server)
    paths.nodes.mkdir()
    with federation.store():
        back_up(paths, tmp_path / "backup")
    with monkeypatch.context() as patch:
        patch.setattr(secure_round, "receive_sum", kill)
        with pytest.raises(Killed):
            run(federation)
    if lost == "by restore":
        restore(paths, tmp_path / "backup")
        assert charges(federation) == [("may", 1, federation.names)]
    else:
        replace_database(federation, tmp_path / "backup" / "store.db")
        assert charges(federation) == []
    assert run(federation, names=["site-1"], total_epsilon=EPSILON - 1) == "complete"
    assert charges(federation) == [("may", 1, federation.names)]
    assert cohorts(federation) == [(("cohort-1", "may.sum-1"), federation.names)]


def test_a_number_in_the_ledger_or_the_store_is_not_used_again(tmp_path, monkeypatch):
    """``repair`` saves what is intact, and may lose the list of numbers."""
    federation = made(tmp_path, monkeypatch, n=6, tasks=("may",))
    first, late = federation.names[:3], federation.names[3:]
    run(federation, names=first)
    with federation.store() as store:
        store.database.set_fact("attempts", "{}")
    run(federation, names=late)
    assert [members for _, members in cohorts(federation)] == [first, late]
    assert [members for _, _, members in charges(federation)] == [first, late]


def test_charges_that_a_restored_backup_does_not_know_are_told_by_the_sites(tmp_path, monkeypatch):
    federation = made(tmp_path, monkeypatch)
    with federation.store() as store:
        store.database.copy_to(tmp_path / "backup.db")
    assert run(federation) == "complete"
    replace_database(federation, tmp_path / "backup.db")
    assert charges(federation) == []
    assert run(federation, "june", total_epsilon=TWICE - 1) == "short"
    ((task, _, members),) = charges(federation)
    assert (task, members) == ("may", federation.names)
    assert run(federation, "june", total_epsilon=TWICE + 1) == "complete"
    assert [task for task, _, _ in charges(federation)] == ["may", "june"]


def test_one_site_alone_cannot_spend_the_budget(tmp_path, monkeypatch):
    federation = made(tmp_path, monkeypatch)
    lie = SentNoise(0, 1, "a" * 64, 1000.0, 1e-5, ("site-1", "site-2", "site-3"))
    federation.files("site-1").set_note("april", sent=[asdict(lie)])
    others = replace(lie, members=("site-2", "site-3", "site-4"))  # without site-1, which tells it
    federation.files("site-1").set_note("march", sent=[asdict(others)])
    federation.files("site-2").set_note("march", sent=[asdict(others)])
    assert run(federation, total_epsilon=EPSILON + 1) == "complete"
    assert [task for task, _, _ in charges(federation)] == ["may"]


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
    assert cohorts(federation) == [(("cohort-1", "may.sum-1"), federation.names)]


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
    (waiting,) = Reader(federation.server).read().sums
    assert waiting.text == "a charged sum of 3 sites is repeated; it waits for site-3"
    recharge(ServerPaths(federation.server), "may", agreed=True)
    for name in ("site-1", "site-2"):
        federation.files(name).allow_repeat("may")
    assert run(federation) == "complete"
    assert len(charges(federation)) == 2


def test_a_charged_sum_of_fewer_sites_than_are_needed_now_says_so(tmp_path, monkeypatch, caplog):
    federation = made(tmp_path, monkeypatch, n=4, tasks=("may",))
    nodes = {i: federation.node(name) for i, name in enumerate(federation.names[:3])}
    run(federation, nodes={**nodes, 1: federation.node("site-2", gone_after(Stage.REVEAL))})
    lose_files(federation)
    assert run(federation, min_sites=4) == "short"
    assert "exactly these sites (min_sites is 4 now)" in caplog.text
    (waiting,) = Reader(federation.server).read().sums
    assert waiting.text == "a charged sum of 3 sites is repeated; the next run attempts it"
    run(federation)
    assert [members for _, members in cohorts(federation)] == [federation.names[:3]]
