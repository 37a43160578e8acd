"""Figures: the Pareto front, colours, lines, and the picture of the README."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedran_bench.report.figures import (
    MOST,
    charts,
    method_styles,
    overview_svg,
    pareto_front,
    render,
)
from fedran_bench.report.pages import load_results
from fedran_bench.report.verdict import main_setting
from fedran_bench.results.grouping import comparisons, groups
from helpers.bench.made_up import METHODS, made_up, scratch

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[3]


def messages():
    """Our messages at several sizes, and other methods."""
    summaries = [
        made_up("fedran", f"any name {r}", level=0.7 + r / 5000, upload=4000 * r, params=p)
        for r in (64, 128, 256)
        for p in ({"rank": r},)
    ]
    points = [
        made_up("fedran-points", "FedRAN-points", upload=2_000_000 // n, params=p)
        for n in (5, 10)
        for p in ({"group_size": n, "min_group": 1},)
    ]
    return [*summaries, *points, *(made_up(**m) for m in METHODS if m["key"] != "fedran")]


def drawn(runs):
    return [render(c) for c in charts(*main_setting(groups(runs)), "name")]


def test_the_pareto_front_holds_the_points_that_no_other_beats():
    points = [tuple(p) for p in np.random.default_rng(0).random((50, 2))]
    best = {
        (x, y)
        for x, y in points
        if not any((a <= x and b >= y) and (a, b) != (x, y) for a, b in points)
    }
    assert set(pareto_front(points)) == best


def test_sizes_of_one_message_share_a_style_and_others_are_grey():
    found = groups([*messages(), *(made_up(f"x{i}", f"X {i}") for i in range(30))])
    styles = method_styles(found)
    ours = {style for name, style in styles.items() if name.startswith("any name")}
    assert len(ours) == 1
    assert len({entry for entry, _ in styles.values()}) <= MOST
    assert len(set(styles.values())) == len({style for _, style in styles.values()})


def test_a_figure_names_the_methods_in_its_legend():
    size, tasks = drawn(messages())
    for name in ("FedRAN-points", "AFL", "Joint training", "FedRAN-paper"):
        assert f">{name}<" in size
    assert ">other methods<" in tasks


def test_a_single_method_or_task_needs_no_figure():
    assert charts(*main_setting(groups([made_up(tasks=1)])), "name") == []


def test_networks_far_below_the_others_do_not_stretch_the_axis():
    (size, _) = charts(*main_setting(groups([*messages(), *scratch()])), "name")
    assert "below the axis" in size.caption
    (size, _) = charts(*main_setting(groups(messages()[:5])), "name")
    assert "below the axis" not in size.caption


def test_hostile_names_are_drawn_as_text():
    runs = [made_up("a", "_hidden $x$ <b>"), made_up("b", "\x1b[31m" + "long " * 50)]
    for svg in drawn(runs):
        assert "_hidden $x$ &lt;b&gt;" in svg
        assert "\x1b" not in svg


def test_the_picture_of_the_readme_is_drawn_from_the_results():
    committed = (ROOT / "docs/img/accuracy_bytes.svg").read_text()
    assert len(committed.encode()) < 100_000
    found = comparisons(load_results(ROOT / "results"))
    svg = overview_svg(*main_setting(groups(found)))

    def version(text):
        return re.search(r"Matplotlib v([\d.]+)", text)[1]

    if version(svg) != version(committed):
        pytest.skip("another version of matplotlib draws other bytes")
    assert svg == committed
