"""Figures of a result are the formulas of the paper."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fedran
from fedran.bench.results import metrics
from fedran.bench.results.result import Result, Seconds, TaskRecord
from fedran.data.catalogue import digits
from helpers.made_up import made_up


def test_metrics_are_the_papers_formulas():
    r = made_up(
        tasks=2,
        acc=[[1.0], [0.5, 1.0]],
        test_rows=[30, 10],
        class_right=[[15, 15], [10, 5, 5, 5]],
        class_rows=[15, 15, 5, 5],
    )
    assert pytest.approx([100.0, 100 * (0.5 * 30 + 10) / 40]) == r.A
    assert pytest.approx((100 + 62.5) / 2) == r.A_avg
    assert pytest.approx(62.5) == r.A_T
    assert Result.from_json(r.to_json()) == r
    assert json.loads(r.to_json())["run_id"] == r.run_id
    assert metrics.forgetting(r) == [50.0]
    assert metrics.backward_transfer(r) == [-50.0]
    assert metrics.class_forgetting(r) == [
        pytest.approx(100 / 3),
        pytest.approx(200 / 3),
        None,
        None,
    ]
    assert metrics.class_backward_transfer(r)[1] == pytest.approx(-200 / 3)


def test_bytes_and_seconds_are_the_papers_formulas():
    records = [
        TaskRecord([5, 9], [0, 0], Seconds([1.0, 3.0], 4.0), formula_bytes=70, peak_rss=10),
        TaskRecord([7, 2], [3, 4], Seconds([2.0, 2.0], 6.0), formula_bytes=90, peak_rss=20),
    ]
    r = replace(made_up(tasks=2), tasks=records)
    r = replace(r, bytes_down_final=8, budgets={"bytes": 8.0, "seconds": 7.0, "drift": 0.0})
    assert r.max_upload == 9
    assert metrics.total_upload(r) == 23
    assert metrics.max_download(r) == 8
    assert metrics.total_download(r) == 7 + 2 * 8
    assert metrics.formula_upload(r) == 90
    assert metrics.client_seconds(r) == pytest.approx(2.0)
    assert metrics.server_seconds(r) == pytest.approx(5.0)
    assert metrics.task_seconds(r) == pytest.approx(7.0)
    assert metrics.peak_memory(r) == 20
    assert metrics.extraction_seconds(r) is None
    assert metrics.budgets_met(r) == {"bytes": False, "seconds": True, "drift": True}


@pytest.mark.parametrize("line", ["{}", '{"run_id": 1, "schema": 99}', "[]", "nonsense"])
def test_lines_that_are_no_results_are_refused(line):
    with pytest.raises(ValueError):
        Result.from_json(line)


def test_the_certificate_is_vacuous_at_default_settings_and_tight_without_loss():
    """What the documentation says of the bound: a diagnosis, not a promise."""
    d = digits()
    phi = fedran.RandomFeatures(64, 512)
    H, H_test = (phi(X).astype(np.float64) for X in (d.X_train, d.X_test))
    shares = {}
    for rank, precision in ((16, "mixed"), (None, "float64")):
        agg = fedran.Aggregator(512, dtype="float64")
        upload = fedran.encode(fedran.summarize(H, d.y_train, rank), precision)
        agg.absorb(fedran.decode(upload), client="a", task="t")
        shares[rank] = agg.solve().certify(H_test).mean()
    assert shares[16] == 0
    assert shares[None] > 0.9
