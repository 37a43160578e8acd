"""Partitioners: who gets which rows, against the definition, and the random stream they use."""

import hashlib
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedran_bench.streams import dirichlet, iid, natural

SIZES = st.lists(st.integers(0, 40), min_size=0, max_size=6)
SEEDS = st.integers(0, 2**32)


def classes_of(sizes):
    """Consecutive row numbers, one array a class."""
    ends = np.cumsum([100, *sizes])
    return [np.arange(a, b) for a, b in pairwise(ends)]


def all_rows(classes):
    return sorted(int(r) for rows in classes for r in rows)


@given(SIZES, st.integers(1, 9), st.floats(1e-3, 100), SEEDS)
def test_dirichlet_gives_every_row_to_one_client(sizes, clients, beta, seed):
    classes = classes_of(sizes)
    parts = dirichlet(classes, clients, beta, np.random.default_rng(seed))
    assert len(parts) == clients
    assert all(p.dtype == np.int64 for p in parts)
    assert sorted(np.concatenate(parts)) == all_rows(classes)


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dirichlet", "bd6b856be66730c5"),
        ("iid", "694264a70ade4b2a"),
    ],
)
def test_the_random_stream_of_each_partitioner_stays_as_published(name, expected):
    deal = {
        "dirichlet": lambda c, rng: dirichlet(c, 5, 0.3, rng),
        "iid": lambda c, rng: iid(c, 5, rng),
    }[name]
    parts = deal(classes_of([50, 31, 77]), np.random.default_rng(1993))
    text = json.dumps([p.tolist() for p in parts])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == expected


def test_dirichlet_and_iid_leave_clients_empty_if_there_are_few_rows():
    rng = np.random.default_rng(0)
    assert sum(len(p) == 0 for p in dirichlet([np.arange(2)], 5, 1.0, rng)) >= 3
    assert [len(p) for p in iid([np.arange(2)], 4, rng)] == [1, 1, 0, 0]
    assert [len(p) for p in dirichlet([], 2, 1.0, rng)] == [0, 0]
