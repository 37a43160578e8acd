"""Columns with nearly all of the energy are named."""

import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

import fedran
from fedran.core.sums.scale import MOST, SHARE, SMALL, small_rows, unequal_scales
from helpers.core.reference import quick


@quick
@given(st.integers(1, 12), st.integers(1, 30), st.booleans(), st.integers(0, 999))
def test_few_columns_are_named_if_they_have_the_share_of_unit_rows(d, n, roots, seed):
    rng = np.random.default_rng(seed)
    X = rng.random((n, d)) * 10.0 ** rng.integers(-2, 3, d)
    shares = np.zeros(d)
    for row in X:
        energy = row if roots else row**2
        shares += energy / energy.sum() / n
    order = sorted(range(d), key=lambda j: -shares[j])
    fewest = next(k for k in range(1, d + 1) if shares[order[:k]].sum() >= SHARE)
    text = unequal_scales(X, [f"c{j}" for j in range(d)], "hellinger" if roots else "cosine")
    assert bool(text) == (fewest <= MOST and 4 * fewest <= d)
    if text:
        assert text.startswith(f"{fewest} of {d} columns")
        assert all(f"'c{j}'" in text for j in order[:fewest])


def test_rows_without_energy_have_no_scale():
    assert unequal_scales(np.zeros((5, 8))) == unequal_scales(np.zeros((0, 8))) == ""


@pytest.mark.parametrize("kind", ["cosine", "hellinger"])
def test_a_frequent_category_hides_no_rare_one(kind):
    rng = np.random.default_rng(0)
    one, two = (np.eye(4)[rng.choice(4, 300, p=[0.97, 0.01, 0.01, 0.01])] for _ in range(2))
    flags = (rng.random((300, 12)) < [0.95] + [0.005] * 11) * 1.0
    for X in (one, np.hstack([one, two]), flags, np.eye(1, 8), np.eye(3, 12)):
        assert unequal_scales(X, (), kind) == ""
    assert unequal_scales(np.hstack([one, np.full((300, 1), 50.0)])).startswith("1 of 5 columns")


def test_the_estimator_warns_of_unscaled_columns_and_names_the_remedy():
    X = np.random.default_rng(0).normal(size=(40, 4)) * [1, 1, 1, 500]
    y = (X[:, 0] > 0).astype(int)
    words = r"number 3\) has 100 % .* scaler=FederatedScaler"
    with pytest.warns(UserWarning, match=words) as found:
        fedran.FedRANClassifier(32).fit(X, y)
    assert found[0].filename == __file__
    fedran.FedRANClassifier(32, scaler=fedran.FederatedScaler()).fit(X, y)  # warnings are errors


def test_rows_that_the_constant_of_the_bias_hides_are_named_and_hard_to_classify():
    X, y = load_wine(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    scores = []
    for scale, kinds in ((1.0, []), (np.sqrt(SMALL / 2), [UserWarning])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            clf = fedran.FedRANClassifier(256, ridge=1).fit(scale * X[::2], y[::2])
            fedran.FedRANClassifier(out_features=256, bias=False).fit(scale * X, y)
        assert [w.category for w in caught] == kinds
        scores.append(clf.score(scale * X[1::2], y[1::2]))
    assert "constant, which hides them; scale them" in str(caught[0].message)
    assert scores[0] > 0.95
    assert scores[1] < 0.8
    assert small_rows(np.zeros((3, 4))) == small_rows(np.full((3, 4), SMALL), "hellinger") == ""
    assert small_rows(np.full((3, 4), SMALL / 2), "hellinger")


@pytest.mark.parametrize("kind", ["cosine", "hellinger"])
@pytest.mark.parametrize("look", [small_rows, unequal_scales])
def test_a_look_at_the_scale_copies_a_sample_of_the_rows_only(look, kind):
    X = np.zeros((50_000, 40), np.float32)
    tracemalloc.start()
    try:
        look(X, kind=kind)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < X.nbytes / 2
