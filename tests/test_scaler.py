"""A common standardisation from scalers that add."""

import json
from itertools import pairwise

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedran
from fedran import FederatedScaler, FedRANClassifier
from helpers.core.reference import quick


@parametrize_with_checks(
    [
        FederatedScaler(),
        FedRANClassifier(32, kind="relu", bias=False, scaler=FederatedScaler()),
    ]
)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@quick
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 4),
    st.floats(0, 1e6),
    st.booleans(),
    st.integers(0, 999),
)
def test_sums_and_batches_equal_the_standard_scaler_of_all_rows(sizes, d, offset, whole, seed):
    rng = np.random.default_rng(seed)
    X = offset + rng.standard_normal((sum(sizes), d)) * rng.uniform(0.1, 100, d)
    X[:, 0] = 7.3
    weights = rng.integers(0 if whole else 1, 4, len(X)).astype(float)
    weights[np.cumsum(sizes) - 1] = 1.0
    bounds = np.cumsum([0, *sizes])
    parts = [slice(a, b) for a, b in pairwise(bounds)]
    total = sum(FederatedScaler().fit(X[s], sample_weight=weights[s]) for s in parts)
    batches = FederatedScaler()
    for s in parts:
        batches.partial_fit(X[s], sample_weight=weights[s])
    expected = StandardScaler().fit(X.repeat(weights.astype(int), axis=0))
    for found in (total, batches, FederatedScaler.from_json(total.to_json())):
        np.testing.assert_allclose(found.mean_, expected.mean_, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found.var_[1:], expected.var_[1:], rtol=1e-6, atol=1e-9)
        assert found.scale_[0] == 1.0
        assert found.n_samples_seen_ == weights.sum()
    back = total.transform(X) * total.scale_ + total.mean_
    np.testing.assert_allclose(back, X, rtol=1e-9)


def test_the_fingerprint_does_not_depend_on_the_order_and_tells_other_scales():
    X = np.random.default_rng(0).standard_normal((60, 5)) * [1, 10, 1e4, 1e-3, 3] + 50
    a, b, c = (FederatedScaler().fit(part) for part in np.array_split(X, 3))
    total = a + b + c
    assert total.fingerprint_ == (c + (b + a)).fingerprint_
    assert FederatedScaler.from_json(total.to_json()).fingerprint_ == total.fingerprint_
    assert len({s.fingerprint_ for s in (a, b, c, total)}) == 4


@pytest.fixture(scope="module")
def sites():
    X, y = load_wine(return_X_y=True)
    return [(X[i::2] * (1 + i), y[i::2]) for i in (0, 1)]


def test_sites_agree_on_a_scaler_and_their_models_add(sites):
    (X_a, y_a), (X_b, y_b) = sites
    common = FederatedScaler().fit(X_a) + FederatedScaler().fit(X_b)
    a, b = (FedRANClassifier(256, scaler=common).fit(X, y) for X, y in sites)
    X, y = np.concatenate([X_a, X_b]), np.concatenate([y_a, y_b])
    pooled = FedRANClassifier(256, scaler=FederatedScaler()).fit(X, y)
    np.testing.assert_array_equal((a + b).predict(X), pooled.predict(X))
    assert (a + b).partial_fit(X_a, y_a).score(X, y) > 0.9
    assert a.summary().fingerprint.fields["scaler"] == common.fingerprint_


def test_another_scaler_is_refused(sites):
    for scaler in (StandardScaler(), "standard", True):
        expected = f"must be a FederatedScaler or None, got {type(scaler).__name__}; put other"
        with pytest.raises(TypeError, match=expected):
            FedRANClassifier(64, scaler=scaler).fit(*sites[0])


def test_names_of_columns_are_compared_with_the_scaler_and_kept_in_it(sites):
    X, y = sites[0]
    frame = pandas.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    own = FedRANClassifier(64, scaler=FederatedScaler()).fit(frame, y)
    common = FederatedScaler.from_json(own.scaler_.to_json())
    assert list(common.feature_names_in_) == list(frame.columns)
    given = FedRANClassifier(64, scaler=common).fit(frame, y).partial_fit(frame, y)
    for clf in (own, given.calibrate(frame, y)):  # warnings are errors here
        np.testing.assert_array_equal(clf.predict(frame), y)
    with pytest.raises(ValueError, match="same order"):
        FedRANClassifier(64, scaler=common).fit(frame[frame.columns[::-1]], y)
    with pytest.warns(UserWarning, match="valid feature names"):
        FedRANClassifier(64, scaler=common).fit(X, y)


def test_summaries_of_other_columns_or_another_order_are_not_added(sites):
    X, y = StandardScaler().fit_transform(sites[0][0]), sites[0][1]
    frame = pandas.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    frames = [frame, frame[frame.columns[::-1]], frame.rename(columns={"c0": "C0"})]
    a, *others = (FedRANClassifier(64).fit(rows, y).summary() for rows in frames)
    server = fedran.Aggregator(64)
    server.absorb(a, client="a", task="t")
    for other in others:
        with pytest.raises(fedran.Refused, match="columns is"):
            server.absorb(other, client="b", task="t")


def test_models_with_different_scalers_are_not_added(sites):
    X_a, y_a = sites[0]
    own = [FedRANClassifier(64, scaler=FederatedScaler()).fit(X, y) for X, y in sites]
    plain = FedRANClassifier(64).fit(StandardScaler().fit_transform(X_a), y_a)
    for a, b in (own, (own[0], plain)):
        with pytest.raises(ValueError, match=r"scaler is .* in one FedRANClassifier"):
            a + b
    server = fedran.Aggregator(64)
    server.absorb(own[0].summary(), client="a", task="t")
    with pytest.raises(fedran.Refused, match="scaler is"):
        server.absorb(own[1].summary(), client="b", task="t")


def test_scalers_of_other_columns_or_without_rows_are_not_added():
    a, b = FederatedScaler().fit(np.eye(3)), FederatedScaler().fit(np.eye(2))
    with pytest.raises(ValueError, match="one scaler has 3 columns and the other 2"):
        a + b
    with pytest.raises(NotFittedError):
        a + FederatedScaler()
    with pytest.raises(TypeError):
        a + 1
    c = clone(a).fit(np.eye(3))
    a.feature_names_in_, c.feature_names_in_ = np.array(["x", "y", "z"]), np.array(["x", "z", "y"])
    with pytest.raises(ValueError, match="feature names"):
        a + c


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"rows": -1},
        {"rows": "many"},
        {"rows": float("inf")},
        {"mean": [1.0]},
        {"mean": [[1.0, 2.0]]},
        {"variance": [1.0, -1.0]},
        {"variance": [1.0, float("nan")]},
        {"columns": ["a"]},
        {"columns": [1, 2]},
        {"columns": 5},
    ],
)
def test_text_that_no_scaler_wrote_is_refused(change):
    values = json.loads(FederatedScaler().fit(np.eye(2)).to_json()) | change
    with pytest.raises(fedran.Refused, match="scaler: expected"):
        FederatedScaler.from_json(json.dumps(values))
    for text in ("", "[]", "{}", "3"):
        with pytest.raises(fedran.Refused, match="scaler: expected"):
            FederatedScaler.from_json(text)


def test_values_whose_squares_overflow_are_refused():
    with pytest.raises(ValueError, match="out of the range of float64"):
        FederatedScaler().fit([[1e200], [-1e200]])
