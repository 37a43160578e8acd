"""Partitioners: who gets which rows, against the definition, and the random stream they use."""

import hashlib
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedran_bench.streams.partition import capped, dirichlet, iid, natural

SIZES = st.lists(st.integers(0, 40), min_size=0, max_size=6)
SEEDS = st.integers(0, 2**32)


def classes_of(sizes):
    """Consecutive row numbers, one array a class."""
    ends = np.cumsum([100, *sizes])
    return [np.arange(a, b) for a, b in pairwise(ends)]


def all_rows(classes):
    return sorted(int(r) for rows in classes for r in rows)


def reference_dirichlet(classes, n_clients, beta, rng):
    """Row by row, as the docstring says."""
    parts = [[] for _ in range(n_clients)]
    for rows in classes:
        shuffled = rng.permutation(rows)
        distribute(parts, shuffled, rng.dirichlet([beta] * n_clients))
    return parts


def reference_capped(classes, n_clients, beta, rng):
    """Section 1.7 of the methods reference: repeat until every client has a row."""
    total = sum(len(rows) for rows in classes)
    while True:
        parts = [[] for _ in range(n_clients)]
        for rows in classes:
            shuffled = rng.permutation(rows)
            p = rng.dirichlet([beta] * n_clients)
            for k in range(n_clients):
                if len(parts[k]) >= total / n_clients:
                    p[k] = 0.0
            distribute(parts, shuffled, p / p.sum())
        if all(parts):
            return [list(rng.permutation(part)) for part in parts]


def distribute(parts, rows, shares):
    """Cut at the floors of the cumulative shares."""
    ends = [int(c * len(rows)) for c in np.cumsum(shares)[:-1]] + [len(rows)]
    start = 0
    for k, end in enumerate(ends):
        parts[k].extend(int(r) for r in rows[start:end])
        start = max(start, end)


@given(SIZES, st.integers(1, 9), st.floats(1e-3, 100), SEEDS)
def test_dirichlet_gives_every_row_to_one_client(sizes, clients, beta, seed):
    classes = classes_of(sizes)
    parts = dirichlet(classes, clients, beta, np.random.default_rng(seed))
    assert len(parts) == clients
    assert all(p.dtype == np.int64 for p in parts)
    assert sorted(np.concatenate(parts)) == all_rows(classes)


@given(st.lists(st.integers(5, 40), min_size=2, max_size=6), st.integers(1, 4), SEEDS)
def test_capped_gives_every_row_to_one_client_and_no_client_is_empty_or_large(sizes, clients, seed):
    classes = classes_of(sizes)
    parts = capped(classes, clients, 0.5, np.random.default_rng(seed))
    assert sorted(np.concatenate(parts)) == all_rows(classes)
    counts = [len(p) for p in parts]
    assert min(counts) >= 1
    assert all(n < sum(sizes) / clients + max(sizes) for n in counts[:-1])
    # The last client takes what rounding leaves of a class, at most a row, even when it is full.
    assert counts[-1] < sum(sizes) / clients + max(sizes) + len(sizes)


@given(SIZES, st.integers(1, 9), SEEDS)
def test_iid_sizes_differ_by_at_most_one(sizes, clients, seed):
    classes = classes_of(sizes)
    parts = iid(classes, clients, np.random.default_rng(seed))
    counts = [len(p) for p in parts]
    assert sorted(np.concatenate(parts)) == all_rows(classes)
    assert len(counts) == clients
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc")), min_size=1, max_size=30))
def test_natural_clients_are_the_groups(rows):
    labels, groups = (np.array(column) for column in zip(*rows, strict=True))
    classes = [np.flatnonzero(labels == c) for c in range(3)]
    parts = natural(classes, groups)
    expected = [set(np.flatnonzero(groups == g)) for g in sorted(set(groups))]
    assert [set(p) for p in parts] == expected
    assert sum(len(p) for p in parts) == len(rows)


def test_a_natural_client_without_rows_in_the_task_is_empty():
    parts = natural([np.array([0, 1])], np.array([7, 7, 8]))
    assert [p.tolist() for p in parts] == [[0, 1], []]


def test_rows_whose_group_is_unknown_are_refused():
    with pytest.raises(ValueError, match="got NaN"):
        natural([np.arange(3)], np.array([np.nan, 1.0, 2.0]))


@pytest.mark.parametrize("beta", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_and_capped_agree_with_loops_over_rows(beta, seed):
    classes = classes_of([60, 7, 0, 33, 80, 1])
    for deal, reference in ((dirichlet, reference_dirichlet), (capped, reference_capped)):
        found = deal(classes, 4, beta, np.random.default_rng(seed))
        expected = reference(classes, 4, beta, np.random.default_rng(seed))
        assert [p.tolist() for p in found] == [[int(r) for r in p] for p in expected]


@pytest.mark.parametrize(("sizes", "clients"), [([3, 2, 2], 5), ([2, 2, 2, 2], 2)])
def test_capped_agrees_where_it_draws_again_and_where_a_client_is_just_full(sizes, clients):
    classes = classes_of(sizes)
    rng, again = np.random.default_rng(0), np.random.default_rng(0)
    for _ in range(20):
        found = capped(classes, clients, 0.3, rng)
        expected = reference_capped(classes, clients, 0.3, again)
        assert [p.tolist() for p in found] == [[int(r) for r in p] for p in expected]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dirichlet", "bd6b856be66730c5"),
        ("capped", "0d75a1b4137a6a61"),
        ("iid", "694264a70ade4b2a"),
    ],
)
def test_the_random_stream_of_each_partitioner_stays_as_published(name, expected):
    deal = {
        "dirichlet": lambda c, rng: dirichlet(c, 5, 0.3, rng),
        "capped": lambda c, rng: capped(c, 5, 0.3, rng),
        "iid": lambda c, rng: iid(c, 5, rng),
    }[name]
    parts = deal(classes_of([50, 31, 77]), np.random.default_rng(1993))
    text = json.dumps([p.tolist() for p in parts])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == expected


def test_a_smaller_beta_gives_more_label_skew():
    def largest_share(beta):
        rng = np.random.default_rng(0)
        parts = [dirichlet([np.arange(1000)], 5, beta, rng) for _ in range(50)]
        return np.mean([max(len(p) for p in ps) for ps in parts])

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)


def test_capped_sizes_are_more_even_than_those_of_dirichlet():
    def spread(deal):
        parts = deal([np.arange(k, k + 50) for k in range(0, 1000, 50)])
        return np.std([len(p) for p in parts])

    rng = np.random.default_rng(1)
    pairs = [
        (spread(lambda c: capped(c, 5, 0.1, rng)), spread(lambda c: dirichlet(c, 5, 0.1, rng)))
        for _ in range(20)
    ]
    assert np.mean([a for a, _ in pairs]) < 0.5 * np.mean([b for _, b in pairs])


@pytest.mark.parametrize("beta", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("deal", [dirichlet, capped])
def test_an_invalid_beta_is_refused(deal, beta):
    with pytest.raises(ValueError, match="beta must be positive and finite"):
        deal([np.arange(3)], 2, beta, np.random.default_rng(0))


@pytest.mark.parametrize("clients", [0, -1])
def test_partitions_without_clients_are_refused(clients):
    rng = np.random.default_rng(0)
    for deal in (
        lambda: dirichlet([np.arange(3)], clients, 1.0, rng),
        lambda: capped([np.arange(3)], clients, 1.0, rng),
        lambda: iid([np.arange(3)], clients, rng),
    ):
        with pytest.raises(ValueError, match="n_clients must be at least 1"):
            deal()


def test_capped_refuses_more_clients_than_rows():
    with pytest.raises(ValueError, match=r"6 clients, 5 rows; use fewer clients"):
        capped([np.arange(5)], 6, 1.0, np.random.default_rng(0))


@pytest.mark.parametrize("beta", [1e-4, 1e-12, 1e-300])
def test_capped_gives_up_if_no_draw_gives_every_client_a_row(beta):
    with pytest.raises(ValueError, match=r"no capped partition .* raise beta"):
        capped([np.arange(500), np.arange(500, 1000)], 5, beta, np.random.default_rng(0))


def test_dirichlet_and_iid_leave_clients_empty_if_there_are_few_rows():
    rng = np.random.default_rng(0)
    assert sum(len(p) == 0 for p in dirichlet([np.arange(2)], 5, 1.0, rng)) >= 3
    assert [len(p) for p in iid([np.arange(2)], 4, rng)] == [1, 1, 0, 0]
    assert [len(p) for p in dirichlet([], 2, 1.0, rng)] == [0, 0]
