"""Figures of a result are the formulas of the paper."""

import json
from dataclasses import replace

import pytest

from fedran_bench.results import grouping as metrics
from fedran_bench.results.result import Result, Seconds, TaskRecord
from helpers.bench.made_up import made_up


def test_metrics_are_the_papers_formulas():
    r = made_up(
        tasks=2,
        acc=[[1.0], [0.5, 1.0]],
        test_rows=[30, 10],
    )
    assert pytest.approx([100.0, 100 * (0.5 * 30 + 10) / 40]) == r.A
    assert pytest.approx((100 + 62.5) / 2) == r.A_avg
    assert pytest.approx(62.5) == r.A_T
    assert Result.from_json(r.to_json()) == r
    assert json.loads(r.to_json())["run_id"] == r.run_id
    assert metrics.forgetting(r) == 50.0


def test_bytes_and_seconds_are_the_papers_formulas():
    records = [
        TaskRecord([5, 9], [0, 0], Seconds([1.0, 3.0], 4.0), formula_bytes=70),
        TaskRecord([7, 2], [3, 4], Seconds([2.0, 2.0], 6.0), formula_bytes=90),
    ]
    r = replace(made_up(tasks=2), tasks=records, bytes_down_final=8)
    assert r.max_upload == 9
    assert metrics.max_download(r) == 8
    assert metrics.formula_upload(r) == 90
    assert metrics.client_seconds(r) == pytest.approx(2.0)
    assert metrics.server_seconds(r) == pytest.approx(5.0)
    assert metrics.task_seconds(r) == pytest.approx(7.0)
