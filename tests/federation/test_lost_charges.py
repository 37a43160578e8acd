"""Charges outlive the database: a restored backup or reports of sites bring them back."""

from dataclasses import asdict, replace

import pytest

pytest.importorskip("flwr")

from fedran.federation.ops.maintenance import back_up, restore
from fedran.federation.secure.contribution import SentNoise
from fedran.federation.server import secure_round
from fedran.federation.server.settings import ServerPaths
from helpers.charged_sums import EPSILON, TWICE, Killed, charges, cohorts, kill, made, run


def replace_database(federation, backup):
    """The database is lost, and somebody copies an older one into its place."""
    state = federation.server / "state"
    for path in (*state.glob("snapshot-*"), *state.glob("store.db*")):
        path.unlink()
    backup.rename(state / "store.db")


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
    assert cohorts(federation) == [(("cohort-1", "may"), federation.names)]


def test_a_number_in_the_ledger_or_the_store_is_not_used_again(tmp_path, monkeypatch):
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
