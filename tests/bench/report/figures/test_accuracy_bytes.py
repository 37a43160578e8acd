"""Accuracy against bytes: the Pareto front, names, lines, and labels that cover nothing."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fedran.bench.report.build import load_results
from fedran.bench.report.figures.accuracy_bytes import (
    NARROW_HEIGHT,
    WIDE,
    accuracy_bytes_charts,
    overview_svg,
)
from fedran.bench.report.figures.chart import MUTED, NARROW, render
from fedran.bench.report.figures.dot_names import Box, along, place
from fedran.bench.report.figures.dots import KINDS, find_dots, pareto_front
from fedran.bench.report.verdict import MIXTURE, OURS
from fedran.bench.results.grouping import groups
from helpers.made_up import METHODS, made_up
from helpers.made_up_trained import scratch

ROOT = Path(__file__).parents[4]


def mixture(size, width=16384, **more):
    params = {"group_size": size, "min_group": 1, "out_features": width}
    return made_up("fedran-mixture", "FedRAN-mixture", params=params, **more)


def messages():
    """Our messages at several sizes, FedPFT at two, and other methods."""
    summaries = [
        made_up("fedran", f"any name {r}", level=0.7 + r / 5000, upload=4000 * r, params=p)
        for r, bits in ((64, 5.0), (128, 5.0), (256, 5.0), (256, 3.5))
        for p in ({"rank": r, "bits": bits},)
    ]
    mixtures = [mixture(n, level=0.8 - n / 500, upload=2_000_000 // n) for n in (5, 10, 20)]
    wide = mixture(5, 32768, level=0.82, upload=400_000)
    gaussian = [
        made_up("fedpft", "FedPFT", upload=40_000 * c, params={"components": c}) for c in (1, 10)
    ]
    others = [made_up(**m) for m in METHODS if m["key"] not in ("fedran", "finetune")]
    return [*summaries, *mixtures, wide, *gaussian, *others]


def test_the_pareto_front_holds_the_points_that_no_other_beats():
    points = [tuple(p) for p in np.random.default_rng(0).random((50, 2))]
    best = {
        (x, y)
        for x, y in points
        if not any((a <= x and b >= y) and (a, b) != (x, y) for a, b in points)
    }
    assert set(pareto_front(points)) == best


@pytest.mark.parametrize("seed", range(5))
def test_labels_cover_neither_each_other_nor_a_marker(seed):
    points = [tuple(p) for p in 60 + 90 * np.random.default_rng(seed).random((20, 2))]
    sizes = [(12.0, 9.5)] * len(points)
    frame = Box(0, 0, 220, 200)
    placed = [box for box in place(points, sizes, frame) if box is not None]
    assert len(placed) >= len(points) - 2
    markers = [Box.around(*p, 7, 7) for p in points]
    for i, box in enumerate(placed):
        assert box.inside(frame)
        assert not any(box.meets(other) for other in placed[:i] + markers)


def test_labels_do_not_cover_the_line():
    line = along([(0, 50), (100, 50)])
    (box,) = place([(50, 44)], [(8, 8)], Box(0, 0, 100, 100), line)
    assert not any(box.meets(b) for b in line)


def test_messages_are_named_by_their_size_and_by_what_is_unusual():
    names = [d.name for d in find_dots(groups(messages()))]
    assert len(names) == len(set(names))
    expected = {
        *("r = 64", "r = 128", "any name 256, 5.0 bits", "r = 256, 3.5 bits", "FedRAN-paper"),
        *("groups of 5", "groups of 10", "groups of 20", "FedRAN-mixture, groups of 5, M = 32768"),
        *("FedPFT, 1 component", "FedPFT, 10 components", "AFL"),
    }
    assert expected <= set(names)


def test_a_line_joins_the_messages_that_differ_only_in_size():
    lines = {}
    for d in find_dots(groups(messages())):
        lines.setdefault(d.line, set()).add(d.name)
    del lines[""]
    assert sorted(map(sorted, lines.values())) == [
        ["FedRAN-mixture, groups of 5, M = 32768"],
        ["any name 256, 5.0 bits", "r = 128", "r = 64"],
        ["groups of 10", "groups of 20", "groups of 5"],
        ["r = 256, 3.5 bits"],
    ]


@pytest.mark.parametrize("size", [WIDE, (NARROW, NARROW_HEIGHT)])
def test_drawn_labels_cover_neither_each_other_nor_a_point(size):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=size, layout="constrained")
    (chart,) = accuracy_bytes_charts(messages())
    chart.draw(figure)
    figure.draw_without_rendering()
    (ax,) = figure.axes
    labels = [Text.get_window_extent(t) for t in ax.texts]  # without the line to its point
    assert len(labels) >= 12
    for one, other in combinations(labels, 2):
        assert not one.overlaps(other)
    dots = [(d.size, d.accuracy) for d in find_dots(groups(messages()))]
    for point in ax.transData.transform(dots):
        assert not any(box.contains(*point) for box in labels)


def test_the_legend_states_the_usual_width_of_our_messages():
    pytest.importorskip("matplotlib")
    (chart,) = accuracy_bytes_charts(messages())
    svg, _ = render(chart)
    assert ">FedRAN-mixture, M = 16384<" in svg
    assert ">FedRAN<" in svg, "their width is not recorded here"


def test_networks_far_below_the_others_are_named_at_the_edge_of_the_axis():
    pytest.importorskip("matplotlib")
    poor = scratch(level=0.2)[:5]
    (chart,) = accuracy_bytes_charts([*messages(), *poor])
    svg, _ = render(chart)
    assert re.search(rf"{len(poor)} methods \(from scratch\): \d+ (to \d+ )?%", svg)


def test_only_our_messages_and_the_best_of_each_kind_have_a_colour():
    dots = find_dots(groups([*messages(), *scratch(level=0.2)]))
    coloured = [d for d in dots if KINDS[d.kind].colour != MUTED]
    others = [d.name for d in coloured if d.kind not in (OURS, MIXTURE)]
    assert len(others) == len({d.kind for d in coloured} - {OURS, MIXTURE}) <= 6
    assert len([name for name in others if name in ("AFL", "Fed3R", "FedPFT, 1 component")]) == 1


@pytest.fixture(scope="module")
def committed():
    return (ROOT / "docs/img/accuracy_bytes.svg").read_text()


def test_the_figure_of_the_documentation_is_small_and_names_the_methods(committed):
    assert len(committed.encode()) < 100_000
    for name in (
        *("FedRAN, M = 8192", "FedRAN-mixture", "FedRAN (paper)", "STSA", "AFL", "FedCGS"),
        *("GH-OFL (LDA)", "FedPFT", "FedNCM", "RanPAC", "LoRanPAC", "Send features, 8 bits"),
    ):
        assert name in committed


def test_the_figure_of_the_documentation_is_drawn_from_the_results(committed):
    pytest.importorskip("matplotlib")
    drawn = overview_svg(load_results(ROOT / "results"))

    def version(svg):
        return re.search(r"Matplotlib v([\d.]+)", svg)[1]

    if version(drawn) != version(committed):
        pytest.skip("another version of matplotlib draws other bytes")
    assert drawn == committed
