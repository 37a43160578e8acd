"""Membership attacks: building blocks against slow references."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedran
from fedran.leakage.attacks import (
    FLOORS,
    MEAN,
    SCATTER,
    Population,
    sample_site,
    score,
)
from fedran.leakage.evidence import Rows, ShadowHead, read
from fedran.leakage.membership import (
    _standardised,
    auc,
    auc_error,
    halves,
    true_positive_rate,
)
from helpers.leaky_sites import summary, world

RNG = np.random.default_rng(0)
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
    found = _standardised(inside, codes, outside, other_codes)
    for i in range(20):
        rest = outside["a"][(other_codes == other_codes[i]) & (np.arange(20) != i)]
        expected = (outside["a"][i] - rest.mean()) / rest.std()
        assert found.others["a"][i] == pytest.approx(expected)
    for i in range(6):
        same = outside["a"][other_codes == codes[i]]
        expected = (inside["a"][i] - same.mean()) / same.std()
        assert found.members["a"][i] == pytest.approx(expected)


def test_leverage_tells_what_a_head_would_say_with_one_more_row():
    rng = np.random.default_rng(0)
    H, h, lam = rng.random((20, 12)), rng.random(12), 0.7
    y = np.arange(20) % 2
    B = np.stack([H[y == c].sum(axis=0) for c in (0, 1)], axis=1)
    weights = np.linalg.solve(H.T @ H + lam * np.eye(12), B)
    head = ShadowHead(weights.astype(np.float32), H.T.astype(np.float32), lam)
    row = Rows(h[None].astype(np.float32), h[None].astype(np.float32), np.array([1]))
    leverage, s = head.leverage(row)[0], h @ weights[:, 1]
    more = B + np.outer(h, [0, 1])
    again = np.linalg.solve(H.T @ H + np.outer(h, h) + lam * np.eye(12), more)
    assert (s + leverage) / (1 + leverage) == pytest.approx(h @ again[:, 1], rel=1e-4)


@pytest.mark.parametrize("center", ["class", None])
def test_factor_and_surplus_of_a_summary_give_the_scatter(center):
    w = world()
    H = w.phi(w.Z).astype(np.float64)
    evidence, _ = read(summary(w, center=center), [0, 1, 2], w.phi, RNG)
    own = np.stack([H[w.y == c].mean(axis=0) for c in range(3)])
    np.testing.assert_allclose(evidence.means, own, atol=1e-5)
    residual = H - own[w.y]
    found = evidence.factor @ evidence.factor.T - evidence.surplus @ evidence.surplus.T
    np.testing.assert_allclose(found, residual.T @ residual, atol=2e-3)


def test_groups_of_a_mixture_have_the_class_numbers_that_were_asked_for():
    w = world()
    mixture = fedran.condense(w.Z, w.y, w.phi, group_size=3, min_group=1)
    evidence, imitate = read(mixture, [2, 0], w.phi, RNG)
    X = w.phi.prepare(w.Z)
    np.testing.assert_allclose(evidence.means[0], X[w.y == 2].mean(axis=0), atol=1e-5)
    counts = np.concatenate([p.counts for p in mixture.parts])
    weighted = [counts[evidence.groups.codes == c].sum() for c in (0, 1, -1)]
    assert weighted == [8, 12, 20]
    rows = Rows(X[w.y < 2], w.phi(w.Z[w.y < 2]), w.y[w.y < 2])
    assert imitate(rows).counts.tolist() == [12, 20]


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
    evidence, _ = read(summary(w, 10, center), [0, 1, 2], w.phi, RNG)
    H = w.phi(w.other)
    population = Population.of(Rows(H, H, w.other_y), evidence, np.random.default_rng(1))
    H = w.phi(w.Z[::7])
    (found,) = score(evidence, population, Rows(H, H, w.y[::7]))
    scatter = evidence.factor @ evidence.factor.T - evidence.surplus @ evidence.surplus.T
    W = population.whitening.astype(np.float64)
    S = W.T @ scatter @ W / 75
    values, axes = np.linalg.eigh(S)
    for i, u in enumerate((H - population.means[w.y[::7]]) @ W):
        assert found[SCATTER][i] == pytest.approx(u @ S @ u / (u @ u), rel=1e-3)
        for name, floor in FLOORS.items():
            inverse = axes @ np.diag(1 / (np.maximum(values, 0) + floor)) @ axes.T
            assert found[name][i] == pytest.approx(-(u @ inverse @ u) / (u @ u), rel=1e-2)


def test_the_class_mean_is_scored_by_its_likelihood_ratio():
    w = world((5, 9, 4), others=60)
    evidence, _ = read(summary(w, 2), [0, 1, 2], w.phi, RNG)
    H = w.phi(w.other)
    population = Population.of(Rows(H, H, w.other_y), evidence, np.random.default_rng(1))
    H, codes, n = w.phi(w.Z), w.y, np.array([5, 9, 4])[w.y]
    (found,) = score(evidence, population, Rows(H, H, codes))
    u = (H - population.means[codes]) @ population.whitening
    v = (evidence.means - population.means)[codes] @ population.whitening
    # The mean of n rows is N(0, 1 / n) without the row, N(u / n, (n - 1) / n^2) with it.
    ratio = np.sum(n[:, None] * v**2, axis=1) / 2
    ratio -= (n**2 / (n - 1)) * np.sum((v - u / n[:, None]) ** 2, axis=1) / 2
    constant = np.sum(v**2, axis=1) * (n - n**2 / (n - 1)) / 2
    expected = (ratio - constant) * (n - 1) / n
    np.testing.assert_allclose(found[MEAN], expected, rtol=1e-2, atol=1e-2)
