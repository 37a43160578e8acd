"""Differential privacy: budgets, sensitivity, noise, and an audit with canaries."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from fedran.core.private.discrete_gaussian import discrete_gaussian
from fedran.core.private.dp import (
    Budget,
    Mechanism,
    Shares,
    gaussian_delta,
    gaussian_epsilon,
    levels_for,
)


def seeded(seed):
    return np.random.default_rng(seed).bytes


@given(st.floats(0.01, 20), st.floats(1e-12, 0.1))
@settings(max_examples=50, deadline=None)
def test_epsilon_and_delta_invert_each_other_and_zcdp_states_more(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta * (1 + 1e-9)
    rho = mu * mu / 2  # zero-concentrated differential privacy (Bun and Steinke 2016)
    assert rho + 2 * math.sqrt(rho * math.log(1 / delta)) > epsilon
    if epsilon > 0:
        assert Budget(epsilon, delta).mu == pytest.approx(mu, rel=1e-6)


def slow_sums(rows, labels, classes, levels):
    """Row after row, entry after entry."""
    d = rows.shape[1]
    gram = [[0] * d for _ in range(d)]
    sums = [[0] * d for _ in classes]
    counts = [0] * len(classes)
    for row, label in zip(rows.astype(int).tolist(), labels, strict=True):
        c = classes.index(label)
        counts[c] += levels
        for i in range(d):
            sums[c][i] += row[i]
            for j in range(d):
                gram[i][j] += row[i] * row[j]
    upper = [gram[i][j] for i in range(d) for j in range(i, d)]
    return [*upper, *(x for s in sums for x in s), *counts]


@st.composite
def row_sets(draw):
    n, d = draw(st.integers(0, 6)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rng.standard_normal((n, d)) * draw(st.sampled_from([0.0, 0.2, 1.0, 1e9]))
    center = rng.standard_normal(d) if draw(st.booleans()) else None
    levels = draw(st.integers(math.isqrt(4 * d + 100) + 1, 600))
    mechanism = Mechanism(
        d, Budget(2.0), levels=levels, norm=draw(st.floats(0.1, 3)), center=center
    )
    return mechanism, rows, rng.integers(0, 3, n).tolist()


@given(row_sets())
@settings(max_examples=60, deadline=None)
def test_sums_are_those_of_integer_rows_of_bounded_norm(made):
    mechanism, rows, labels = made
    integers = mechanism.quantised(rows)
    assert np.all(np.sum(integers**2, axis=1) <= mechanism.levels**2)
    assert np.array_equal(integers, np.rint(integers))
    found = mechanism.sums(rows, labels, [0, 1, 2])
    assert found.tolist() == slow_sums(integers, labels, [0, 1, 2], mechanism.levels)


@given(row_sets(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_one_row_moves_the_sums_by_at_most_mu_standard_deviations(made, honest):
    mechanism, rows, labels = made
    mechanism = replace(mechanism, honest=honest)
    if not len(rows):
        return
    full = mechanism.sums(rows, labels, [0, 1, 2])
    less = mechanism.sums(rows[1:], labels[1:], [0, 1, 2])
    moved = np.sum((full - less) ** 2 / (honest * (site_variances(mechanism, 3) - 25)))
    assert moved <= mechanism.budget.mu**2


def site_variances(mechanism, n_classes):
    """The variance of one site's noise for every entry of the vector."""
    d = mechanism.in_features
    off, diagonal, sums, counts = mechanism.site_variances
    upper = [diagonal if i == j else off for i in range(d) for j in range(i, d)]
    return np.array([*upper, *[sums] * (d * n_classes), *[counts] * n_classes], dtype=float)


def test_the_noise_is_not_larger_than_it_must_be():
    mechanism = Mechanism(4, Budget(1.0), levels=2000)
    row = np.array([[0.1, -0.7, 0.5, 0.5]]) / np.linalg.norm([0.1, -0.7, 0.5, 0.5])
    moved = np.sum(mechanism.sums(row, [0], [0]) ** 2 / site_variances(mechanism, 1))
    assert 0.99 * mechanism.budget.mu**2 < moved <= mechanism.budget.mu**2


@pytest.mark.parametrize("k", [2, 5])
def test_k_rows_of_a_person_in_one_release_spend_k_times_its_mu(k):
    """Not the root of k, which is what k releases with one row each spend."""
    mechanism = Mechanism(4, Budget(1.0), levels=2000)
    rows = np.repeat([[0.6, 0.0, 0.8, 0.0]], k, axis=0)
    moved = np.sum(mechanism.sums(rows, [0] * k, [0]) ** 2 / site_variances(mechanism, 1))
    assert math.sqrt(moved) == pytest.approx(k * mechanism.budget.mu, rel=0.01)


def test_every_entry_gets_noise_of_its_own_variance():
    mechanism = Mechanism(3, Budget(3.0), levels=64, honest=2)
    noise = np.array([mechanism.noise(2, seeded(i)) for i in range(300)])
    assert noise.shape == (300, mechanism.size(2))
    ratio = noise.var(axis=0) / site_variances(mechanism, 2)
    assert np.all(np.abs(ratio - 1) < 5 * math.sqrt(2 / 300))
    correlation = np.corrcoef(noise.T) - np.eye(noise.shape[1])
    assert np.abs(correlation).max() < 5 / math.sqrt(300)


TRIALS = 100_000


def outcomes(mechanism, row, seed):
    """The sums of many runs over this row (or none), each with the noise of all honest sites."""
    variances = site_variances(mechanism, 1).astype(int).tolist()
    start = mechanism.sums(row, [0] * len(row), [0])
    return np.stack(
        [
            x
            + sum(
                discrete_gaussian(TRIALS, v, seeded((seed, i, k))) for k in range(mechanism.honest)
            )
            for i, (x, v) in enumerate(zip(start.tolist(), variances, strict=True))
        ],
        axis=1,
    )


def audited_epsilon(mechanism, delta):
    """A lower bound on epsilon at 99.9 % confidence: how well a canary's presence is recognised."""
    canary = np.array([[0.6, 0.8]])
    weights = mechanism.sums(canary, [0], [0]) / site_variances(mechanism, 1)
    absent, present = (
        outcomes(mechanism, row, i) @ weights for i, row in enumerate((canary[:0], canary))
    )
    half = TRIALS // 2
    # The threshold is chosen on one half of the runs and judged on the other.
    threshold = np.quantile(absent[:half], 0.997)
    wrong, right = (absent[half:] > threshold).sum(), (present[half:] > threshold).sum()
    most_wrong = beta.ppf(0.9995, wrong + 1, half - wrong)
    least_right = beta.ppf(0.0005, right, half - right + 1)
    return math.log((least_right - delta) / most_wrong)


@pytest.mark.parametrize("honest", [1, 2])
def test_an_audit_with_a_canary_finds_no_more_than_epsilon(honest):
    mechanism = Mechanism(2, Budget(1.0, 1e-5), levels=64, honest=honest)
    assert 0.2 < audited_epsilon(mechanism, 1e-5) <= 1.0


def test_an_audit_with_a_canary_finds_noise_that_is_too_small():
    """Less than half of the noise for epsilon 1, as when three of five sites keep theirs back."""
    weak = Mechanism(2, Budget(2.6, 1e-5), levels=64)
    assert 2 < weak.budget.mu / Budget(1.0, 1e-5).mu < 2.5
    assert audited_epsilon(weak, 1e-5) > 1.2


def test_a_release_without_noise_is_the_sum_of_the_rows():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = rng.choice(["a", "b"], 40)
    plain = Mechanism(6, Budget(1.0), levels=10**5)
    for mechanism in (plain, replace(plain, center=0.3 * rng.standard_normal(6), norm=2.5)):
        vector = mechanism.sums(rows, labels, ["b", "a", "none"])
        release = mechanism.noisy_sums(vector, ["b", "a", "none"], sites=2)
        assert release.classes == ("a", "b", "none")
        assert np.allclose(release.gram, rows.T @ rows, atol=1e-2)
        assert np.allclose(release.sums[:, 0], rows[labels == "a"].sum(axis=0), atol=1e-2)
        assert release.counts.tolist() == [(labels == "a").sum(), (labels == "b").sum(), 0]
        _, diagonal, sums, counts = mechanism.site_variances
        assert release.gram_variance == pytest.approx(2 * diagonal / mechanism.scale**4)
        assert release.sums_variance == pytest.approx(2 * sums / mechanism.scale**2)
        assert release.counts_variance == pytest.approx(2 * counts / mechanism.levels**2)


def test_centred_rows_need_less_noise():
    first = Mechanism(5, Budget(1.0))
    later = first.centred(np.full(5, 0.2))
    variances = [
        m.noisy_sums(m.sums(np.zeros((0, 5)), [], [0]), [0]).gram_variance for m in (first, later)
    ]
    assert variances[1] == pytest.approx(0.8**4 * variances[0], rel=1e-3)


def test_sums_fit_into_32_bits_at_the_resolution_for_their_rows():
    levels = levels_for(3000, Budget(0.5))
    rows = np.tile([[1.0, 0.0]], (3000, 1))
    vector = Mechanism(2, Budget(0.5), levels=levels).sums(rows, [0] * 3000, [0])
    assert 0.9 * 2**30 < vector.max() <= 2**30


@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_noise_fits_into_32_bits_however_few_rows_there_are(epsilon):
    levels = levels_for(3, Budget(epsilon), excess=2.0)
    _, diagonal, sums, counts = Mechanism(2, Budget(epsilon), 2, levels).site_variances
    assert 2**29 < 8 * math.sqrt(4 * diagonal) < 1.01 * 2**30
    assert 8 * math.sqrt(4 * max(sums, counts)) < 2**30


def test_rows_without_a_label_are_left_out():
    mechanism = Mechanism(2, Budget(1.0))
    full = mechanism.sums(np.eye(2), ["a", None], ["a"])
    assert np.array_equal(full, mechanism.sums(np.eye(2)[:1], ["a"], ["a"]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Budget(0, 0.1),
        lambda: Budget(math.inf, 0.1),
        lambda: Budget(1, 0),
        lambda: Budget(1, 1),
        lambda: Shares(0.5, 0.5, 0.5),
        lambda: Shares(0.5, 0.5, 0.0),
        lambda: Mechanism(2, Budget(1.0), levels=8),
        lambda: Mechanism(2, Budget(1.0), norm=0.0),
        lambda: Mechanism(2, Budget(1.0), honest=0),
        lambda: Mechanism(2, Budget(1.0), center=np.zeros(3)),
    ],
)
def test_wrong_settings_are_an_error(make):
    with pytest.raises(ValueError, match="must"):
        make()


def test_wrong_data_are_an_error():
    mechanism = Mechanism(2, Budget(1.0))
    with pytest.raises(ValueError, match="among the 1 classes, got 'b'"):
        mechanism.sums(np.eye(2), ["a", "b"], ["a"])
    with pytest.raises(ValueError, match="NaN"):
        mechanism.sums(np.array([[np.nan, 0.0]]), ["a"], ["a"])
    with pytest.raises(ValueError, match="expected 6 integers"):
        mechanism.noisy_sums(np.zeros(5, dtype=np.int64), ["a"])
    with pytest.raises(ValueError, match="exceed 2\\*\\*53"):
        replace(mechanism, levels=10**8).sums(np.eye(2), ["a", "a"], ["a"])
    with pytest.raises(ValueError, match="honest must be 1, got 3"):
        replace(mechanism, honest=3).privatise(np.eye(2), ["a", "a"], ["a"])
