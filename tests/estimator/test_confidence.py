"""The estimator's probabilities, sets of labels, novelty and calibration, on rows never seen."""

from copy import deepcopy
from functools import cache

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import StandardScaler

import fedran
from fedran import FedRANClassifier
from fedran.core.sums.exact_sum import ExactSum
from helpers.small_model import M, model, rows_of_blobs


@pytest.fixture(scope="module")
def blobs():
    return rows_of_blobs()


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = StandardScaler().fit_transform(X[order]), y[order]
    return X[:800], y[:800], X[800:], y[800:]


@pytest.fixture(scope="module")
def learned(digits):
    """A model of the digits by how it learned, each made once."""
    return cache(lambda how: learn(how, *digits[:2]))


def learn(how, X, y) -> FedRANClassifier:
    clf = FedRANClassifier(out_features=512)
    if how == "fit":
        return clf.fit(X, y)
    if how == "partial_fit":
        for i in range(0, len(X), 100):
            clf.partial_fit(X[i : i + 100], y[i : i + 100])
        return clf
    if how == "new classes":
        for c in range(0, 10, 2):
            clf.partial_fit(X[y // 2 == c // 2], y[y // 2 == c // 2])
        return clf
    by = np.arange(len(y)) % 4 if how == "sum" else y % 4
    return sum(clone(clf).fit(X[by == k], y[by == k]) for k in range(4))


def expected_calibration_error(P, y, bins=15) -> float:
    confidence, right = P.max(axis=1), P.argmax(axis=1) == y
    of = np.minimum((confidence * bins).astype(int), bins - 1)
    return sum(abs(np.sum(confidence[of == b] - right[of == b])) for b in range(bins)) / len(y)


@pytest.mark.parametrize(
    ("how", "excess", "error"),
    [
        ("fit", 1.02, 0.02),
        ("partial_fit", 1.10, 0.03),
        ("new classes", 1.05, 0.025),
        ("sum", 1.10, 0.03),
        ("sum of sites without a common class", 1.25, 0.05),
    ],
)
def test_probabilities_are_calibrated_on_rows_never_seen(digits, learned, how, excess, error):
    """Against the temperature that is fitted on held-out rows themselves."""
    _, _, X_test, y_test = digits
    clf = learned(how)
    P = clf.predict_proba(X_test)
    np.testing.assert_allclose(P.sum(axis=1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(clf.classes_[P.argmax(axis=1)], clf.predict(X_test))
    S = clf.decision_function(X_test)
    rows = np.arange(len(S))
    best = min(
        -np.mean(log_softmax(S / T, axis=1)[rows, y_test]) for T in np.geomspace(0.01, 1.0, 100)
    )
    assert log_loss(y_test, P) < excess * best
    assert expected_calibration_error(P, y_test) < error


def test_log_loss_and_probabilities_of_two_classes(blobs):
    X, y, X_test, _ = blobs
    scores = cross_val_score(model(), X, y, cv=3, scoring="neg_log_loss")
    assert scores.mean() > -0.5
    two = model().fit(X[y < 2], y[y < 2])
    P = two.predict_proba(X_test)
    assert P.shape == (len(X_test), 2)
    np.testing.assert_array_equal(P[:, 1] > P[:, 0], two.decision_function(X_test) > 0)
    np.testing.assert_array_equal(model().fit(X[y == 3], y[y == 3]).predict_proba(X_test), 1.0)


def test_more_rows_than_are_left_out_are_chosen_evenly(blobs, monkeypatch):
    X, y, _, _ = blobs
    monkeypatch.setattr("fedran.estimator.classifier.LEFT_OUT_ROWS", 100)
    clf = model().fit(X, y)
    assert clf.head_.calibration.total == 100
    whole = learn("fit", X, y).head_.calibration.temperature
    assert clf.head_.calibration.temperature == pytest.approx(whole, rel=0.5)


def test_a_head_solved_from_a_summary_is_calibrated_on_other_rows(blobs):
    X, y, X_test, _ = blobs
    clf = model().fit(X, y)
    agg = fedran.Aggregator(M)
    agg.absorb(clf.summary(None), client="a", task="t")
    head = agg.solve()
    with pytest.raises(ValueError, match="no calibration"):
        head.predict_proba(clf.phi_(X_test))
    fresh = head.calibrate(clf.phi_(X), [*y[:-1], "unknown"])
    assert fresh.calibration.total == len(y) - 1


@pytest.mark.parametrize("alpha", [0.01, 0.1])
@pytest.mark.parametrize("how", ["fit", "partial_fit", "sum"])
def test_sets_hold_the_true_label_as_often_as_asked_for(digits, learned, how, alpha):
    _, _, X_test, y_test = digits
    clf = learned(how)
    sets = clf.head_.prediction_sets(clf.phi_(X_test), alpha)
    assert sets[np.arange(len(y_test)), y_test].mean() > 1 - alpha - 0.01
    known = clf.predict(X_test, reject=alpha)
    decided = np.array([label is not None for label in known])
    assert np.mean(decided & (known != y_test)) < alpha + 0.01
    assert decided.mean() > (0.3 if alpha < 0.02 else 0.7)


@pytest.mark.parametrize("how", ["new classes", "sum of sites without a common class"])
def test_classes_that_joined_later_need_a_calibration_of_the_whole(digits, learned, how):
    """Sites calibrate it one after the other, which gives the records of ``fit``."""
    X, y, X_test, y_test = digits
    clf = deepcopy(learned(how))
    with pytest.raises(ValueError, match=r"of the 10 classes on average.*calibrate"):
        clf.predict(X_test, reject=0.01)
    for k in range(4):
        assert clf.calibrate(X[y % 4 == k], y[y % 4 == k]) is clf
    found, expected = clf.head_.calibration, learned("fit").head_.calibration
    assert found.missing(10) == 0
    assert np.abs(np.cumsum(found.histogram - expected.histogram)).max() <= 1
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-3)
    labels = clf.predict(X_test, reject=0.01)
    decided = np.array([label is not None for label in labels])
    assert np.mean(decided & (labels != y_test)) < 0.02
    clf.partial_fit(X[:9], y[:9])
    assert clf.head_.calibration.total == len(X) + 9
    assert clf.calibrate(X[:9], y[:9]).head_.calibration.total == 9


def test_rows_unlike_those_learned_are_more_novel(digits):
    X, y, X_test, y_test = digits
    clf = FedRANClassifier(out_features=512).fit(X[y < 8], y[y < 8])
    seen, unseen = X_test[y_test < 8], X_test[y_test >= 8]
    noise = np.random.default_rng(0).standard_normal((200, X.shape[1]))
    for rows, least in ((unseen, 0.8), (noise, 0.98)):
        truth = np.repeat([0, 1], [len(seen), len(rows)])
        found = clf.novelty(np.concatenate([seen, rows]))
        assert roc_auc_score(truth, found) > least
        assert found.min() >= 0
        assert found.max() <= 1


def test_small_batches_do_not_cost_a_solve_each(blobs, monkeypatch):
    X, y, _, _ = blobs
    solves = []
    solve = ExactSum.solve
    monkeypatch.setattr(ExactSum, "solve", lambda *a, **k: solves.append(1) or solve(*a, **k))
    clf = model().fit(X[:20], y[:20])
    for i in range(20, 120):
        clf.partial_fit(X[i : i + 1], y[i : i + 1])
    assert len(solves) < 10
    assert clf.head_.calibration.total == 120
