"""One report with everything, for the tests of the page as text and in a browser."""

import pytest

from helpers.bench.made_up import METHODS, heads, made_up, scratch, studies, vit

HOSTILE = "<script>alert(1)</script>\"'><img src=http://x.example/>\x1b[2J\u202e" + "w" * 3000


@pytest.fixture(scope="session")
def full_report():
    """A report of all kinds of methods. Two of its results carry long and hostile texts."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    from fedran_bench.report.pages import make_report

    runs = [made_up(**m, beta=b, seed=s) for m in METHODS for b in (0.1, 1.0) for s in (1, 2)]
    hostile = made_up("odd", HOSTILE, sends=HOSTILE, machine=HOSTILE, config=HOSTILE, seed=1)
    other = made_up("fedran", "FedRAN", dataset=HOSTILE)
    return make_report([*runs, *heads(), *scratch(), *vit(), *studies(), hostile, other], "made up")
