"""Our accountant of Gaussian noise beside Google's ``dp-accounting``, which is numerical."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.core.private.dp import (
    SMOOTHING_VARIANCE,
    Budget,
    composed,
    gaussian_delta,
    gaussian_epsilon,
)

google = pytest.importorskip("dp_accounting")
losses = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")

EPSILONS = (0.0, 0.1, 1.0, 3.0, 8.0)


@given(st.floats(0.3, 40), st.floats(0, 10))
@settings(deadline=None)
def test_delta_is_that_of_dp_accounting(sigma, epsilon):
    expected = losses.GaussianPrivacyLoss(sigma).get_delta_for_epsilon(epsilon)
    assert gaussian_delta(1 / sigma, epsilon) == pytest.approx(expected, rel=1e-7, abs=1e-15)


def epsilon_of(accountant, sigmas, delta):
    found = accountant()
    for sigma in sigmas:
        found.compose(google.GaussianDpEvent(sigma))
    return found.get_epsilon(delta)


@pytest.mark.parametrize("epsilon", EPSILONS[1:])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_noise_is_that_of_dp_accounting_and_renyi_gives_a_larger_epsilon(epsilon, delta):
    sigma = 1 / Budget(epsilon, delta).mu
    assert epsilon_of(google.pld.PLDAccountant, [sigma], delta) == pytest.approx(epsilon, rel=1e-3)
    assert epsilon_of(google.rdp.RdpAccountant, [sigma], delta) > epsilon


@pytest.mark.parametrize("sigmas", [[2.0, 2.0], [1.5, 3.0, 9.0], [4.0] * 10])
@pytest.mark.parametrize("delta", [1e-6, 1e-4])
def test_composition_is_that_of_dp_accounting(sigmas, delta):
    expected = epsilon_of(google.pld.PLDAccountant, sigmas, delta)
    assert gaussian_epsilon(composed([1 / s for s in sigmas]), delta) == pytest.approx(
        expected, rel=1e-3
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(
    ("variance", "shift"), [(26, 1), (26, 5), (50, 3), (125, 10), (425, 30), (10025, 100)]
)
def test_discrete_noise_is_no_worse_than_the_gaussian_that_it_is_accounted_as(
    variance, shift, epsilon
):
    delta = losses.DiscreteGaussianPrivacyLoss(variance**0.5, shift).get_delta_for_epsilon(epsilon)
    mu = shift / math.sqrt(variance - SMOOTHING_VARIANCE)
    assert delta <= gaussian_delta(mu, epsilon) + 1e-12
