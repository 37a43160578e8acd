"""Integer noise: its distribution is exact, whatever decides a comparison."""

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from fedran.core.private import discrete_gaussian as module
from fedran.core.private.discrete_gaussian import discrete_gaussian


def seeded(seed):
    return np.random.default_rng(seed).bytes


def probabilities(variance, values):
    """exp(-k^2 / (2 variance)) over the sum of all of them, term by term."""
    reach = range(-40 * math.isqrt(variance) - 40, 40 * math.isqrt(variance) + 41)
    total = math.fsum(math.exp(-k * k / (2 * variance)) for k in reach)
    return np.array([math.exp(-k * k / (2 * variance)) / total for k in values])


def fits(draws, variance):
    """The p-value of the draws; values that are rare are counted together."""
    reach = 2 * math.isqrt(variance) + 1
    inside = np.arange(-reach, reach + 1)
    p = probabilities(variance, inside)
    counts = np.array([(draws == k).sum() for k in inside])
    observed = np.append(counts, len(draws) - counts.sum())
    return chisquare(observed, len(draws) * np.append(p, 1 - p.sum())).pvalue


@pytest.mark.parametrize("variance", [1, 2, 7, 26, 400])
def test_draws_follow_the_discrete_gaussian(variance):
    assert fits(discrete_gaussian(60_000, variance, seeded(variance)), variance) > 1e-4


def test_a_wrong_variance_would_be_noticed():
    assert fits(discrete_gaussian(60_000, 26, seeded(0)), 29) < 1e-6


def test_comparisons_that_float64_cannot_decide_give_the_same_distribution(monkeypatch):
    monkeypatch.setattr(module, "UNDECIDED", 2.0)  # none is left to float64
    assert fits(discrete_gaussian(1500, 3, seeded(1)), 3) > 1e-4


@pytest.mark.parametrize(("numerator", "divisor"), [(1, 1), (7, 3), (1, 10**15), (60, 1)])
def test_the_bits_that_follow_decide_where_the_first_64_cannot(numerator, divisor):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        p = mpmath.exp(-mpmath.mpf(numerator) / divisor)
        word = int(mpmath.floor(p * 2**64))
    accepted = module._accepted_exactly
    assert accepted(numerator, divisor, word, lambda n: b"\x00" * n)
    assert not accepted(numerator, divisor, word, lambda n: b"\xff" * n)


@pytest.mark.parametrize("variance", [2**20, 2**36 + 7, 2**56])
def test_wide_noise_has_the_moments_of_a_gaussian(variance):
    draws = discrete_gaussian((200, 500), variance, seeded(3)) / math.sqrt(variance)
    assert draws.shape == (200, 500)
    assert abs(draws.mean()) < 4 / math.sqrt(draws.size)
    assert abs(draws.var() - 1) < 4 * math.sqrt(2 / draws.size)
    assert abs((draws**4).mean() - 3) < 4 * math.sqrt(96 / draws.size)


def test_the_default_source_is_the_operating_system():
    assert not np.array_equal(discrete_gaussian(50, 10**6), discrete_gaussian(50, 10**6))


def test_no_draws_are_no_bytes():
    assert discrete_gaussian(0, 5).shape == (0,)


@pytest.mark.parametrize("variance", [0, -1, 2**56 + 1, True])
def test_other_variances_are_an_error(variance):
    with pytest.raises(ValueError, match="variance must be an integer"):
        discrete_gaussian(3, variance)
