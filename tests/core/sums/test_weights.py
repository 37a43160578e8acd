"""Weighted rows, which the estimator learns from: a row of weight w is w equal rows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core._linalg.arrays import check_weights
from fedran.core.labels import encode_labels
from fedran.core.summarize import summarize
from fedran.core.sums.exact_sum import ExactSum
from helpers.core.reference import quick


def learned(H, y, weights=None):
    total = ExactSum(H.shape[1], "float64", stack=False)
    total.add_rows([(slice(0, len(H)), H)], *encode_labels(y, len(H)), weights)
    return total


@quick
@given(st.integers(1, 14), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_weighted_rows_are_repeated_rows(n, M, seed):
    rng = np.random.default_rng(seed)
    times = rng.integers(1, 4, n)
    H, y = rng.standard_normal((n, M)), rng.choice(np.array(["a", "b", "c"]), n)
    weighted = learned(H, y, times.astype(float))
    repeated = learned(H.repeat(times, axis=0), y.repeat(times))
    for a, b in (
        (weighted, repeated),
        (weighted.summary(None, None), repeated.summary(None, None)),
    ):
        scale = 1 + np.abs(b.gram()).max()
        np.testing.assert_allclose(a.gram(), b.gram(), atol=1e-9 * scale)
        assert a.accounts.energy == pytest.approx(b.accounts.energy)
        assert a.accounts.weight == pytest.approx(b.accounts.weight)
    np.testing.assert_allclose(weighted.class_sums.totals, repeated.class_sums.totals)
    a, b = weighted.solve(), repeated.solve()
    np.testing.assert_allclose(a.weights, b.weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(3), "must hold 4 numbers, got shape"),
        (np.ones((4, 1)), "must hold 4 numbers"),
        ([1, 1, -1, 1], r"at least 0, got -1.0 in row 2"),
        ([1, np.nan, 1, 1], r"finite and at least 0, got nan in row 1"),
    ],
)
def test_weights_are_numbers_of_at_least_0_one_per_row(weights, words):
    with pytest.raises(ValueError, match=words):
        check_weights(weights, 4)


def test_weights_stay_where_the_rows_are():
    weighted = learned(np.eye(4), [0, 1, 0, 1], np.arange(1.0, 5)).summary(2, None)
    plain = summarize(np.eye(4), [0, 1, 0, 1], 2)
    for s in (weighted, replace(plain, accounts=replace(plain.accounts, weight_excess=1.0))):
        with pytest.raises(fedran.Refused, match=r"weights: .*repeat rows instead"):
            s.validate()
    clf = fedran.FedRANClassifier(out_features=8).fit(np.eye(4), [0, 1, 0, 1], [1, 2, 3, 4])
    with pytest.raises(ValueError, match="without weights"):
        clf.summary()
    with pytest.raises(fedran.Refused, match="2 numbers"):
        replace(plain.sums, weights=(1.0,))


@pytest.mark.parametrize("way", ["one batch", "later batch", "added sums"])
def test_a_row_that_outweighs_all_others_leaves_them_their_labels(way):
    """A float32 Gram has no room for both, so the sum continues in float64."""
    rng, y = np.random.default_rng(0), np.arange(300) % 3
    X = rng.standard_normal((300, 8)) + 3 * np.eye(8)[y]
    H = np.asarray(fedran.RandomFeatures(8, 128, "cosine", seed=0)(X.astype(np.float32)))
    w = np.where(np.arange(300) == 299, 1e7, 1.0)
    total, other = ExactSum(128, stack=False), ExactSum(128, stack=False)
    parts = [slice(0, 300)] if way == "one batch" else [slice(0, 299), slice(299, 300)]
    for part in parts:
        into = other if way == "added sums" else total
        into.add_rows([(slice(0, 300), H[part])], (0, 1, 2), y[part], w[part])
        if into is other:
            total.add_sum(other)
            other = ExactSum(128, stack=False)
    exact = ExactSum(128, "float64", stack=False)
    exact.add_rows([(slice(0, 300), H)], (0, 1, 2), y, w)
    heads = total.solve(), exact.solve()
    assert np.mean(heads[0].predict(H) == y) > 0.95
    distance = np.linalg.norm(np.subtract(*(np.float64(head.weights) for head in heads)))
    assert distance <= heads[0].diagnosis.eps_W + 1e-6 * np.linalg.norm(heads[1].weights)
