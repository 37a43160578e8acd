"""Who takes part in a secure sum: late sites, changed rosters, sites that refuse or leave."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from fedran.cli.federation import app
from fedran.federation.flower.serverapp import FlowerNetwork
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.secure.masking.attempt import Stage
from fedran.federation.secure.site.sum_files import SumFiles
from fedran.federation.server.round.messenger import Messenger
from fedran.federation.server.round.round import Round
from helpers.federation.fleet import Fleet
from helpers.federation.secure_federation import SecureFederation, deaf


def made(tmp_path, monkeypatch, n, **options):
    return SecureFederation(tmp_path, monkeypatch, n=n, **options)


@pytest.fixture
def three(tmp_path, monkeypatch):
    return made(tmp_path, monkeypatch, 3)


def cohorts(federation, task):
    """Names of cohorts and their members, as the store has them."""
    with federation.store() as store:
        uploads = [u for u in store.database.uploads() if u.task == task]
    return {u.client: [client for client, _ in u.members] for u in uploads}


def declined(federation, task):
    """What each site last said it does not take part for."""
    with federation.store() as store:
        events = [e for e in store.events.read() if e["event"] == "declined" and e["task"] == task]
    return {e["client"]: e["reason"] for e in events}


def test_late_sites_have_a_sum_of_their_own_when_the_task_is_run_with_enough_of_them(
    tmp_path, monkeypatch
):
    federation = made(tmp_path, monkeypatch, 6)
    names = federation.names
    assert federation.run("may", names[:3], min_clients=3) == "quorum"
    assert cohorts(federation, "may") == {"cohort-1": names[:3]}
    assert federation.run("may", names[:5], min_clients=3) == "quorum"
    (waiting,) = (federation.server / "state" / "sums").glob("may.*.json")
    found = json.loads(waiting.read_text())
    assert (found["stage"], found["answered"], found["needed"]) == ("advertise", names[3:5], 3)
    assert federation.run("june", names[:5], min_clients=3) == "quorum"
    assert federation.run("", names) == "complete"
    assert cohorts(federation, "may") == {"cohort-1": names[:3], "cohort-2": names[3:]}
    assert cohorts(federation, "june") == {"cohort-1": names[:5]}
    with federation.store() as store:
        rows = sum(u.rows for u in store.database.uploads() if u.task == "may")
    assert rows == federation.exact("may").accounts.n_rows


def test_a_roster_that_nobody_compared_is_refused(three):
    three.set_roster(three.names[:2], pin=False)
    assert three.run("may", min_sites=2) == "short"
    said = declined(three, "may")
    assert sorted(said) == three.names
    assert all("differs in site-3" in reason for reason in said.values())
    assert not (three.state("site-1") / "sums" / "may.vector").exists(), "nothing was computed"
    three.set_roster(three.names)
    assert three.run("may") == "complete"


def test_a_site_that_demands_more_sites_does_not_take_part(tmp_path, monkeypatch):
    federation = made(tmp_path, monkeypatch, 4)
    place = federation.folder / "sites" / "site-4" / "site.toml"
    place.write_text(place.read_text() + "min_sites = 5\n")
    assert federation.run("may", min_clients=3) == "complete"
    assert cohorts(federation, "may") == {"cohort-1": federation.names[:3]}
    assert "at least 5" in declined(federation, "may")["site-4"]


def test_forget_says_which_sums_end_before_it_acts(tmp_path, monkeypatch):
    federation = made(tmp_path, monkeypatch, 7)
    federation.run("may", federation.names[:3], min_clients=3)
    federation.run("may", federation.names, min_clients=3)
    federation.run("june", federation.names[:3], min_clients=3)
    federation.set_roster(federation.names[:3])
    forget = ["forget", str(federation.server), "site-1"]
    said = CliRunner().invoke(app, forget)
    assert said.exit_code == 1
    assert "may, cohort-1: site-1, site-2, site-3" in said.output
    assert "june, cohort-1: site-1, site-2, site-3" in said.output
    assert "until at least 3 sites add them again" in said.output
    assert "nothing was changed: there is no terminal to ask at, and no --yes" in said.output
    assert cohorts(federation, "june") == {"cohort-1": federation.names[:3]}
    federation.set_roster(federation.names)
    said = CliRunner().invoke(app, [*forget, "--yes"])
    assert said.exit_code == 0
    assert "under a new task id" in said.output
    assert cohorts(federation, "may") == {"cohort-2": federation.names[3:]}
    assert cohorts(federation, "june") == {}


def test_a_site_without_rows_is_not_waited_for(three, tmp_path):
    three.remove("site-2", "may")
    assert three.run("may") == "short"
    assert "no rows for task may yet" in declined(three, "may")["site-2"]
    three.put("site-2", "may", *three.data["site-2", "june"])
    assert three.run("may") == "complete"


def test_a_site_that_demands_secure_sums_sends_nothing_else(three):
    with three.store(privacy="none") as store:
        fleet = Fleet({11: three.node("site-1")})
        assert Round(Messenger(FlowerNetwork(fleet)), store).run("may") == "short"
    assert "as this site's settings demand" in declined(three, "may")["site-1"]
    assert not list((three.state("site-1") / "outbox").glob("*.envelope"))


def test_the_server_never_sees_a_vector(three):
    """Every byte that a site sends, and every file of the server, in all stages."""
    seen, vectors = [], {}

    def watch(message, answer):
        body = answer()
        seen.extend(bytes(array.data) for array in body["blobs"].values())
        seen.append(body["fields"]["json"].encode())
        seen.extend(p.read_bytes() for p in three.server.rglob("*") if p.is_file())
        for name in three.names:
            path = three.files(name).path("may", "vector")
            if path.is_file():
                vectors[name] = path.read_bytes()
        return body

    assert three.run("may", nodes={i: three.node(n, watch) for i, n in enumerate(three.names)})
    assert sorted(vectors) == three.names
    for vector in vectors.values():
        windows = [vector[i : i + 32] for i in range(0, len(vector) - 32, 64)]
        windows = [w for w in windows if len(set(w)) > 8]  # not only zeros
        assert len(windows) > 100
        assert not any(window in blob for blob in seen for window in windows[::20])


def test_secrets_are_deleted_when_the_server_has_the_sum(three):
    three.run("may")
    for name in three.names:
        state = three.files(name).state("may")
        assert (state.secrets, state.held, set(state.answers.values())) == ({}, {}, {b""})
        assert not three.files(name).path("may", "vector").exists()


def test_a_sum_that_describes_no_rows_is_refused(three, monkeypatch):
    vector = SumFiles.vector

    def forged(self, attempt):
        found, budget = vector(self, attempt)
        if "site-2" in str(self.folder):
            found = found - np.uint32(10_000) * (np.arange(len(found)) == 0)
        return found, budget

    monkeypatch.setattr(SumFiles, "vector", forged)
    assert three.run("may") == "short"
    assert cohorts(three, "may") == {}
    with three.store() as store:
        (event,) = [e for e in store.events.read() if e.get("outcome") == "refused"]
    assert "describes no rows" in event["reason"]


def test_a_run_without_a_task_ends_although_a_node_never_answers(three):
    three.run("may")
    nodes = {i: three.node(name) for i, name in enumerate(three.names)}
    assert three.run("", nodes={**nodes, 9: lambda message: None}) == "complete"


def test_a_site_that_missed_its_receipt_gets_it_later(three):
    three.run("may")
    files = three.files("site-2")
    files.set_note("may", code="pending")
    assert (files.settled(), files.waiting()) == ([], ["may"])
    three.run("")
    assert ([task for task, _ in files.settled()], files.waiting()) == (["may"], [])


def test_a_site_that_is_in_a_sum_is_in_no_other_one(tmp_path, monkeypatch):
    """Not even one that dropped out after its vector had arrived, and so has revealed nothing."""
    federation = made(tmp_path, monkeypatch, 7)
    names = federation.names
    nodes = {i: federation.node(name) for i, name in enumerate(names[:5])}
    nodes[5] = federation.node("site-6", deaf(Stage.CONFIRM))
    assert federation.run("may", nodes=nodes, min_clients=3) == "quorum"
    assert cohorts(federation, "may") == {"cohort-1": names[:6]}
    assert federation.run("may", names, min_clients=3) == "quorum"
    assert cohorts(federation, "may") == {"cohort-1": names[:6]}
    (waiting,) = (federation.server / "state" / "sums").glob("may.*.json")
    assert json.loads(waiting.read_text())["answered"] == ["site-7"]


def test_a_site_whose_file_is_damaged_refuses_that_task_and_no_other(three):
    three.run("may")
    path = three.files("site-2").path("may", "state")
    blob = path.read_bytes()
    path.write_bytes(blob[:-1] + bytes([blob[-1] ^ 1]))
    with three.store() as store:
        store.forget("cohort-1", "may", "me", SiteKey.generate())
        store.database.sql.execute("DELETE FROM ledger")  # so that the sites are asked
    assert three.run("may") == "short"
    assert "may.state: expected what this site has written" in declined(three, "may")["site-2"]
    assert three.run("june") == "complete"


def test_a_server_that_knows_older_attempts_than_the_sites_needs_a_new_task_id(three):
    """As after the restore of an old backup."""
    three.run("may", three.names[:2])
    three.run("may", three.names[:2], sketch=16)
    with three.store() as store:
        assert json.loads(store.database.fact("attempts"))["may"] == 2
        store.database.set_fact("attempts", "{}")
    for path in (three.server / "state" / "sums").iterdir():
        path.unlink()
    assert three.run("may") == "short"
    assert "a new task id" in declined(three, "may")["site-1"]


def test_after_forget_the_other_members_need_a_new_task_id(tmp_path, monkeypatch, caplog):
    federation = made(tmp_path, monkeypatch, 4)
    names = federation.names
    assert federation.run("may") == "complete"
    with federation.store() as store:
        store.forget("site-4", "may", "me", SiteKey.generate())
        assert not store.aggregator.absorbed
    assert federation.run("may", min_clients=3) == "short"
    assert "need a new task id" in caplog.text
    for name in names[:3]:
        federation.put(name, "may-2", *federation.data[name, "may"])
    assert federation.run("may-2", min_clients=3) == "complete"
    assert cohorts(federation, "may-2") == {"cohort-1": names[:3]}
    assert cohorts(federation, "may") == {}
