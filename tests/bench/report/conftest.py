"""One report with every study, for the tests of the page as text and in a browser."""

import pytest

from helpers.made_up import METHODS, made_up, studies
from helpers.made_up_trained import all_trained
from helpers.made_up_vit import vit
from helpers.report_tables import LONG


@pytest.fixture(scope="session")
def full_report():
    """A report of all studies. Two of its results carry long and hostile texts."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    from fedran.bench.report.build import make_report

    runs = [made_up(**m, beta=b, seed=s) for m in METHODS for b in (0.1, 1.0) for s in (1, 2)]
    hostile = made_up("odd", LONG, sends=LONG, machine=LONG, config=LONG, seed=1)
    other = made_up("fedran", "FedRAN", dataset=LONG)
    trained = all_trained(seeds=(1,), betas=(0.1,))
    return make_report([*runs, *studies(seeds=(1,)), *trained, *vit(), hostile, other], "made up")
