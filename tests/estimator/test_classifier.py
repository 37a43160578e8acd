"""The scikit-learn front: its conventions, what it learns, and models that add up."""

import pickle
import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine, make_circles
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)

import fedran
from fedran import FedRANClassifier, FedRANRegressor
from helpers.small_model import M, assert_same_model, model, rows_of_blobs


@parametrize_with_checks(
    [
        FedRANClassifier(out_features=64),
        FedRANClassifier(out_features=64, kind="hellinger"),
        FedRANRegressor(out_features=64),
    ],
    expected_failed_checks=lambda estimator: (
        dict.fromkeys(
            ("check_decision_proba_consistency", "check_class_weight_classifiers"),
            "passes negative values to positive_only estimators",
        )
        if estimator.kind == "hellinger"
        else {}
    ),
)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def test_the_default_width_meets_the_strictest_tolerance_of_scikit_learn():
    check_sample_weight_equivalence_on_dense_data("FedRANClassifier", FedRANClassifier())


@pytest.fixture(scope="module")
def blobs():
    return rows_of_blobs()


def dense_ridge(clf: FedRANClassifier, X, y) -> np.ndarray:
    """The slow reference: float64 normal equations with the default ridge."""
    H = clf.phi_(X).astype(np.float64)
    Y = (np.asarray(y)[:, None] == clf.classes_).astype(np.float64)
    lam = 0.03 * np.mean(np.sum(H**2, axis=1))
    return np.linalg.solve(H.T @ H + lam * np.eye(H.shape[1]), H.T @ Y)


def test_equals_the_dense_ridge(blobs):
    X, y, X_test, y_test = blobs
    clf = model(ridge=1.0).fit(X, y)
    np.testing.assert_allclose(clf.head_.weights, dense_ridge(clf, X, y), rtol=1e-2, atol=1e-5)
    assert clf.score(X_test, y_test) > 0.9
    assert clf.head_.diagnosis.n_rows == 300


@pytest.mark.parametrize("options", [{}, {"kind": "relu"}])
@pytest.mark.parametrize("size", [1, 7, 150])
def test_partial_fit_does_not_depend_on_the_batches(blobs, options, size):
    X, y, X_test, _ = blobs
    X, y = X[: 80 * size], y[: 80 * size]
    whole = model(**options).fit(X, y)
    parts = model(**options)
    for i in range(0, len(X), size):
        parts.partial_fit(X[i : i + size], y[i : i + size])
    assert_same_model(whole, parts, X_test)


def test_new_classes_at_any_time(blobs):
    X, y, X_test, _ = blobs
    order = np.argsort(y, kind="stable")
    clf = model()
    for part in np.array_split(order, 9):
        clf.partial_fit(X[part], y[part])
        assert set(clf.predict(X_test)) <= set(clf.classes_)
    assert clf.classes_.tolist() == [0, 1, 2, 3, 4]
    assert_same_model(model().fit(X, y), clf, X_test)


def test_no_training_row_is_kept(blobs):
    X, y, _, _ = blobs
    sizes = [len(pickle.dumps(model().fit(np.tile(X, (k, 1)), np.tile(y, k)))) for k in (1, 20)]
    assert abs(sizes[0] - sizes[1]) < 64
    marked = X.copy()
    marked[7] = np.float64(1.0) / 3 + np.arange(6) * 7.7
    for row in (marked[7], marked[7].astype(np.float32)):
        assert row.tobytes() not in pickle.dumps(model().fit(marked, y))


def test_a_head_is_solved_once_and_only_for_what_is_known(blobs):
    X, y, _, _ = blobs
    clf = model().partial_fit(X[:50], y[:50])
    head = clf.head_
    assert clf.head_ is head
    assert clf.partial_fit(X[50:], y[50:]).head_ is not head
    with pytest.raises(NotFittedError):
        model().head_  # noqa: B018


def test_pipeline_cross_validation_clone_and_pickle(blobs):
    X, y, X_test, _ = blobs
    pipe = make_pipeline(StandardScaler(), model())
    assert cross_val_score(pipe, X, y, cv=3).mean() > 0.9
    fitted = model(ridge=0.5).fit(X, y)
    assert clone(fitted).get_params() == fitted.get_params()
    assert not hasattr(clone(fitted), "classes_")
    back = pickle.loads(pickle.dumps(fitted))
    assert back.decision_function(X_test).tobytes() == fitted.decision_function(X_test).tobytes()
    with pytest.warns(UserWarning, match="same rows, which count twice") as told:
        total = fitted + back
    assert told[0].filename == __file__
    assert total.head_.diagnosis.n_rows == 2 * len(X)


@pytest.mark.parametrize(
    "labels", [list("abcde"), [-5, 0, 3, 8, 10**12], [0.0, 1.0, 2.0, 3.0, 4.0]]
)
def test_labels_come_back(blobs, labels):
    X, y, X_test, y_test = blobs
    names = np.array(labels)
    clf = model().fit(X, names[y])
    assert np.mean(clf.predict(X_test) == names[y_test]) > 0.9
    assert clf.classes_.tolist() == labels


def test_one_class_and_two(blobs):
    X, y, X_test, _ = blobs
    one = model().fit(X[y == 3], y[y == 3])
    assert set(one.predict(X_test)) == {3}
    two = model().fit(X[y < 2], y[y < 2])
    scores = two.decision_function(X_test)
    assert scores.shape == (len(X_test),)
    np.testing.assert_array_equal(two.predict(X_test), (scores > 0).astype(int))


def test_ridge_options(blobs):
    X, y, _, _ = blobs
    mean = float(np.mean(np.sum(model(ridge=1).fit(X, y).phi_(X) ** 2, axis=1)))
    given = {
        1.0: 0.03 * mean,
        10: 0.3 * mean,
        None: 0.03 * mean,
        fedran.Ridge.relative(0.2): 0.2 * mean,
        fedran.Ridge.absolute(0.25): 0.25,
    }
    for ridge, lam in given.items():
        assert model(ridge=ridge).fit(X, y).head_.diagnosis.lam == pytest.approx(lam, rel=1e-4)


def test_random_states(blobs):
    X, y, _, _ = blobs
    a, b = model(random_state=None).fit(X, y), model(random_state=None).fit(X, y)
    assert a.phi_.seed != b.phi_.seed
    shared = np.random.RandomState(3)
    assert (
        model(random_state=shared).fit(X, y).phi_.seed
        != model(random_state=shared).fit(X, y).phi_.seed
    )
    assert model(random_state=np.int64(5)).fit(X, y).phi_.seed == 5


def test_a_constant_separates_a_disc_from_its_ring():
    X, y = make_circles(400, noise=0.05, factor=0.5, random_state=0)
    assert model(bias=False).fit(X[:200], y[:200]).score(X[200:], y[200:]) < 0.7
    assert model().fit(X[:200], y[:200]).score(X[200:], y[200:]) > 0.98


def test_parameters_changed_after_fit_do_not_break_the_model(blobs):
    """As in scikit-learn: set_params speaks to the next fit, not to what was learned."""
    X, y, X_test, _ = blobs
    clf = model().fit(X, y)
    before = clf.predict(X_test)
    clf.set_params(out_features=32, random_state=4)
    np.testing.assert_array_equal(clf.predict(X_test), before)


@pytest.mark.parametrize("options", [{}, {"out_features": 2100}])
def test_weighted_rows_equal_repeated_rows(blobs, options):
    X, y, X_test, _ = blobs
    times = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = model(**options).fit(X, y, sample_weight=times)
    repeated = model(**options).fit(X.repeat(times, axis=0), y.repeat(times))
    assert_same_model(weighted, repeated, X_test)
    np.testing.assert_allclose(
        weighted.predict_proba(X_test), repeated.predict_proba(X_test), atol=1e-3
    )
    batches = model(**options).partial_fit(X[:90], y[:90], sample_weight=times[:90])
    batches.partial_fit(X[90:], y[90:], sample_weight=times[90:])
    assert_same_model(batches, repeated, X_test)


def test_fit_holds_a_few_small_blocks_of_random_features():
    rng = np.random.default_rng(0)
    X, y = rng.random((16_000, 4), dtype=np.float32), rng.integers(0, 2, 16_000)
    tracemalloc.start()
    try:
        FedRANClassifier(out_features=1024).fit(X, y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**24  # H as a whole would need four such blocks in float32, eight in float64


@pytest.mark.parametrize("options", [{}, {"ridge": 3.0}, {"class_weight": {0: 5.0, 2: 0.5}}])
def test_models_add_up(blobs, options):
    X, y, X_test, _ = blobs
    both = model(**options).fit(X, y)
    a = model(**options).fit(X[:80], y[:80])
    b = model(**options).fit(X[80:][y[80:] > 1], y[80:][y[80:] > 1])
    c = model(**options).fit(X[80:][y[80:] <= 1], y[80:][y[80:] <= 1])
    before = a.head_.weights.copy()
    assert_same_model(both, a + b + c, X_test)
    assert_same_model(both, c + (b + a), X_test)
    assert (c + (b + a)).head_.diagnosis.lam == pytest.approx(both.head_.diagnosis.lam)
    np.testing.assert_array_equal(a.head_.weights, before)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_ridge_follows_the_noise_of_the_labels(noise):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1200, 10))
    true = (X[:, 0] + X[:, 1] > 0).astype(int)
    y = np.where(rng.random(1200) < noise, 1 - true, true)
    chosen, fixed = (FedRANClassifier(512, ridge=r).fit(X[:600], y[:600]) for r in ("cv", 1.0))
    found = [clf.score(X[600:], true[600:]) for clf in (chosen, fixed)]
    assert found[0] >= found[1] + (0.05 if noise else -0.005)


def test_known_duplicates_are_a_warning_and_own_scales_an_error(blobs):
    X, y, _, _ = blobs
    a, b, c = (model().fit(X[i::3], y[i::3]) for i in range(3))
    for twice in (lambda: a + a, lambda: (a + b) + (c + b)):
        with pytest.warns(UserWarning, match="same rows, which count twice") as told:
            twice()
        assert told[0].filename == __file__
    own = [model().fit(StandardScaler().fit_transform(X[i::2]), y[i::2]) for i in range(2)]
    with pytest.raises(ValueError, match="each was scaled by its own rows"):
        own[0] + own[1]
    common = StandardScaler().fit(X)
    alike = [model().fit(common.transform(X[i::2]), y[i::2]) for i in range(2)]
    assert (alike[0] + alike[1]).head_.diagnosis.n_rows == len(X)


@pytest.mark.parametrize("kind", ["cosine", "hellinger", "relu"])
@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.coo_array])
def test_sparse_rows_give_the_model_of_dense_ones(blobs, kind, form):
    X, y, X_test, _ = blobs
    X, X_test = np.maximum(X, 0), np.maximum(X_test, 0)
    dense = model(kind=kind).fit(X, y)
    clf = model(kind=kind).fit(form(X[:200]), y[:200]).partial_fit(form(X[200:]), y[200:])
    assert_same_model(dense, clf, X_test)
    scores = clf.decision_function(form(X_test))
    np.testing.assert_allclose(scores, dense.decision_function(X_test), atol=1e-3)
    assert clf.calibrate(form(X), y).predict_proba(form(X_test)).shape == (100, 5)


def test_sparse_rows_are_never_dense_as_a_whole():
    X = sparse.random_array((20_000, 5_000), density=0.001, format="csr", rng=0)
    tracemalloc.start()
    try:
        FedRANClassifier(256, bias=False).fit(X, np.arange(20_000) % 2).predict(X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000 * 5_000 * 8 / 8
    with pytest.warns(UserWarning, match="hides them; use bias=False"):
        FedRANClassifier(64).fit(X[:99] / 2, np.arange(99) % 2)


def test_rare_classes_are_found_with_class_weights():
    rng = np.random.default_rng(0)
    y = (np.arange(8000) % 500 == 0).astype(int)
    X = rng.standard_normal((8000, 6)) + 1.5 * y[:, None]
    halves = (X[:4000], y[:4000]), (X[4000:], y[4000:])
    plain, balanced, given = (
        FedRANClassifier(256, class_weight=w).fit(*halves[0])
        for w in (None, "balanced", {1: 499.0})
    )
    found = [clf.predict(halves[1][0])[halves[1][1] == 1].mean() for clf in (plain, balanced)]
    assert found[0] < 0.2
    assert found[1] > 0.7
    assert balanced.predict(halves[1][0])[halves[1][1] == 0].mean() < 0.2
    assert_same_model(balanced, given, X)
    P = balanced.predict_proba(halves[1][0])
    assert 0.6 < P[halves[1][1] == 1, 1].mean() < 1
    for both in (lambda: balanced + balanced, lambda: balanced.partial_fit(X, y)):
        with pytest.raises(ValueError, match=r"depends on the rows of one fit.* use a dict"):
            both()


@pytest.mark.parametrize("bad", ["auto", {0: -1.0}, {0: np.inf}, 3])
def test_class_weights_are_checked(blobs, bad):
    with pytest.raises(ValueError, match="class_weight must"):
        model(class_weight=bad).fit(*blobs[:2])


def test_a_pickle_of_a_small_table_is_small():
    X, y = load_wine(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    clf = FedRANClassifier().fit(X, y)
    again = pickle.loads(pickle.dumps(clf))
    assert len(pickle.dumps(clf)) < 2_000_000
    more = again.partial_fit(X[:5], y[:5]).decision_function(X)
    np.testing.assert_allclose(more, clf.partial_fit(X[:5], y[:5]).decision_function(X), atol=1e-4)


def test_a_model_exports_itself_with_its_scaler(blobs):
    runtime = pytest.importorskip("onnxruntime")
    X, y, X_test, _ = blobs
    clf = model(scaler=fedran.FederatedScaler()).fit(X, y)
    session = runtime.InferenceSession(clf.to_onnx(), providers=["CPUExecutionProvider"])
    labels = session.run(["label"], {"features": X_test.astype(np.float32)})[0]
    assert np.mean(labels == clf.predict(X_test)) > 0.98


def test_rows_with_several_labels(blobs):
    X, y, X_test, y_test = blobs
    of_class = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    Y, Y_test = of_class[y], of_class[y_test]
    clf = model().fit(X, Y)
    assert np.mean(clf.predict(X_test) == Y_test) > 0.9
    np.testing.assert_array_equal(clf.predict(X_test), clf.decision_function(X_test) > 0)
    assert log_loss(Y_test.ravel(), clf.predict_proba(X_test).ravel()) < 0.25
    first = model().fit(X[:100], Y[:100])
    parts = [
        first.partial_fit(X[100:200], Y[100:200]),
        model().fit(X[200:], sparse.csr_array(Y[200:])),
    ]
    assert_same_model(clf, sum(parts), X_test)
    one = model().fit(X, Y[:, 0])  # a column alone, at the same ridge
    alone = model(ridge=fedran.Ridge.absolute(clf.head_.diagnosis.lam)).fit(X, Y[:, 0])
    np.testing.assert_allclose(alone.head_.weights[:, 1], clf.head_.weights[:, 0], atol=1e-4)
    for wrong in (lambda: clf.partial_fit(X, Y[:, :2]), lambda: first.partial_fit(X, y)):
        with pytest.raises(ValueError, match="indicators of 3 labels, as in the first batch"):
            wrong()
    with pytest.raises(ValueError, match="y is '3 columns' in one"):
        clf + one
    for refused in (clf.to_onnx, clf.summary, lambda: clf.predict(X, reject=0.1)):
        with pytest.raises(ValueError, match="one label"):
            refused()


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
        ({"random_state": 1}, 6, "random_state is 0 in one FedRANClassifier and 1 in the other"),
        ({"out_features": 32}, 6, "out_features is 96 in one FedRANClassifier and 32 in the other"),
        ({}, 5, "n_features_in_ is 6 in one"),
        ({"random_state": None}, 6, "random_state is 0 in one"),
        ({"kind": "relu"}, 6, "kind is 'cosine' in one FedRANClassifier and 'relu' in the other"),
        ({"bias": False}, 6, "bias is True in one"),
        ({"class_weight": {0: 2.0}}, 6, "class_weight is None in one"),
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
    clf = model(ridge=1.0).fit(X, y)
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
