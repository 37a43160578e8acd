"""What the ledger charges bounds what rows and persons have spent."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.core.private.dp import Budget, composed, gaussian_epsilon
from fedran.federation.secure.masking.contribution import Content, Noise
from fedran.federation.secure.server.budget import charge, spent
from fedran.federation.server.store.database import Database

SITES = ("a", "b", "c", "d")
COHORTS = [c for n in (3, 4) for c in itertools.combinations(SITES, n)]
MU = Budget(1.0, 1e-5).mu


def about_to_reveal(task, number, members, answered=()):
    """An attempt whose sites have confirmed the list of members."""
    state = SimpleNamespace(survivors=members, answered=lambda stage: answered)
    attempt = SimpleNamespace(task=task, number=number)
    content = Content((0, 1), 0, 7, 4, 100, Noise(1.0, 1e-5, 2))
    return SimpleNamespace(attempt=attempt, content=content, state=state)


@pytest.fixture
def database(tmp_path):
    return Database(tmp_path)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["may", "june"]), st.sampled_from(COHORTS)), max_size=8))
def test_rows_are_in_one_sum_and_persons_spend_at_most_what_was_charged(tmp_path_factory, events):
    """Every attempt that may reveal counts as known, whether or not it gave a sum."""
    database = Database(tmp_path_factory.mktemp("ledger"))
    limit = gaussian_epsilon(composed([MU] * 2), 1e-5)
    revealed = []
    for number, (task, members) in enumerate(events, 1):
        opened = about_to_reveal(task, number, members)
        if not charge(database, opened, limit):
            assert not charge(database, opened, limit), "a server that was killed charges once"
            revealed.append((task, members))
    for task, site in itertools.product(("may", "june"), SITES):
        assert sum(t == task and site in members for t, members in revealed) <= 1
    found = spent(database.ledger(), 1e-5)
    assert found.sums == len(revealed)
    assert found.person == pytest.approx(gaussian_epsilon(composed([MU] * len(revealed)), 1e-5))
    assert found.person <= limit * (1 + 1e-9)


def test_a_second_sum_of_a_task_is_refused(database):
    assert charge(database, about_to_reveal("may", 1, SITES[:3]), None) == ""
    assert "has had its sum" in charge(database, about_to_reveal("may", 2, ("d",)), None)
    assert charge(database, about_to_reveal("june", 1, SITES), None) == ""


def test_a_sum_that_sites_have_revealed_is_charged_in_any_case(database):
    assert "total_epsilon" in charge(database, about_to_reveal("may", 1, SITES), 0.5)
    assert database.ledger() == []
    assert charge(database, about_to_reveal("may", 1, SITES, answered=SITES), 0.5) == ""
    assert len(database.ledger()) == 1
