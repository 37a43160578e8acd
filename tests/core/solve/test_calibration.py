"""Temperatures and thresholds against slow references, and that calibrations add."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

import fedran
from fedran.core.solve.calibration import EDGES, SCORE_RANGE, Calibration, leave_one_out
from fedran.core.solve.ridge import Ridge
from fedran.core.sums.exact_sum import ExactSum
from helpers.core.reference import quick

sizes = st.tuples(st.integers(1, 60), st.integers(1, 6), st.integers(0, 2**32 - 1))


def scored(n, C, seed, noise=0.3):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, C, n)
    return np.eye(C)[codes] + noise * rng.standard_normal((n, C)), codes


@quick
@given(sizes, st.integers(0, 60))
def test_calibrations_add(size, cut):
    scores, codes = scored(*size)
    whole = Calibration.of_scores(scores, codes)
    parts = [Calibration.of_scores(scores[s], codes[s]) for s in (slice(cut), slice(cut, None))]
    total = parts[0] + parts[1] + Calibration.empty()
    np.testing.assert_allclose(total.losses, whole.losses, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(total.histogram, whole.histogram)
    assert (total.total, total.compared) == (size[0], size[0] * size[1])
    assert total.validate(size[0]) is total


@quick
@given(sizes, st.integers(0, 99))
def test_a_weighted_row_counts_as_so_many_rows(size, seed):
    scores, codes = scored(*size)
    times = np.random.default_rng(seed).integers(0, 4, len(codes))
    weighted = Calibration.of_scores(scores, codes, times)
    repeated = Calibration.of_scores(scores.repeat(times, axis=0), codes.repeat(times))
    np.testing.assert_allclose(weighted.losses, repeated.losses, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(weighted.histogram, repeated.histogram)
    assert weighted.compared == repeated.compared


@quick
@given(st.integers(20, 200), st.integers(2, 6), st.floats(0.1, 0.8), st.integers(0, 2**32 - 1))
def test_the_temperature_has_the_least_log_loss(n, C, noise, seed):
    scores, codes = scored(n, C, seed, noise)

    def loss(log_t, coin=True):
        T = math.exp(log_t)
        S = np.clip(scores, *SCORE_RANGE) / T
        tosses = math.log1p(math.exp(1 / T)) - 0.5 / T if coin else 0.0
        return tosses - log_softmax(S, axis=1)[np.arange(n), codes].sum()

    best = minimize_scalar(loss, bounds=(math.log(0.005), math.log(5.0)), method="bounded")
    found = Calibration.of_scores(scores, codes).temperature
    assert loss(math.log(found)) <= best.fun * (1 + 2e-3) + 1e-6


def test_few_rows_without_an_error_do_not_give_certainty():
    """As in Laplace's rule, n rows without an error leave a probability of about 1 / n."""
    for n in (1, 10, 100):
        scores = np.tile([1.0, 0.0], (n, 1))
        T = Calibration.of_scores(scores, np.zeros(n, dtype=int)).temperature
        assert 0.2 / n < softmax(np.array([1.0, 0.0]) / T)[1] < 1.5 / (n + 1)
    assert Calibration.empty().temperature == pytest.approx(5.0, rel=0.3)


@quick
@given(sizes, st.floats(0.01, 0.99))
def test_the_threshold_is_the_sorted_gap_to_a_bin(size, alpha):
    scores, codes = scored(*size)
    found = Calibration.of_scores(scores, codes).threshold(alpha, scores.shape[1])
    k = math.ceil((1 - alpha) * (len(codes) + 1) - 1e-9)
    if k > len(codes):
        assert found == math.inf
        return
    S = np.clip(scores, *SCORE_RANGE)
    exact = np.sort(S.max(axis=1) - S[np.arange(len(codes)), codes])[k - 1]
    assert exact - 1e-9 <= found <= exact + (EDGES[1] - EDGES[0]) + 1e-9
    assert (found == 0) == (exact == 0)


def test_new_rows_keep_within_the_threshold_as_often_as_promised():
    """Exchangeable rows: the mean coverage over draws is at least 1 - alpha, and close to it."""
    alpha, covered = 0.1, []
    for seed in range(200):
        scores, codes = scored(80, 3, seed, noise=0.6)
        gaps = scores.max(axis=1) - scores[np.arange(80), codes]
        q = Calibration.of_scores(scores[:40], codes[:40]).threshold(alpha, 3)
        covered.append(np.mean(gaps[40:] <= q))
    assert 1 - alpha - 0.01 <= np.mean(covered) <= 1 - alpha + 0.04


def test_classes_that_rows_were_not_compared_with_are_taken_from_alpha():
    """Two sites with 3 and 4 of 5 classes, and as many rows: 30 % were not compared."""
    parts = [Calibration.of_scores(*scored(100, C, C, noise=0.6)) for C in (3, 4)]
    both = parts[0] + parts[1]
    assert both.missing(5) == pytest.approx(0.3)
    assert parts[0].missing(3) == Calibration.empty().missing(7) == 0
    whole = Calibration(both.losses, both.histogram, both.total * 5)
    for alpha in (0.4, 0.7):
        assert both.threshold(alpha, 5) == whole.threshold(alpha - 0.3, 5)
    with pytest.raises(ValueError, match=r"70% of the 5 classes.*call calibrate\(\) first"):
        both.threshold(0.3, 5)


@quick
@given(st.integers(2, 25), st.integers(1, 8), st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_leave_one_out_equals_solving_without_the_row(n, M, C, half, seed):
    """Of a row of weight w at most one is left out, as one of w copies would be."""
    rng = np.random.default_rng(seed)
    H, codes, lam = rng.standard_normal((n, M)), rng.integers(0, C, n), 0.7
    Y = np.eye(C)[codes]
    total = ExactSum(M, "float64", stack=False)
    total.add_rows([(slice(0, n), H)], tuple(range(C)), codes)
    _, leverages = total.solve_with_leverages(H, Ridge.absolute(lam))
    W = np.linalg.solve(H.T @ H + lam * np.eye(M), H.T @ Y)
    share = 0.5 if half else 1.0
    found = leave_one_out(H @ W, codes, share * leverages)
    for i in range(n):
        w = np.ones(n)
        w[i] -= share
        G = (H * w[:, None]).T @ H + lam * np.eye(M)
        expected = H[i] @ np.linalg.solve(G, (H * w[:, None]).T @ Y)
        np.testing.assert_allclose(found[i], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, float("nan")])
def test_alpha_lies_between_0_and_1(alpha):
    with pytest.raises(ValueError, match="alpha must lie between 0 and 1"):
        Calibration.empty().threshold(alpha, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: replace(c, histogram=c.histogram * 2), "at most the rows described"),
        (lambda c: replace(c, losses=c.losses * np.nan), "finite values"),
        (lambda c: replace(c, histogram=-c.histogram), "at least 0"),
        (lambda c: replace(c, losses=c.losses + 1e5), "losses of scores"),
        (lambda c: replace(c, losses=c.losses[1:]), "losses and"),
        (lambda c: replace(c, compared=-1.0), "at least 0"),
        (lambda c: replace(c, compared=c.total * 1.1e7), "classes compared per row"),
    ],
)
def test_sums_that_no_rows_have_are_refused(change, words):
    good = Calibration.of_scores(*scored(20, 3, 0))
    assert good.validate(20) is good
    with pytest.raises(fedran.Refused, match=words):
        change(good).validate(20)
