"""Parameters, rows and labels that the estimator refuses, and what it knows afterwards."""

import pickle
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

import fedran
from fedran import FedRANClassifier
from fedran.core.sums.exact_sum import ExactSum
from helpers.small_model import assert_same_model, model, rows_of_blobs


@pytest.fixture(scope="module")
def blobs():
    return rows_of_blobs()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"out_features": 0}, "out_features"),
        ({"out_features": 2.5}, "out_features"),
        ({"ridge": 0.0}, "ridge"),
        ({"ridge": -1.0}, "ridge must be a finite, positive number, got -1.0"),
        ({"random_state": -1}, "seed"),
        ({"kind": "tanh"}, "kind must be one of"),
        ({"bias": 1}, "bias must be"),
    ],
)
def test_parameters_are_checked_in_fit(blobs, options, named):
    X, y, _, _ = blobs
    with pytest.raises(ValueError, match=named):
        model(**options).fit(X, y)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused(blobs, bad):
    X, y, _, _ = blobs
    spoilt = X.copy()
    spoilt[3, 2] = bad
    clf = model().fit(X, y)
    before = pickle.dumps(clf)
    for refuse in (lambda: clf.partial_fit(spoilt, y), lambda: clf.predict(spoilt)):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            refuse()
    assert pickle.dumps(clf) == before
    with pytest.raises(ValueError, match="NaN"):
        model().fit(X, np.where(np.arange(len(y)) == 3, np.nan, y))


def test_rows_beyond_the_range_of_float32_are_refused(blobs):
    """Finite rows whose squares are not: an error, never a model of NaN."""
    X, y, X_test, _ = blobs
    clf = model(kind="relu").fit(X, y)
    before = clf.predict(X_test)
    with pytest.raises(ValueError, match=r"scale|range|large|infinit"):
        clf.partial_fit(X * 1e25, y)
    np.testing.assert_array_equal(clf.predict(X_test), before)


def test_rows_of_unit_norm_have_no_range(blobs):
    X, y, X_test, _ = blobs
    for factor in (1e-200, 1e200):
        scaled = model(bias=False).fit(X * factor, y)
        assert_same_model(scaled, model(bias=False).fit(X, y), X_test)


def test_hellinger_refuses_negative_rows_and_keeps_what_it_learned(blobs):
    X, y, X_test, _ = blobs
    clf = model(kind="hellinger").fit(np.abs(X), y)
    before = clf.predict(np.abs(X_test))
    for learn in (clf.partial_fit, clf.fit):
        with pytest.raises(ValueError, match=r"Negative values in data: -.* in row 0; use kind="):
            learn(X, y)
    with pytest.raises(fedran.Refused, match="at least 0, as kind 'hellinger' requires"):
        clf.predict(X_test)
    np.testing.assert_array_equal(clf.predict(np.abs(X_test)), before)


def test_a_refused_batch_leaves_no_trace(blobs):
    X, y, X_test, _ = blobs
    clf = model().fit(X, y)
    with pytest.raises(ValueError, match="6 features"):
        clf.partial_fit(X[:, :5], y)
    with pytest.raises(ValueError, match=r"label|target"):
        clf.partial_fit(X, y + 0.5)
    assert_same_model(model().fit(X, y), clf, X_test)


def test_mixed_labels_in_a_list_are_refused(blobs):
    X, y, _, _ = blobs
    mixed = ["b" if c == 0 else int(c) for c in y]
    for labels in (mixed, np.array(mixed, dtype=object)):
        with pytest.raises(ValueError, match="all numbers or all strings"):
            FedRANClassifier(out_features=16).fit(X, labels)


@pytest.mark.parametrize("gap", [None, float("nan")])
def test_rows_without_a_label_are_counted_and_refused(gap, blobs):
    X, y, _, _ = blobs
    labels = [gap if i in (7, 9) else f"class {c}" for i, c in enumerate(y)]
    for given in (labels, np.array(labels, dtype=object)):
        with pytest.raises(ValueError, match="no label in 2 of 300 rows, first in row 7; leave"):
            FedRANClassifier(out_features=16).fit(X, given)


@pytest.mark.parametrize("name", ["fit", "predict"])
def test_a_scaler_needs_dense_rows(blobs, name):
    X, y, _, _ = blobs
    clf = model(scaler=fedran.FederatedScaler()).fit(X, y)
    given = (sparse.csr_array(X), y)[: 1 if name == "predict" else 2]
    with pytest.raises(
        TypeError, match=r"Sparse data was passed for X, but dense data is required"
    ):
        getattr(clf, name)(*given)


@pytest.mark.parametrize("kind", [list, np.array, lambda y: np.array(y, dtype=object)])
def test_an_empty_string_is_a_class_with_a_warning(kind):
    y = ["a", "b", ""] * 5
    with pytest.warns(UserWarning, match="label of 5 of 15 rows is an empty string") as told:
        clf = FedRANClassifier(out_features=16).fit(np.eye(15), kind(y))
    assert told[0].filename == __file__, "the warning points to the caller of fit"
    assert clf.classes_.tolist() == ["", "a", "b"]


def test_a_batch_that_was_interrupted_is_not_learned_twice(blobs, monkeypatch):
    """The model answers as before the batch, but learns nothing more until it is fitted again."""
    X, y = blobs[:2]
    clf = model().fit(X[:40], y[:40])
    before = clf.predict_proba(X)
    with monkeypatch.context() as patch:
        patch.setattr("fedran.estimator.additive.BLOCK_BYTES", 1)  # one row per block
        real, rows = ExactSum.add_factor, []

        def add_factor(self, factor):
            rows.append(factor)
            if len(rows) == 5:
                raise KeyboardInterrupt
            real(self, factor)

        patch.setattr(ExactSum, "add_factor", add_factor)
        with pytest.raises(KeyboardInterrupt):
            clf.partial_fit(X[40:], y[40:])
        new = model()
        rows.clear()
        with pytest.raises(KeyboardInterrupt):
            new.partial_fit(X[:40], y[:40])
    np.testing.assert_array_equal(clf.predict_proba(X), before)
    with pytest.raises(RuntimeError, match="was interrupted"):
        clf.partial_fit(X[40:], y[40:])
    for again in (clf.fit(X[:40], y[:40]), new.partial_fit(X[:40], y[:40])):
        np.testing.assert_array_equal(again.predict_proba(X), before)


@pytest.mark.parametrize("step", ["ClassSums.from_codes", "ExactSum.add_factor"])
def test_a_model_whose_second_fit_was_interrupted_is_not_fitted(blobs, monkeypatch, step):
    """Neither the old rows nor a part of the new ones: the next batch is the first."""
    X, y = blobs[:2]
    clf = model().fit(X, y)
    with monkeypatch.context() as patch:
        patch.setattr(f"fedran.core.sums.exact_sum.{step}", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            clf.fit(2 * X[:40], y[:40])
    with pytest.raises(NotFittedError):
        clf.predict(X)
    assert_same_model(clf.partial_fit(X[:40], y[:40]), model().fit(X[:40], y[:40]), X)


@pytest.mark.parametrize("other", [str, lambda label: label + 1])
def test_calibrate_refuses_labels_that_were_not_learned_and_changes_nothing(blobs, other):
    X, y, _, _ = blobs
    clf = model().fit(X, y)
    before = clf.predict_proba(X)
    with pytest.raises(ValueError, match=r"expected only labels of classes_, got .*partial_fit"):
        clf.calibrate(X, [other(label) for label in y.tolist()])
    np.testing.assert_array_equal(clf.predict_proba(X), before)
