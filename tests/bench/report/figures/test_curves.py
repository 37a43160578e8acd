"""Accuracy after each task, and bytes over rounds."""

import pytest

from fedran.bench.report.figures.chart import render
from fedran.bench.report.figures.curves import cumulative_upload, round_charts, task_charts
from helpers.made_up import METHODS, made_up
from helpers.made_up_trained import scratch

pytest.importorskip("matplotlib")


def test_uploads_add_up_over_rounds():
    r = made_up(upload=1000, rounds=10, tasks=3, clients=2)
    assert cumulative_upload(r) == ([10, 20, 30], [800.0, 1600.0, 2400.0])


def test_the_printed_line_says_that_it_is_printed():
    runs = [made_up(**m) for m in METHODS[:2]]
    svg, _ = render(round_charts(runs)[0])
    assert "printed by the paper" in svg
    svg, _ = render(round_charts([made_up(dataset="digits")])[0])
    assert "printed" not in svg


def test_the_legend_names_methods_that_are_missing_in_one_panel():
    svg, _ = render(task_charts([made_up("a", beta=0.1), made_up("b", beta=1.0)])[0])
    assert ">a</text>" in svg
    assert ">b</text>" in svg


def test_long_names_are_not_cut_from_the_legend():
    (chart,) = task_charts([*scratch(), *scratch(beta=0.5)])
    assert "FedEWC (from scratch, as published)" in render(chart)[0]
