"""The demo shows what the project claims."""

import numpy as np
import pytest

from fedran.data.catalogue import digits
from fedran_bench import demo


@pytest.fixture(scope="module")
def results():
    reported = []
    found = list(demo.run_demo(reported.append))
    assert len(reported) == demo.demo_steps()
    return {r.label: r for r in found}


def test_demo_shows_what_the_project_claims(results):
    ours, paper = results["FedRAN"], results["FedRAN-paper"]
    exact, mean = results["Exact Gram"], results["FedNCM"]
    assert abs(ours.A_T - exact.A_T) < 1.0
    assert ours.A_avg >= paper.A_avg
    assert ours.max_upload * 10 < paper.max_upload < exact.max_upload
    assert mean.A_T < ours.A_T - 5


def test_accuracy_counts_rows_as_numpy_would(results):
    d, stream = digits(), demo.demo_stream()
    r = results["FedNCM"]
    assert sum(r.test_rows) == len(d.y_test)
    assert np.isclose(r.acc[0][0] * r.test_rows[0], round(r.acc[0][0] * r.test_rows[0]))
    assert len(stream.tasks) == len(r.acc)
