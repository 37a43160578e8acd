"""The demo: what it shows, and that it shows the same every time."""

import numpy as np
import pytest

from fedran.bench import demo
from fedran.data.catalogue import digits


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


def test_demo_is_the_same_every_time(results):
    again = {r.label: r for r in demo.run_demo()}
    for name, r in results.items():
        assert again[name].acc == r.acc
        assert again[name].run_id == r.run_id
        assert [t.bytes_up for t in again[name].tasks] == [t.bytes_up for t in r.tasks]


def test_accuracy_counts_rows_as_numpy_would(results):
    d, stream = digits(), demo.demo_stream()
    r = results["FedNCM"]
    assert sum(r.test_rows) == len(d.y_test)
    assert np.isclose(r.acc[0][0] * r.test_rows[0], round(r.acc[0][0] * r.test_rows[0]))
    assert len(stream.tasks) == len(r.acc)
