"""Fitted models and their summaries add up to the model of all rows."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError

import fedran
from fedran import FedRANClassifier
from helpers.small_model import M, assert_same_model, model, rows_of_blobs


@pytest.fixture(scope="module")
def blobs():
    return rows_of_blobs()


@pytest.mark.parametrize("options", [{}, {"ridge": 3.0}])
def test_models_add_up(blobs, options):
    X, y, X_test, _ = blobs
    both = model(**options).fit(X, y)
    a = model(**options).fit(X[:80], y[:80])
    b = model(**options).fit(X[80:][y[80:] > 1], y[80:][y[80:] > 1])
    c = model(**options).fit(X[80:][y[80:] <= 1], y[80:][y[80:] <= 1])
    before = a.head_.weights.copy()
    assert_same_model(both, a + b + c, X_test)
    assert_same_model(both, c + (b + a), X_test)
    np.testing.assert_array_equal(a.head_.weights, before)


def test_a_sum_goes_on_learning(blobs):
    X, y, X_test, _ = blobs
    a, b = model().fit(X[:100], y[:100]), model().fit(X[100:200], y[100:200])
    total = (a + b).partial_fit(X[200:], y[200:])
    assert_same_model(model().fit(X, y), total, X_test)
    assert a.head_.diagnosis.n_rows == 100


def test_labels_that_may_be_meant_as_one_are_a_warning_in_sums_and_batches(blobs):
    X, y, _, _ = blobs
    a, b = model().fit(X, y), model().fit(X, [str(label) for label in y])
    words = "0 and '0'.* may be meant as one class.*"
    with pytest.warns(UserWarning, match=f"{words}second model") as added:
        a + b
    with pytest.warns(UserWarning, match=f"{words}new rows") as learned:
        a.partial_fit(X[:9], [str(label) for label in y[:9]])
    assert added[0].filename == learned[0].filename == __file__


def test_a_sum_keeps_feature_names():
    pd = pytest.importorskip("pandas")
    frame, y = load_iris(return_X_y=True, as_frame=True)
    assert isinstance(frame, pd.DataFrame)
    total = model().fit(frame[:75], y[:75]) + model().fit(frame[75:], y[75:])
    assert list(total.feature_names_in_) == list(frame.columns)
    assert total.score(frame, y) > 0.9


@pytest.mark.parametrize(
    ("options", "width", "named"),
    [
        ({"random_state": 1}, 6, "random_state is 0 in one classifier and 1 in the other"),
        ({"out_features": 32}, 6, "out_features is 96 in one classifier and 32 in the other"),
        ({}, 5, "n_features_in_ is 6 in one classifier and 5 in the other"),
        ({"random_state": None}, 6, "random_state is 0 in one classifier"),
        ({"kind": "relu"}, 6, "kind is 'cosine' in one classifier and 'relu' in the other"),
        ({"bias": False}, 6, "bias is True in one classifier and False in the other"),
    ],
)
def test_other_features_are_not_added(blobs, options, width, named):
    X, y, _, _ = blobs
    other = model(**options).fit(X[:, :width], y)
    with pytest.raises(ValueError, match=named):
        model().fit(X, y) + other


def test_only_fitted_models_are_added(blobs):
    X, y, _, _ = blobs
    fitted = model().fit(X, y)
    with pytest.raises(NotFittedError):
        fitted + model()
    with pytest.raises(NotFittedError):
        model() + fitted
    with pytest.raises(TypeError, match="unsupported operand"):
        fitted + 1


def test_models_whose_columns_differ_are_not_added(blobs):
    X, y, _, _ = blobs
    a, b = (FedRANClassifier(out_features=16).fit(X, y) for _ in range(2))
    a.feature_names_in_ = np.array([f"f{i}" for i in range(X.shape[1])], dtype=object)
    b.feature_names_in_ = a.feature_names_in_[::-1]
    with pytest.raises(ValueError, match="feature names"):
        a + b


def test_a_summary_gives_the_aggregator_the_same_head(blobs):
    X, y, X_test, _ = blobs
    clf = model().fit(X, y)
    upload = fedran.decode(fedran.encode(clf.summary(None), "float64"))
    agg = fedran.Aggregator(M, fingerprint=clf.phi_.fingerprint)
    agg.absorb(upload, client="a", task="t")
    head = agg.solve()
    H = clf.phi_(X_test)
    np.testing.assert_array_equal(head.predict(H), clf.predict(X_test))
    assert np.linalg.norm(head.weights - clf.head_.weights) < 1e-3 * np.linalg.norm(head.weights)


def test_a_summary_equals_that_of_the_rows(blobs):
    X, y, _, _ = blobs
    clf = model().fit(X, y)
    mine = clf.summary(rank=12).validate()
    direct = fedran.summarize(clf.phi_(X), y, rank=12, fingerprint=clf.phi_.fingerprint)
    assert (mine.classes, mine.counts) == (direct.classes, direct.counts)
    assert mine.fingerprint == direct.fingerprint
    np.testing.assert_allclose(mine.sigma, direct.sigma, rtol=1e-4)
    assert mine.accounts.cut == pytest.approx(direct.accounts.cut, rel=1e-3)
    assert mine.accounts.eps_G == pytest.approx(direct.accounts.eps_G, rel=1e-3)
    with pytest.raises(NotFittedError):
        model().summary()
