"""Write tests/helpers/fixtures/dp_accounting.json: answers that our accountant must give too.

They are those of Google's dp-accounting. It pins attrs below 24, so it cannot be installed beside
our other tools. Run it elsewhere:

    python -m venv /tmp/v && /tmp/v/bin/pip install dp-accounting==0.6.0
    /tmp/v/bin/python benchmarks/dp_fixtures.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_mechanism import (
    DiscreteGaussianPrivacyLoss,
    GaussianPrivacyLoss,
)
from dp_accounting.rdp import RdpAccountant

SIGMAS = (0.3, 0.6, 1.0, 2.5, 3.73, 8.0, 40.0)
EPSILONS = (0.0, 0.1, 1.0, 3.0, 8.0)


def calibrated(accountant, epsilon, delta):
    """The noise multiplier of one Gaussian release."""
    event = dp_accounting.GaussianDpEvent
    return dp_accounting.calibrate_dp_mechanism(accountant, event, epsilon, delta, tol=1e-7)


def composed(accountant, sigmas, delta):
    """The epsilon of several Gaussian releases."""
    found = accountant()
    for sigma in sigmas:
        found.compose(dp_accounting.GaussianDpEvent(sigma))
    return found.get_epsilon(delta)


table = {
    "made_by": f"dp-accounting {version('dp-accounting')}, benchmarks/dp_fixtures.py",
    "gaussian_delta": [
        [s, e, GaussianPrivacyLoss(s).get_delta_for_epsilon(e)] for s in SIGMAS for e in EPSILONS
    ],
    "discrete_gaussian_delta": [
        [
            variance,
            shift,
            e,
            DiscreteGaussianPrivacyLoss(variance**0.5, shift).get_delta_for_epsilon(e),
        ]
        for variance, shift in ((26, 1), (26, 5), (50, 3), (125, 10), (425, 30), (10025, 100))
        for e in EPSILONS
    ],
    "noise_multiplier": [
        [e, d, calibrated(PLDAccountant, e, d), calibrated(RdpAccountant, e, d)]
        for e in EPSILONS[1:]
        for d in (1e-9, 1e-5)
    ],
    "composition": [
        [sigmas, d, composed(PLDAccountant, sigmas, d)]
        for sigmas in ([2.0, 2.0], [1.5, 3.0, 9.0], [4.0] * 10)
        for d in (1e-6, 1e-4)
    ],
}
folder = Path(__file__).parent.parent / "tests" / "helpers" / "fixtures"
path = folder / "dp_accounting.json"
path.write_text(json.dumps(table, indent=1) + "\n")
