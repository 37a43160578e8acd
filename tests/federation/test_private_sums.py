"""Sums with noise in a federation: sites add and demand it, and a ledger limits what is spent."""

import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from rich.console import Console

import fedran
from fedran.core.private.dp import Budget, composed, gaussian_epsilon
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.secure.masking.attempt import Stage
from fedran.federation.secure.server import secure_round
from fedran.federation.secure.server.budget import over_budget, spent
from fedran.federation.secure.site import participant as secure
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.schema import Charge
from fedran.federation.site.settings import SitePaths, SiteSettings
from fedran.federation.status.reader import Reader
from fedran.federation.status.site import read_site
from fedran.federation.status.terminal import print_status
from fedran.federation.status.web import render
from helpers.federation.secure_federation import (
    CLASSES,
    D,
    PrivateFederation,
    SecureFederation,
    deaf,
    nodes_of,
    rows,
)

PHI = fedran.RandomFeatures(D, D, "cosine", source="test", projected=False)


@pytest.fixture
def trial(tmp_path, monkeypatch):
    return PrivateFederation(tmp_path, monkeypatch)


def test_two_tasks_give_a_head_of_unit_rows_and_are_in_the_ledger(trial):
    assert trial.run("may") == "complete"
    assert trial.run("june") == "complete"
    counts, ledger, uploads = trial.learned()
    truth = np.concatenate([y for _, y in trial.data.values()])
    assert [abs(counts[c] - (truth == c).sum()) < 8 for c in CLASSES] == [True] * 3
    assert [(c.task, c.attempt, c.epsilon, c.sites) for c in ledger] == [
        ("may", 1, 1000.0, tuple(trial.names)),
        ("june", 1, 1000.0, tuple(trial.names)),
    ]
    assert [u.client for u in uploads] == ["cohort-1", "cohort-1"]
    with trial.store() as store:
        head = store.solve()
    trial.write_settings(epsilon=1000.0, total_epsilon=1000.0)
    status = Reader(trial.server).read()
    assert status.budget.startswith("At delta 1e-05, a row has spent at most epsilon 1e+03.")
    assert "one row in each of 2 sums has spent epsilon 1.9e+03 of at most 1000" in status.budget
    console = Console(file=io.StringIO(), width=200)
    print_status(status, console)
    assert status.budget in " ".join(console.file.getvalue().split())
    assert status.budget in " ".join(render("/sections", status).decode().split())
    X, y = rows(7, 200)
    assert head.fingerprint == PHI.fingerprint
    assert np.mean(head.predict(PHI(X)) == y) > 0.8


def test_every_site_adds_its_share_of_the_noise(trial, monkeypatch):
    made = []
    original = secure.private_contribution

    def recorded(mechanism, *arguments):
        made.append((mechanism, original(mechanism, *arguments)))
        return made[-1][1]

    monkeypatch.setattr(secure, "private_contribution", recorded)
    trial.run("may", epsilon=1.0)
    assert len(made) == 3
    scaled = []
    for (mechanism, vector), name in zip(made, trial.names, strict=True):
        X, y = trial.data[name, "may"]
        noise = vector.view(np.int32) - mechanism.sums(PHI(X), y, CLASSES)
        assert mechanism.honest == 2, "a site knows its own noise, so that of the others counts"
        assert mechanism.budget == Budget(1.0, 1e-5)
        off, diagonal, sums, _ = mechanism.site_variances
        variances = np.full(len(noise) - len(CLASSES), float(sums))
        variances[: D * (D + 1) // 2] = off
        variances[np.cumsum([0, *range(D, 1, -1)])] = diagonal
        scaled.append(noise[: -len(CLASSES)] / np.sqrt(variances))
    # 117 values: chance leaves these limits with a probability below 1e-8.
    assert 0.4 < np.square(scaled).mean() < 2.0


def test_a_site_refuses_too_little_noise(trial):
    """The others are then too few for a sum."""
    for settings, demand in (
        ({"epsilon": 1000.0}, {"max_epsilon": 3.0}),
        ({"delta": 1e-3}, {"max_epsilon": 1000.0}),
    ):
        trial.set_site("site-2", **demand)
        trial.run("may", **settings)
        counts, ledger, _ = trial.learned()
        assert (counts, ledger) == ({}, [])


def test_a_site_that_demands_noise_gets_a_secure_sum_without_it_refused(trial, monkeypatch):
    original = secure_round.make_content

    def without_noise(*arguments):
        return replace(original(*arguments), noise=None)

    monkeypatch.setattr(secure_round, "make_content", without_noise)
    trial.run("may")
    assert trial.learned()[0] == {}


def test_a_task_that_would_exceed_the_budget_of_a_person_is_refused(trial, caplog):
    one = Budget(500.0, 1e-5).mu
    both = gaussian_epsilon(composed([one, one]), 1e-5)
    assert trial.run("may", epsilon=500.0, total_epsilon=both - 1) == "complete"
    assert trial.run("june", epsilon=500.0, total_epsilon=both - 1) == "short"
    _, ledger, uploads = trial.learned()
    assert len(ledger) == len(uploads) == 1
    sentence = re.search(r"task june is refused: .*server\.toml", caplog.text)[0]
    assert all(f" {value:.3g}" in sentence for value in (500, both))
    with trial.store() as store:
        assert sentence.partition(": ")[2] in str(list(store.events.read()))
    trial.write_settings(epsilon=500.0, total_epsilon=both - 1)
    assert "Another task would exceed this and is refused." in Reader(trial.server).read().budget
    trial.write_settings(epsilon=500.0, total_epsilon=both)
    assert "Another" not in Reader(trial.server).read().budget
    assert trial.run("june", epsilon=500.0, total_epsilon=both) == "complete"


def test_a_sum_that_was_opened_before_others_spent_the_budget(tmp_path, monkeypatch, caplog):
    """It fitted when it was opened. A site that is needed came back after the next task."""
    federation = PrivateFederation(tmp_path, monkeypatch)
    budget = {"epsilon": 500.0, "total_epsilon": 500.0}
    nodes = nodes_of(federation, site_3=deaf(Stage.CONFIRM))
    assert federation.run("may", nodes=nodes, **budget) == "short"
    assert (federation.server / "state" / "sums" / "may.sum").is_file(), "it waits"
    assert federation.run("june", **budget) == "complete"
    assert federation.run("may", **budget) == "short"
    assert "raise total_epsilon or lower epsilon in server.toml" in caplog.text
    _, ledger, uploads = federation.learned()
    assert [charge.task for charge in ledger] == [upload.task for upload in uploads] == ["june"]


def test_sums_that_were_revealed_without_noise_stay_in_the_ledger(tmp_path, monkeypatch):
    """Their rows have no guarantee, also after the sums were forgotten and noise is added."""
    trial = SecureFederation(tmp_path, monkeypatch)
    assert trial.run("may") == "complete"
    with trial.store() as store:
        assert [(c.task, c.epsilon) for c in store.database.ledger()] == [("may", math.inf)]
        store.forget("cohort-1", "may", "me", SiteKey.generate())
    trial.__class__ = PrivateFederation
    for name in trial.names:
        trial.set_site(name, max_epsilon=1000.0)
    trial.write_settings(epsilon=1000.0)
    found = Reader(trial.server).read().budget
    assert found.startswith("At delta 1e-05, a row has spent at most epsilon 0. ")
    assert "1 earlier sums were released without noise" in found
    assert trial.run("may") == "short", "the rows were in a sum that was revealed"
    assert trial.run("june") == "complete"
    assert [c.task for c in trial.learned()[1]] == ["may", "june"]


def test_no_class_is_withheld_and_no_pseudo_label_given(trial):
    """Both would let one row decide about others."""
    for name in trial.names:
        X, y = rows(5)
        y = y.astype(float)
        y[20:] = np.nan
        trial.put(name, "may", X, y)
    trial.run("may")
    counts, _, _ = trial.learned()
    assert abs(sum(counts.values()) - 60) < 8


def test_no_row_makes_a_site_refuse(trial, caplog):
    """The server could ask with one class list or ``max_rows`` after the other and see."""
    X, y = rows(5)
    trial.put("site-1", "may", np.concatenate([X, X[:1]]), np.append(y, 7))
    assert trial.run("may", max_rows=40) == "complete"
    counts, _, _ = trial.learned(max_rows=40)
    assert abs(sum(counts.values()) - 120) < 12
    assert "1 rows are left out" in caplog.text
    assert trial.run("june", max_rows=30) == "complete"
    assert "40 rows, and the server's max_rows is 30" in caplog.text


def test_what_a_row_and_a_person_have_spent():
    charges = [
        Charge(1, 0.0, "a", 1, 1.0, 1e-5, ("x", "y")),
        Charge(2, 0.0, "b", 1, 2.0, 1e-5, ("x",)),
    ]
    found = spent(charges, 1e-5)
    mus = [Budget(1.0, 1e-5).mu, Budget(2.0, 1e-5).mu]
    assert found.row == pytest.approx(2.0)
    assert found.person == pytest.approx(gaussian_epsilon(composed(mus), 1e-5))
    assert spent([], 1e-5).person == 0
    assert over_budget(charges, "c", Budget(1.0), None) == ""
    assert "total_epsilon is 2" in over_budget(charges, "c", Budget(1.0), 2.0)
    plain = [*charges, Charge(3, 0.0, "p", 1, math.inf, 0.0, ("y",))]
    assert spent(plain, 1e-5) == replace(found, without_noise=1)


@pytest.mark.parametrize(("min_sites", "honest"), [(2, 1), (3, 2), (5, 4), (6, 4), (10, 7)])
def test_a_third_of_the_sites_and_at_least_one_may_tell_their_noise(min_sites, honest):
    """The noise of the others is then as large as that of one party that adds all of it."""
    given = {
        "in_features": 6,
        "out_features": 6,
        "classes": CLASSES,
        "epsilon": 1.0,
    }
    noise = ServerSettings("trial", privacy="dp", min_sites=min_sites, **given).noise
    assert noise.honest == honest
    mechanism = noise.mechanism(6, 1000, min_sites)
    alone = replace(mechanism, honest=1)
    for share, whole in zip(mechanism.site_variances, alone.site_variances, strict=True):
        assert share * honest >= whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": None}, "needs `epsilon`"),
        ({"out_features": 8}, "set out_features = 6, got 8"),
        ({"honest_sites": 3}, "honest_sites must be below min_sites = 3"),
    ],
)
def test_settings_without_a_guarantee_are_an_error(changes, message):
    given = {
        "in_features": 6,
        "out_features": 6,
        "classes": CLASSES,
        "epsilon": 1.0,
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        ServerSettings("trial", privacy="dp", **given)


@pytest.mark.parametrize("privacy", ["none", "secure"])
@pytest.mark.parametrize("name", ["epsilon", "total_epsilon", "honest_sites"])
def test_a_budget_of_a_server_without_noise_is_an_error(privacy, name):
    given = {"in_features": 6, "classes": CLASSES}
    given |= {"privacy": privacy, name: 2}
    with pytest.raises(ValueError, match=f'^{name} is for privacy = "dp", .*leave {name} out$'):
        ServerSettings("trial", **given)


@pytest.mark.parametrize("privacy", ["none", "secure"])
@pytest.mark.parametrize(
    "limit", [{"max_epsilon": 1.0}, {"max_total_epsilon": 4.0}, {"max_delta": 1e-6}]
)
def test_a_budget_of_a_site_that_also_sends_without_noise_is_an_error(privacy, limit):
    SiteSettings("trial", "site-1", folder="data", privacy="dp", **limit)
    with pytest.raises(ValueError, match=f'^{next(iter(limit))} is for privacy = "dp"'):
        SiteSettings("trial", "site-1", folder="data", privacy=privacy, **limit)


def test_a_site_adds_up_what_its_rows_spend_and_refuses_more_than_its_own_limit(trial):
    """A dishonest server need not keep its ledger: here it forgets it after the first task."""
    one = Budget(500.0, 1e-5).mu
    both = gaussian_epsilon(composed([one, one]), 1e-5)
    for name in trial.names:
        trial.set_site(name, max_epsilon=1000.0, max_total_epsilon=round(both) - 1)
    assert trial.run("may", epsilon=500.0) == "complete"
    with trial.store() as store:
        store.database.sql.execute("DELETE FROM ledger")
    assert trial.run("june", epsilon=500.0) == "short"
    with trial.store() as store:
        told = str(list(store.events.read()))
    assert (
        f"epsilon of a person with one row in every task: expected at most {both - 1:.0f}" in told
    )
    for name in trial.names:
        trial.set_site(name, max_epsilon=1000.0, max_total_epsilon=math.ceil(both))
    assert trial.run("june", epsilon=500.0) == "complete"
    found = read_site(SitePaths(trial.folder / "sites" / "site-1"))
    assert f"has spent epsilon {both:.3g}, by this site's own record" in found.budget


def test_a_server_that_asks_twice_does_not_erase_what_a_site_has_spent(trial):
    def twice(message, answer):
        answer()
        return answer()

    for name in trial.names:
        trial.set_site(name, max_epsilon=1000.0, max_total_epsilon=600.0)
    nodes = {i: trial.node(name, twice) for i, name in enumerate(trial.names)}
    assert trial.run("may", nodes=nodes, epsilon=500.0) == "complete"
    assert trial.run("june", epsilon=500.0) == "short"
    assert len(trial.learned()[1]) == 1


def test_sums_of_two_tasks_at_the_same_time_do_not_exceed_the_limit_of_a_site(trial):
    """Both are within the limit when they begin."""
    for name in trial.names:
        trial.set_site(name, max_epsilon=1000.0, max_total_epsilon=600.0)
    nodes = {i: trial.node(name, deaf(Stage.MASK)) for i, name in enumerate(trial.names)}
    assert trial.run("may", nodes=nodes, epsilon=500.0) == "short"
    assert trial.run("june", epsilon=500.0) == "complete"
    assert trial.run("may", epsilon=500.0) == "short"
    assert [charge.task for charge in trial.learned()[1]] == ["june"]
    assert all(Stage.MASK not in trial.files(n).state("may").answers for n in trial.names)


def test_a_site_whose_record_is_damaged_takes_part_in_no_private_sum(trial):
    assert trial.run("may") == "complete"
    path = trial.files("site-2").path("may", "note")
    path.write_bytes(path.read_bytes()[:-5])
    assert trial.run("june") == "short"
    with trial.store() as store:
        assert "may.note: expected what this site has written" in str(list(store.events.read()))
    path.unlink()
    assert trial.run("june") == "complete"
