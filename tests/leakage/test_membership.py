"""Membership attacks: building blocks against slow references."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.leakage.attacks import (
    FLOOR,
    GAP,
    MEAN,
    NEAREST,
    SCATTER,
    Population,
    sample_site,
    score,
)
from fedran.leakage.evidence import Rows, read
from fedran.leakage.membership import (
    Scored,
    auc,
    auc_error,
    halves,
    true_positive_rate,
)
from helpers.leaky_sites import head, points, summary, world

values = st.lists(st.integers(-5, 5), min_size=1, max_size=30).map(lambda v: np.array(v, float))


@settings(max_examples=50, deadline=None)
@given(values, values)
def test_auc_counts_pairs(members, others):
    pairs = members[:, None] - others
    assert auc(members, others) == pytest.approx(np.mean(pairs > 0) + np.mean(pairs == 0) / 2)


@settings(max_examples=50, deadline=None)
@given(values, values, st.sampled_from([0.0, 0.05, 0.2, 0.5]))
def test_true_positive_rate_allows_that_many_false_positives(members, others, rate):
    best = max(
        (np.mean(members > t) for t in others if np.mean(others > t) <= rate),
        default=0.0,
    )
    assert true_positive_rate(members, others, rate) == pytest.approx(best)


def test_the_error_of_an_auc_is_its_spread():
    rng = np.random.default_rng(0)
    found = [auc(rng.standard_normal(40) + 1, rng.standard_normal(60)) for _ in range(400)]
    assert auc_error(np.mean(found), 40, 60) == pytest.approx(np.std(found), rel=0.2)


def test_reference_rows_are_compared_with_the_others_of_their_class():
    rng = np.random.default_rng(0)
    inside, outside = {"a": rng.random(6)}, {"a": rng.random(20)}
    codes, other_codes = np.arange(6) % 2, np.arange(20) % 2
    found = Scored(inside, codes, outside, other_codes).standardised()
    for i in range(20):
        rest = outside["a"][(other_codes == other_codes[i]) & (np.arange(20) != i)]
        expected = (outside["a"][i] - rest.mean()) / rest.std()
        assert found.others["a"][i] == pytest.approx(expected)
    for i in range(6):
        same = outside["a"][other_codes == codes[i]]
        expected = (inside["a"][i] - same.mean()) / same.std()
        assert found.members["a"][i] == pytest.approx(expected)


def scatter_of(moments):
    found = moments.factor @ moments.factor.T
    return found if moments.surplus is None else found - moments.surplus @ moments.surplus.T


@pytest.mark.parametrize("center", ["class", None])
def test_factor_and_surplus_of_a_summary_give_the_scatter(center):
    w = world()
    H = w.phi(w.Z).astype(np.float64)
    moments = read(summary(w, center=center), [0, 1, 2])[0].moments
    own = np.stack([H[w.y == c].mean(axis=0) for c in range(3)])
    np.testing.assert_allclose(moments.means, own, atol=1e-5)
    residual = H - own[w.y]
    np.testing.assert_allclose(scatter_of(moments), residual.T @ residual, atol=2e-3)


def test_points_have_the_class_numbers_that_were_asked_for():
    w = world()
    message, X = points(w, 3), w.prepared(w.Z)
    evidence, imitate = read(message, [2, 0])
    np.testing.assert_allclose(evidence.moments.means[0], X[w.y == 2].mean(axis=0), atol=1e-5)
    weighted = [message.counts[evidence.groups.codes == c].sum() for c in (0, 1, -1)]
    assert weighted == [8, 12, 20]
    residual = message.means - np.stack([X[w.y == c].mean(axis=0) for c in range(3)])[message.codes]
    scatter = residual.T @ (message.counts[:, None] * residual)
    np.testing.assert_allclose(scatter_of(evidence.moments), scatter, atol=1e-4)
    again = imitate(Rows(X[w.y < 2], w.y[w.y < 2]))
    assert again.moments.counts.tolist() == [12, 20]
    assert abs(len(again.groups.codes) - 32 / 3) <= 2


def test_the_head_of_points_is_that_of_a_server_and_scores_the_own_class():
    w = world()
    X = w.prepared(w.other)
    evidence, _ = read(points(w, 2), [2, 0])
    kept = w.other_y != 1
    rows = Rows(X[kept], np.where(w.other_y[kept] == 2, 0, 1))
    served = head(points(w, 2)).scores(X[kept])
    expected = served[np.arange(len(served)), w.other_y[kept]]
    np.testing.assert_allclose(evidence.own_scores(rows), expected, atol=1e-4)


def test_landmarks_are_taken_to_be_of_the_class_of_their_points():
    w = world((30, 20, 25))
    served = head(points(w))
    groups = read(served, [2, 0])[0].groups
    nearest = np.argmax(served.landmarks @ w.prepared(w.Z).T, axis=1)
    assert np.mean(groups.codes == np.array([1, -1, 0])[w.y[nearest]]) > 0.95


def test_the_nearest_means_are_found_in_the_row_s_own_class():
    w = world((30, 20, 25), others=60)
    evidence, imitate = read(points(w, 4), [0, 1, 2])
    X, seed = w.prepared(w.other), np.random.default_rng(1)
    population = Population.of(Rows(X, w.other_y), evidence, imitate, seed)
    X = w.prepared(w.Z[::5])
    (found,) = score(evidence, population, Rows(X, w.y[::5]))
    W = population.whitening.astype(np.float64)
    for i, (x, c) in enumerate(zip(X, w.y[::5], strict=True)):
        own = evidence.groups.X[evidence.groups.codes == c]
        distance = np.sort(np.sum(((x - own) @ W) ** 2, axis=1))
        whole = np.sum(((x - population.means[c]) @ W) ** 2)
        assert found[NEAREST][i] == pytest.approx(-np.log(distance[0] / whole), abs=1e-2)
        assert found[GAP][i] == pytest.approx(np.log(distance[1] / distance[0]), abs=1e-2)


@pytest.mark.parametrize("seed", range(3))
def test_halves_and_imitated_sites_respect_classes(seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4, 101)
    half = halves(codes, rng)
    for c in range(4):
        assert abs(np.sum(half[codes == c] == 0) - np.sum(half[codes == c] == 1)) <= 1
    chosen = sample_site(codes, np.array([3.0, 1.0, 1000.0, 5.0]), rng)
    assert len(set(chosen)) == len(chosen)
    drawn = np.bincount(codes[chosen], minlength=4)
    assert drawn.tolist() == [3, 1, np.sum(codes == 2) // 2, 5]


@pytest.mark.parametrize("center", ["class", None])
def test_scores_of_the_scatter_are_those_of_dense_matrices(center):
    w = world((30, 20, 25), others=60)
    evidence, imitate = read(summary(w, 10, center), [0, 1, 2])
    H, seed = w.phi(w.other), np.random.default_rng(1)
    population = Population.of(Rows(H, w.other_y), evidence, imitate, seed)
    H = w.phi(w.Z[::7])
    (found,) = score(evidence, population, Rows(H, w.y[::7]))
    W = population.whitening.astype(np.float64)
    values, axes = np.linalg.eigh(W.T @ scatter_of(evidence.moments) @ W / 75)
    inverse = axes @ np.diag(1 / (np.maximum(values, 0) + FLOOR)) @ axes.T
    for i, u in enumerate((H - population.means[w.y[::7]]) @ W):
        assert found[SCATTER][i] == pytest.approx(-(u @ inverse @ u) / (u @ u), rel=1e-2)


def test_the_class_mean_is_scored_by_its_likelihood_ratio():
    w = world((5, 9, 4), others=60)
    evidence, imitate = read(summary(w, 2), [0, 1, 2])
    H, seed = w.phi(w.other), np.random.default_rng(1)
    population = Population.of(Rows(H, w.other_y), evidence, imitate, seed)
    H, codes, n = w.phi(w.Z), w.y, np.array([5, 9, 4])[w.y]
    (found,) = score(evidence, population, Rows(H, codes))
    u = (H - population.means[codes]) @ population.whitening
    v = (evidence.moments.means - population.means)[codes] @ population.whitening
    # The mean of n rows is N(0, 1 / n) without the row, N(u / n, (n - 1) / n^2) with it.
    ratio = np.sum(n[:, None] * v**2, axis=1) / 2
    ratio -= (n**2 / (n - 1)) * np.sum((v - u / n[:, None]) ** 2, axis=1) / 2
    constant = np.sum(v**2, axis=1) * (n - n**2 / (n - 1)) / 2
    expected = (ratio - constant) * (n - 1) / n
    np.testing.assert_allclose(found[MEAN], expected, rtol=1e-2, atol=1e-2)
