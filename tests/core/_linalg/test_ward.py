"""Groups of rows: as tight as scikit-learn's, never below the least number of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from fedran.core._linalg import ward
from fedran.core._linalg.ward import group_means, group_rows
from helpers.core.reference import quick


def unit_rows(n, d, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize("d", [3, 40])
def test_groups_are_those_of_ward_in_scikit_learn(d):
    X = unit_rows(300, d)
    groups = group_rows(X, group_size=6)
    reference = AgglomerativeClustering(n_clusters=50).fit_predict(X)
    pairs = set(zip(groups.tolist(), reference.tolist(), strict=True))
    assert len(pairs) == 50 == len(set(groups))


@quick
@given(
    st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99)
)
def test_every_group_has_the_least_number_of_rows(n, d, group_size, min_group, seed):
    # Few distinct values, so that rows coincide.
    X = np.random.default_rng(seed).integers(0, 3, (n, d)).astype(np.float32) / 10
    groups = group_rows(X, group_size, min_group)
    sizes = np.bincount(groups)
    assert sizes.min() >= min(min_group, n)
    assert len(sizes) <= max(1, round(n / group_size))
    means, counts = group_means(X, groups, np.ones(n))
    assert counts.tolist() == sizes.tolist()
    for g, mean in enumerate(means):
        np.testing.assert_allclose(mean, X[groups == g].mean(axis=0), atol=1e-6)


def test_a_small_group_joins_the_nearest_one():
    X = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2], [7.0]], dtype=np.float32) / 10
    groups = group_rows(X, group_size=2, min_group=3)
    assert {frozenset(np.flatnonzero(groups == g).tolist()) for g in set(groups)} == {
        frozenset({0, 1, 2}),
        frozenset({3, 4, 5, 6}),
    }


def test_blocks_are_never_smaller_than_the_smallest_group_and_make_as_many_groups(monkeypatch):
    monkeypatch.setattr(ward, "BLOCK_ROWS", 16)
    X = unit_rows(100, 3)
    for min_group in (15, 17, 40, 51, 100):
        counts = np.bincount(group_rows(X, min_group, min_group))
        assert counts.min() >= min_group
        assert counts.sum() == 100
    for groups in (9, 10, 33, 52):
        assert group_rows(X, 100 / groups).max() + 1 == groups
