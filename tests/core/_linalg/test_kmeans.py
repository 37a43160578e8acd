"""Groups of rows: as tight as scikit-learn's k-means, never below the least number of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from fedran.core._linalg import kmeans
from fedran.core._linalg.kmeans import group_rows
from helpers.core.reference import quick


def inertia(X, groups):
    """The sum of squared distances from the group means, row by row."""
    return sum(np.sum((X[groups == g] - X[groups == g].mean(axis=0)) ** 2) for g in set(groups))


@pytest.mark.parametrize("d", [2, 40])
def test_groups_are_as_tight_as_those_of_scikit_learn(d):
    X = np.random.default_rng(d).standard_normal((300, d)).astype(np.float32)
    groups = group_rows(X, group_size=6, min_group=1)
    reference = KMeans(n_clusters=50, n_init=1, random_state=0).fit(X)
    assert len(set(groups)) == 50
    assert inertia(X, groups) <= 1.15 * reference.inertia_  # it tries several seeds per step


def test_separate_clusters_are_found():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(8), 6)
    X = (100 * rng.standard_normal((8, 5))[truth] + rng.standard_normal((48, 5))).astype(np.float32)
    groups = group_rows(X, group_size=6, min_group=5)
    assert len(set(zip(groups, truth, strict=True))) == len(set(groups))


@quick
@given(
    st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99)
)
def test_every_group_has_the_least_number_of_rows(n, d, group_size, min_group, seed):
    # Few distinct values, so that rows coincide and k-means++ runs out of seeds.
    X = np.random.default_rng(seed).integers(0, 3, (n, d)).astype(np.float32)
    groups = group_rows(X, group_size, min_group)
    sizes = np.bincount(groups)
    assert sizes.min() >= min(min_group, n)
    assert len(sizes) <= max(1, round(n / max(1, group_size - min_group + 1)))


@pytest.mark.parametrize(("group_size", "min_group"), [(6, 1), (6, 3), (10, 5), (20, 10)])
def test_groups_hold_about_group_size_rows_also_where_small_ones_are_merged(group_size, min_group):
    X = np.random.default_rng(0).standard_normal((300, 40)).astype(np.float32)
    groups = group_rows(X, group_size, min_group)
    assert 0.8 * group_size <= 300 / (groups.max() + 1) <= 1.25 * group_size


def test_a_small_group_joins_the_nearest_one():
    X = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2], [7.0]], dtype=np.float32)
    groups = group_rows(X, group_size=2, min_group=3)
    assert {frozenset(np.flatnonzero(groups == g).tolist()) for g in set(groups)} == {
        frozenset({0, 1, 2}),
        frozenset({3, 4, 5, 6}),
    }


def test_the_same_rows_give_the_same_groups():
    X = np.random.default_rng(0).standard_normal((80, 4)).astype(np.float32)
    assert np.array_equal(group_rows(X, 5, 3), group_rows(X.copy(), 5, 3))


def test_blocks_are_never_smaller_than_the_smallest_group(monkeypatch):
    monkeypatch.setattr(kmeans, "BLOCK_ROWS", 16)
    X = np.random.default_rng(0).standard_normal((100, 3)).astype(np.float32)
    for min_group in (15, 17, 40, 51, 100):
        counts = np.bincount(group_rows(X, min_group, min_group))
        assert counts.min() >= min_group
        assert counts.sum() == 100
