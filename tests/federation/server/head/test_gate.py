"""The best head is served, and the site or the class without which it is better is named."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.data.rows import Rows
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.limits import ALIKE, FALSE_ALARMS
from fedran.federation.server.head.gate import SetAside
from fedran.federation.server.head.head import judged, update_head
from fedran.federation.server.store.store import VOUCHED
from helpers.federation.gated import VALIDATION, flipped, gated_sites, honest, rows, send, store_of
from helpers.federation.made_federation import SUMS, summary

EVERYONE = range(1, 6)


@pytest.fixture(scope="module")
def sites():
    return gated_sites()


@pytest.fixture
def store(sites, tmp_path):
    found = store_of(sites, tmp_path / "state")
    yield found
    found.close()


def aside(store, *, waits=False):
    """Who is set aside, or waits, in the newest head."""
    found = judged(store)["set_aside"]
    return {(a["client"], a["label"]): a for a in found if a["waits"] == waits}


def many(store, sites, task, classes, who):
    """A hundred rows per class of each site."""
    for i in who:
        given = rows(10 * i, classes, 100 * len(classes))
        assert send(store, sites, f"site-{i}", task, given)


def rotated(given, share=1.0):
    lie = np.random.default_rng(0).random(len(given.y)) < share
    return Rows(given.X, [(c + no) % 5 for c, no in zip(given.y, lie, strict=True)])


def test_honest_sites_are_never_set_aside(store, sites):
    for task, classes in (("may", (0, 1)), ("june", (2, 3)), ("july", (4,))):
        many(store, sites, task, classes, EVERYONE)
        for validation in (None, VALIDATION):
            blob, _ = update_head(store, validation, task)
            assert fedran.decode(blob).classes[-1] == classes[-1]
            assert aside(store) == {}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("times", [1, 10, 100])
def test_a_liar_is_set_aside_however_many_rows_it_claims_and_forget_changes_nothing(
    times, first, store, sites, tmp_path
):
    everything = (0, 1, 2, 3, 4)
    lies = rotated(rows(7, everything, 500))
    assert not first or send(store, sites, "site-5", "may", lies, times)
    many(store, sites, "may", everything, range(1, 5))
    assert first or send(store, sites, "site-5", "may", lies, times)
    blob, digest = update_head(store, None, "may")
    (found,) = aside(store).values()
    assert (found["client"], found["label"], found["evidence"]) == ("site-5", None, "points")
    assert "other label" in found["reason"]
    assert len([e for e in store.events.read() if e["event"] == "set_aside"]) == 1
    store.forget("site-5", None, "me", SiteKey.generate())
    assert update_head(store, None, "forget") == (blob, digest)
    assert aside(store) == {}
    other = store_of(sites, tmp_path / "other")
    many(other, sites, "may", everything, range(1, 5))
    assert update_head(other, None, "may") == (blob, digest), "as if it had never been there"
    other.close()


def test_of_three_sites_two_outvote_the_third(store, sites):
    many(store, sites, "may", (0, 1, 2), (1, 2))
    assert send(store, sites, "site-5", "may", rotated(rows(7, (0, 1, 2), 300)))
    update_head(store, None, "may")
    assert aside(store).keys() == {("site-5", None)}


def test_two_liars_and_one_that_lies_more_and_more_are_set_aside(store, sites):
    everything = (0, 1, 2, 3, 4)
    many(store, sites, "may", everything, (1, 2, 3))
    for client in ("site-4", "site-5"):
        lies = rotated(rows(len(client) + int(client[-1]), everything, 500), 0.8)
        assert send(store, sites, client, "may", lies)
    update_head(store, None, "may")
    assert aside(store).keys() == {("site-4", None), ("site-5", None)}


def test_one_class_that_is_called_another_is_named_and_the_rest_of_the_site_counts(store, sites):
    everything = (0, 1, 2, 3, 4)
    many(store, sites, "may", everything, range(1, 5))
    given = rows(7, (0, 0, 0, *everything), 700)
    given = Rows(given.X, [1 if c == 0 else c for c in given.y])
    assert send(store, sites, "site-5", "may", given)
    head = fedran.decode(update_head(store, None, "may")[0])
    assert aside(store).keys() == {("site-5", 1)}
    lies = sum(c == 1 for c in given.y)
    total = sum(upload.rows for upload in store.state.uploads.values())
    assert head.diagnosis.n_rows == total - lies


def test_the_owner_overrules_and_takes_it_back(store, sites):
    many(store, sites, "may", (0, 1, 2), range(1, 5))
    assert send(store, sites, "site-5", "may", rotated(rows(7, (0, 1, 2), 300)))
    without = update_head(store, None, "may")
    assert aside(store)
    store.database.set_fact(VOUCHED, json.dumps(["site-5"]))
    everything = update_head(store, None, "accept")
    assert (aside(store), everything[0] != without[0]) == ({}, True)
    store.database.set_fact(VOUCHED, "[]")
    assert update_head(store, None, "accept") == without


def test_of_two_sites_nobody_knows_which_one_is_wrong_but_validation_rows_do(store, sites):
    many(store, sites, "may", (0, 1), (1,))
    assert send(store, sites, "site-2", "may", flipped(rows(7, (0, 1), 400), 0, 1))
    update_head(store, None, "may")
    assert aside(store) == {}
    store.database.set_fact("solved", "")
    update_head(store, VALIDATION, "may")
    (found,) = aside(store).values()
    assert (found["client"], found["label"], found["evidence"]) == ("site-2", None, "rows")
    store.database.set_fact("solved", "")
    update_head(store, None, "")
    assert aside(store), "what validation rows said holds where there are none at hand"


def test_validation_rows_name_one_class_after_the_other(store, sites):
    many(store, sites, "may", (0, 1, 2, 3), (1,))
    given = rows(7, (0, 2), 600)
    assert send(store, sites, "site-2", "may", Rows(given.X, [c + 1 for c in given.y]))
    assert send(store, sites, "site-2", "june", rows(8, (4,), 200))
    head = fedran.decode(update_head(store, VALIDATION, "june")[0])
    assert aside(store).keys() == {("site-2", 1), ("site-2", 3)}
    assert VALIDATION.test(head)[0] > 0.9


def test_a_class_that_one_site_alone_has_waits_for_a_second_one_or_the_owner(sites, tmp_path):
    store = store_of(sites, tmp_path / "state")
    store.settings = replace(store.settings, trusted=False)
    assert send(store, sites, "site-1", "may", rows(1, (0, 1)))
    assert update_head(store, None, "may") == (b"", ""), "nobody can vouch for the first upload"
    assert aside(store, waits=True).keys() == {("site-1", 0), ("site-1", 1)}
    assert send(store, sites, "site-2", "may", rows(2, (1, 2)))
    assert fedran.decode(update_head(store, None, "may")[0]).classes == (1,)
    for changes, classes in (
        ({"classes": [0, 1, 2, 3]}, (0, 1, 2)),
        ({"trusted": True}, (0, 1, 2)),
    ):
        store.settings = replace(store.settings, classes=None, trusted=False)
        store.settings = replace(store.settings, **changes)
        assert fedran.decode(update_head(store, None, "may")[0]).classes == classes
    store.settings = replace(store.settings, classes=None, trusted=False)
    store.database.set_fact(VOUCHED, json.dumps(["site-2"]))
    assert fedran.decode(update_head(store, None, "may")[0]).classes == (1, 2)
    store.close()


def test_classes_of_a_very_large_site_wait_where_nobody_can_vouch_for_them(store, sites):
    many(store, sites, "may", (0, 1), range(1, 5))
    assert send(store, sites, "site-5", "may", rows(7, (0, 1, 4), 400), times=20)
    assert fedran.decode(update_head(store, None, "may")[0]).classes == (0, 1)
    (found,) = aside(store, waits=True).values()
    assert (found["label"], found["evidence"]) == (4, "size")
    store.database.set_fact(VOUCHED, json.dumps(["site-5"]))
    assert fedran.decode(update_head(store, None, "may")[0]).classes == (0, 1, 4)


def test_secure_sums_wait_as_well(sites, tmp_path):
    store = sites.store(tmp_path / "sums", **SUMS | {"trusted": False})
    for number, (classes, n) in enumerate((((0, 1), 20), ((1, 2), 20), ((0, 1), 400)), start=1):
        data = summary(number, classes, n=n)
        assert store.receive(sites.secure_sum(number, "may", [f"site-{number}"], data)).settled
    head = fedran.decode(update_head(store, None, "may")[0])
    assert aside(store, waits=True)["cohort-3", None]["evidence"] == "size"
    assert head.diagnosis.n_rows == 40
    store.close()


def test_nothing_is_solved_again_until_something_changes(store, sites, monkeypatch):
    honest(store, sites, "may", (0, 1))
    first = update_head(store, None, "may")
    solved, solve = [], type(store).solve
    monkeypatch.setattr(type(store), "solve", lambda s, out: solved.append(1) or solve(s, out))
    assert update_head(store, None, "") == first
    assert solved == []
    assert send(store, sites, "site-5", "may", rows(50, (0, 1)))
    assert update_head(store, None, "may") != first
    store.forget("site-5", None, "me", SiteKey.generate())
    assert update_head(store, None, "forget") == first, "bit for bit as before"
    (store.folder / "head.fedran").write_bytes(b"damaged")
    assert (update_head(store, None, "may"), len(solved)) == (first, 3)


def test_the_error_rate_of_a_round_is_that_of_all_its_tests():
    rng = np.random.default_rng(0)
    for evidence, usual, n in (("points", 0.1, 20), ("points", 0.01, 300), ("rows", 0.5, 30)):
        shares = rng.beta(ALIKE * usual, ALIKE * (1 - usual), (1000, 50))
        cases = rng.binomial(n, shares if evidence == "points" else usual, (1000, 50))
        chance = [SetAside("a", None, evidence, x, n, usual).chance for x in range(n + 1)]
        assert np.mean(np.min(np.take(chance, cases), axis=1) < FALSE_ALARMS / 50) <= 0.004
