"""What the ledger charges is compared with the exact mu of everything that was revealed."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.core.private.dp import Budget, composed
from fedran.federation.secure.attempt import Stage
from fedran.federation.secure.contribution import Content, Noise
from fedran.federation.server.database import Database
from fedran.federation.server.ledger import Ledger, read_revealed

SITES = ("a", "b", "c", "d")
COHORTS = [c for n in (3, 4) for c in itertools.combinations(SITES, n)]
KEYS = {site: f"key of {site}" for site in SITES}
NOISE = Noise(1.0, 1e-5, honest=2)
MU = Budget(1.0, 1e-5).mu


def content_of(draw):
    return Content((0, 1), 0, "", 7, 4, 100, Noise(1.0, 1e-5, 2, draw))


def about_to_reveal(number, content, members, participants=SITES):
    """An attempt whose sites have confirmed the list of members."""
    answered = {Stage.ADVERTISE: participants}.get
    state = SimpleNamespace(survivors=members, answered=answered, roster=KEYS)
    attempt = SimpleNamespace(task="may", number=number)
    return SimpleNamespace(attempt=attempt, content=content, omega=b"center", state=state)


def exact_mu(site, revealed, helper=None):
    """The mu of a site's rows in all revealed sums together, each a pair (draw, members).

    A row moves every sum with its site by one unit of MU^2 honest shares. The noise of a sum is the
    sum of independent shares, one per site and draw; a helper of the server tells its own.
    """
    shares = sorted({(s, draw) for draw, members in revealed for s in members if s != helper})
    mixing = np.array([[s in m and d == draw for s, d in shares] for draw, m in revealed], float)
    moved = np.array([site in members for _, members in revealed], float)
    covariance = mixing @ mixing.T
    inverse = np.linalg.pinv(covariance, hermitian=True)
    assert np.allclose(covariance @ inverse @ moved, moved), "noise covers every combination"
    return MU * np.sqrt(NOISE.honest * moved @ inverse @ moved)


def charged_mu(site, ledger):
    return composed([MU for charge in ledger.charges if site in charge.sites])


@pytest.fixture
def ledger(tmp_path):
    return Ledger(Database(tmp_path))


EVENTS = st.one_of(
    st.tuples(st.just("fails"), st.sampled_from(COHORTS)),
    st.tuples(st.just("gives its sum"), st.sampled_from(COHORTS)),
    st.tuples(st.just("the owner recharges"), st.none()),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(EVENTS, max_size=7))
def test_no_order_of_failures_reveals_more_than_was_charged(tmp_path_factory, events):
    """Every attempt that may reveal counts as known, whether or not it gave a sum."""
    ledger = Ledger(Database(tmp_path_factory.mktemp("ledger")))
    revealed = []
    for number, (what, members) in enumerate(events, 1):
        if members is None:
            ledger.recharge("may", [charge.attempt for charge in ledger.charges])
            continue
        known = ledger.unfinished("may")
        content = content_of(ledger.draw("may")) if known is None else known.content
        before = len(ledger.charges)
        if ledger.charge(about_to_reveal(number, content, members), None):
            continue
        new = (content.noise.draw, members)
        assert (len(ledger.charges) == before) == (new in revealed), "only a repeated sum is free"
        revealed.append(new)
        if what == "gives its sum":
            ledger.finish("may")
    for site, helper in itertools.permutations(SITES, 2):
        if any(site in members for _, members in revealed):
            assert exact_mu(site, revealed, helper) <= charged_mu(site, ledger) * (1 + 1e-9)
    if ("the owner recharges", None) not in events:
        assert all(charged_mu(site, ledger) <= MU for site in SITES)


def test_the_same_noise_in_sums_over_other_sites_would_cost_more_than_two_charges():
    """So the ledger has to refuse it, and the test above can fail."""
    same_draw = [(1, SITES), (1, SITES[:3])]
    assert exact_mu("d", same_draw) > 1.4 * MU
    assert exact_mu("d", [(1, SITES), (2, SITES[:3])]) < MU
    assert exact_mu("a", [(1, SITES), (1, SITES)]) == pytest.approx(exact_mu("a", [(1, SITES)]))


def test_a_charged_sum_is_repeated_with_its_members_only_until_it_is_there(ledger):
    content = content_of(1)
    assert ledger.charge(about_to_reveal(1, content, SITES[:3]), None) == ""
    found = ledger.unfinished("may")
    assert (found.content, found.omega) == (content, b"center")
    assert (found.participants, found.members) == (SITES, SITES[:3])
    assert ledger.charge(about_to_reveal(2, content, SITES[:3]), None) == ""
    assert [charge.attempt for charge in ledger.charges] == [1]
    for other in ((content, SITES), (content_of(2), SITES[:3])):
        refused = ledger.charge(about_to_reveal(3, *other), None)
        assert "only be repeated with exactly these sites" in refused
    ledger.finish("may")
    assert (ledger.unfinished("may"), ledger.draw("may")) == (None, 2)
    assert "rows of a, b" in ledger.charge(about_to_reveal(4, content_of(2), ("a", "b", "d")), None)
    assert ledger.charge(about_to_reveal(5, content_of(2), ("d",)), None) == ""


def test_an_owner_who_recharges_pays_for_both_sums(ledger):
    ledger.charge(about_to_reveal(1, content_of(1), SITES[:3]), None)
    ledger.recharge("may", [1])
    assert (ledger.unfinished("may"), ledger.accepted("may")) == (None, (1,))
    draw = ledger.draw("may")
    assert draw > 1
    assert "total_epsilon is 1," in ledger.charge(about_to_reveal(2, content_of(draw), SITES), 1.0)
    assert ledger.charge(about_to_reveal(2, content_of(draw), SITES), None) == ""
    assert charged_mu("a", ledger) == composed([MU, MU])
    assert charged_mu("d", ledger) == MU
    ledger.finish("may")
    assert "rows of a" in ledger.charge(about_to_reveal(3, content_of(draw + 1), SITES), None)


def test_a_restored_backup_keeps_charges_draws_and_numbers_of_both_histories(tmp_path):
    old, new = (Ledger(Database(tmp_path / name)) for name in ("old", "new"))
    old.database.add_charge("may", 1, 1.0, 1e-5, ("a", "b", "c"))
    new.database.add_charge("may", 1, 1.0, 1e-5, ("a", "b", "d"))
    new.database.add_charge("may", 2, 1.0, 1e-5, ("e", "f", "g"))
    old.database.set_fact("attempts", '{"may": 3, "june": 1}')
    new.database.set_fact("attempts", '{"may": 2}')
    for _ in range(2):
        old.recharge("may", [])
    new.recharge("may", [1])
    old.carry_over(new.charges, new.facts())
    assert [(c.attempt, c.sites[-1]) for c in old.charges] == [(1, "c"), (2, "d"), (3, "g")]
    assert (old.draw("may"), old.accepted("may")) == (3, (1,))
    assert old.database.fact("attempts") == '{"may": 3, "june": 1}'


def test_a_charged_sum_waits_for_sites_that_can_send_the_same_noise(ledger):
    """A site that comes back with another key has probably lost its files."""
    ledger.charge(about_to_reveal(1, content_of(1), SITES[:3]), None)
    limits = NOISE.budget, 3, None
    assert ledger.refusal("may", KEYS, (), *limits) == ""
    assert "(c cannot take part)" in ledger.refusal("may", {**KEYS, "c": "new"}, (), *limits)
    assert "(a, b cannot take part)" in ledger.refusal("may", {"c": KEYS["c"]}, (), *limits)
    assert "(min_sites is 4 now)" in ledger.refusal("may", KEYS, (), NOISE.budget, 4, None)
    assert ledger.unfinished("may") is not None


def test_an_owner_who_recharges_gets_fresh_noise_also_without_an_unfinished_sum(ledger):
    """A restored backup does not know it: sites have told that they were in a sum."""
    ledger.database.add_charge("may", 4, 1.0, 1e-5, SITES)
    ledger.recharge("may", [4])
    assert ledger.draw("may") == 2


ENTRY = {"agreement": 0, "attempt": 4, "content": "a" * 64, "epsilon": 1.0, "delta": 1e-5}


def test_a_sum_that_two_sites_report_and_the_ledger_lacks_is_missing(ledger):
    members = SITES[:3]
    one = read_revealed(["may", {**ENTRY, "members": list(members)}])
    other = read_revealed(["may", {**ENTRY, "content": "b" * 64, "members": list(members)}])
    assert ledger.missing({"a": [one]}, liars=1) == []
    told = {"a": [one, other], "b": [one], "c": [other]}
    found = ledger.missing(told, liars=1)
    assert [(c.task, c.epsilon, c.delta, c.sites) for c in found] == [
        ("may", 1.0, 1e-5, members)
    ] * 2
    ledger.charge(about_to_reveal(4, content_of(1), members), None)
    assert len(ledger.missing(told, liars=1)) == 1, "a repeated attempt is known by another number"
    assert ledger.missing(told, liars=2) == []


@pytest.mark.parametrize(
    "change",
    [{"epsilon": -1.0}, {"delta": 1.0}, {"epsilon": "1"}, {"content": "x"}, {"members": [1]}],
)
def test_a_report_that_makes_no_sense_is_refused(change):
    good = {**ENTRY, "members": list(SITES)}
    for entry in (["may", {**good, **change}], [change, good], ["may", good, change]):
        with pytest.raises(Refused):
            read_revealed(entry)
