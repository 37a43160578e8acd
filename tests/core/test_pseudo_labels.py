import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.pseudo_labels import expected_noise, margin_labels, noise_bound
from fedran.paper import prototype_labels
from helpers.core.reference import quick

cases = st.tuples(st.integers(1, 30), st.integers(1, 8), st.integers(0, 2**32 - 1))


def rows(n, d, seed):
    rng = np.random.default_rng(seed)
    names = (3, "a", "b")
    kinds = rng.integers(4, size=n)
    Z = rng.standard_normal((n, d)) + kinds[:, None]
    return Z, [None if k == 3 else names[k] for k in kinds]


def slow_prototypes(Z, y, tau):
    """Algorithm "Prototype-Based SSL Pseudo-Labeling", row by row."""
    classes = [c for c in (3, "a", "b") if c in y]
    means = [np.mean([z for z, v in zip(Z, y, strict=True) if v == c], axis=0) for c in classes]
    units = [m / np.linalg.norm(m) for m in means]
    labels, sure = list(y), True
    for i, z in enumerate(Z):
        if y[i] is None and classes:
            cosines = [z @ p / np.linalg.norm(z) for p in units]
            top = sorted([*cosines, tau])
            sure = sure and min(np.diff(top), default=1) > 1e-5
            labels[i] = classes[int(np.argmax(cosines))] if max(cosines) >= tau else None
    return labels, sure


def slow_margins(H, known, y_known, X):
    """Ridge on the known rows by its normal equations; best class and lead for each row of X."""
    classes = [c for c in (3, "a", "b") if c in y_known]
    A = H[known]
    lam = 0.1 * np.mean(np.sum(A**2, axis=1))
    Y = np.array([[float(v == c) for c in classes] for v in y_known])
    scores = X @ np.linalg.solve(A.T @ A + lam * np.eye(A.shape[1]), A.T @ Y)
    if len(classes) == 1:
        return [classes[0]] * len(X), scores[:, 0] - 0.3
    top = np.sort(scores, axis=1)
    return [classes[j] for j in scores.argmax(axis=1)], top[:, -1] - top[:, -2]


@quick
@given(cases, st.floats(-1, 1))
def test_the_prototype_rule_is_the_papers_algorithm(size, tau):
    Z, y = rows(*size)
    expected, sure = slow_prototypes(Z, y, tau)
    for X in (Z, Z.astype(np.float32), torch.as_tensor(Z), torch.as_tensor(Z).float()):
        result = prototype_labels(X, y, tau)
        if sure:
            assert result.labels == expected
        assert_consistent(result, y)


@quick
@given(cases, st.floats(0, 0.5))
def test_the_expected_share_of_wrong_labels_comes_from_labelled_rows_left_out(size, margin):
    """Against solving again without each labelled row, at the same lambda."""
    H, y = rows(*size)
    known = [i for i, v in enumerate(y) if v is not None]
    if not known or len(known) == len(y):
        return
    A, labels = H[known], [y[i] for i in known]
    classes = [c for c in (3, "a", "b") if c in labels]
    Y = np.array([[float(v == c) for c in classes] for v in labels])
    shift = 0.1 * np.mean(np.sum(A**2, axis=1)) * np.eye(A.shape[1])
    wrong, sure = [], True
    for i, h in enumerate(A):
        others = np.arange(len(A)) != i
        scores = h @ np.linalg.solve(A[others].T @ A[others] + shift, A[others].T @ Y[others])
        top = np.sort([*scores, *([] if len(classes) > 1 else [0.3])])
        lead = top[-1] - top[-2] if len(classes) > 1 else scores[0] - 0.3
        sure = sure and abs(lead - margin) > 1e-6
        if lead > margin:
            found = classes[int(np.argmax(scores))]
            wrong.append(found != labels[i] or labels.count(labels[i]) == 1)
    for X in (H, torch.as_tensor(H)):
        result = margin_labels(X, y, margin)
        if sure:
            expected = np.mean(wrong) if wrong else np.nan
            np.testing.assert_allclose(result.expected_wrong, expected)
            assert ("expected to be wrong" in result.reason) == bool(wrong)


def test_a_row_that_is_alone_in_its_class_is_expected_to_be_wrong():
    """The other class has a negative score, but nobody knows the class of the row."""
    H = np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [1.0, 0.2]])
    result = margin_labels(H, ["a", "a", "b", None])
    np.testing.assert_allclose(result.expected_wrong, 1 / 3)


@quick
@given(cases, st.floats(0, 0.5), st.booleans())
def test_the_margin_rule_is_a_ridge_on_the_labelled_rows(size, margin, refit):
    H, y = rows(*size)
    H = np.abs(H)
    known = [i for i, v in enumerate(y) if v is not None]
    free = [i for i, v in enumerate(y) if v is None]
    if not known or not free:
        return
    best, lead = slow_margins(H, known, [y[i] for i in known], H[free])
    sure = np.all(np.abs(lead - margin) > 1e-3)
    if refit and sure:
        taken = {i: b for i, b, m in zip(free, best, lead, strict=True) if m > margin}
        all_known = sorted([*known, *taken])
        labels = [taken.get(i, y[i]) for i in all_known]
        best, lead = slow_margins(H, all_known, labels, H[free])
        sure = np.all(np.abs(lead - margin) > 1e-3)
    for X in (H, H.astype(np.float32), torch.as_tensor(H)):
        result = margin_labels(X, y, margin, refit=refit)
        assert_consistent(result, y)
        if sure:
            np.testing.assert_allclose(result.confidence[free], lead, atol=1e-3)
            accepted = [b if m > margin else None for b, m in zip(best, lead, strict=True)]
            assert [result.labels[i] for i in free] == accepted


def assert_consistent(result, y):
    """Given labels stay; exactly the accepted rows gained one; the numbers add up."""
    for i, given_label in enumerate(y):
        if given_label is not None:
            assert result.labels[i] == given_label
            assert np.isnan(result.confidence[i])
            assert not result.accepted[i]
        else:
            assert (result.labels[i] is not None) == result.accepted[i]
    assert result.n_candidates == y.count(None)
    assert 0 <= result.acceptance <= 1


@pytest.mark.parametrize("rule", [prototype_labels, margin_labels])
class TestBothRules:
    def test_no_label_is_invented_without_labelled_rows(self, rule):
        result = rule(np.eye(3), [None] * 3)
        assert result.labels == [None] * 3
        assert "no labelled row" in result.reason
        assert (result.n_candidates, result.acceptance) == (3, 0.0)

    def test_labelled_rows_alone_stay_unchanged(self, rule):
        result = rule(np.eye(2), ["a", 1])
        assert result.labels == ["a", 1]
        assert "every row has a label" in result.reason
        assert (result.n_candidates, result.acceptance) == (0, 0.0)
        assert rule(np.zeros((0, 2)), []).labels == []

    def test_rows_that_are_not_finite_are_refused_labelled_or_not(self, rule):
        for i in range(3):
            X = np.eye(3)
            X[i, 0] = np.nan
            with pytest.raises(ValueError, match=f"first in row {i}"):
                rule(X, ["a", None, None])

    def test_shapes_and_labels_are_checked(self, rule):
        with pytest.raises(ValueError, match="must be a matrix"):
            rule(np.ones(3), ["a", None, None])
        with pytest.raises(ValueError, match="one label per row"):
            rule(np.eye(3), ["a"])
        with pytest.raises(ValueError, match="integer or a string"):
            rule(np.eye(2), [0.5, None])

    @pytest.mark.parametrize("scale", [1e25, 1e-30])
    def test_the_scale_of_the_features_does_not_matter(self, rule, scale):
        X = np.array([[4.0, 0.0], [0.0, 4.0], [3.0, 0.1], [0.2, 3.0]])
        y = ["a", "b", None, None]
        assert rule(X.astype(np.float32), y).labels == ["a", "b", "a", "b"]
        with np.errstate(all="ignore"):
            assert rule((X * scale).astype(np.float32), y).labels == ["a", "b", "a", "b"]


def test_a_row_without_direction_is_never_accepted():
    result = prototype_labels(np.array([[1.0, 0.0], [0.0, 0.0]]), ["a", None], tau=-1)
    assert result.labels == ["a", None]


def test_with_a_single_class_the_score_must_exceed_a_higher_threshold():
    H = np.array([[1.0, 0.0], [1.0, 0.0], [0.1, 1.0]])
    assert margin_labels(H, ["a", None, None]).labels == ["a", "a", None]


@pytest.mark.parametrize("tau", [1.01, -2, np.nan])
def test_tau_is_a_cosine(tau):
    with pytest.raises(ValueError, match="tau is a cosine"):
        prototype_labels(np.eye(2), [0, None], tau)


@pytest.mark.parametrize("margin", [-0.1, np.nan, np.inf])
def test_a_margin_is_finite_and_not_negative(margin):
    with pytest.raises(ValueError, match="margin must be"):
        margin_labels(np.eye(2), [0, None], margin)


@quick
@given(
    st.integers(1, 30),
    st.integers(1, 12),
    st.integers(2, 5),
    st.floats(0.05, 20),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_wrong_pseudo_labels_change_head_and_scores_by_less_than_the_bounds(n, M, C, lam, q, seed):
    rng = np.random.default_rng(seed)
    H, X = rng.standard_normal((n, M)), rng.standard_normal((7, M))
    pseudo = rng.random(n) < 0.6
    A = np.linalg.inv(H.T @ H + lam * np.eye(M))
    leverages = np.einsum("ij,jk,ik->i", X, A, X)
    true = rng.integers(0, C, n)
    wrong = np.where(pseudo & (rng.random(n) < q), (true + rng.integers(1, C, n)) % C, true)
    E = H.T @ (np.eye(C)[wrong] - np.eye(C)[true])
    k = int(np.sum(wrong != true))
    worst = noise_bound(lam, leverages, float(np.linalg.norm(E)))
    counted = expected_noise(lam, leverages, k, 1.0, C)
    for bound in (worst, counted):
        assert np.linalg.norm(A @ E) <= bound.weights * (1 + 1e-9)
        assert np.all(np.linalg.norm(X @ A @ E, axis=1) <= bound.scores * (1 + 1e-9))


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_independent_errors_shrink_the_scores_and_spread_them_by_less_than_stated(share):
    rng = np.random.default_rng(0)
    n, M, C, lam = 80, 10, 4, 2.0
    H, X, true = rng.standard_normal((n, M)), rng.standard_normal((6, M)), rng.integers(0, C, n)
    pseudo, Y = np.arange(n) < 60, np.eye(C)[true]
    A = np.linalg.inv(H.T @ H + lam * np.eye(M))
    changes = []
    for _ in range(4000):
        hit = pseudo & (rng.random(n) < share)
        found = np.where(hit, (true + rng.integers(1, C, n)) % C, true)
        changes.append(X @ A @ H.T @ (np.eye(C)[found] - Y))
    bound = expected_noise(lam, np.einsum("ij,jk,ik->i", X, A, X), 60, share, C)
    part = X @ A @ H[pseudo].T @ Y[pseudo]
    mean = -bound.shrink * (part - part.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(np.mean(changes, axis=0), mean, atol=0.02)
    rest = np.sqrt(np.mean(np.sum((changes - mean) ** 2, axis=2), axis=0))
    assert np.all(rest <= bound.spread * 1.02)
    assert np.all(rest >= 0.3 * bound.spread)
    assert np.all(np.mean(np.linalg.norm(changes, axis=2), axis=0) <= bound.scores)
