"""Accuracy after each task, and the differences between methods."""

import re

import numpy as np
import pytest

from fedran.bench.report.figures.chart import MUTED, render
from fedran.bench.report.figures.curves import task_charts
from fedran.bench.report.verdict import HIGHLIGHTED
from helpers.made_up import METHODS, made_up
from helpers.made_up_trained import heads, scratch

pytest.importorskip("matplotlib")


def drawn(runs):
    from matplotlib.figure import Figure

    (chart,) = task_charts(runs)
    figure = Figure(figsize=chart.size, layout="constrained")
    chart.draw(figure)
    return figure.axes


def test_at_most_eight_methods_have_a_colour_and_the_rest_is_grey():
    runs = [made_up(**m) for m in METHODS] + [made_up(f"k{i}", level=0.5) for i in range(9)]
    left, right = drawn([*runs, *scratch(), *heads()])
    coloured = [line for line in left.lines if line.get_color() != MUTED]
    assert len(coloured) <= HIGHLIGHTED
    assert {"FedRAN", "FedRAN-paper", "AFL"} <= {line.get_label() for line in coloured}
    assert len(left.lines) > 20
    assert len(right.lines) == len(coloured)
    assert [t.get_text() for t in left.figure.legends[0].texts].count("other methods") == 1


def test_the_second_panel_shows_the_difference_to_our_method():
    runs = [made_up("fedran", "FedRAN", level=0.8), made_up("afl", "AFL", level=0.7)]
    _, right = drawn(runs)
    ours, other = (line.get_ydata() for line in right.lines)
    assert np.allclose(ours, 0)
    assert np.allclose(other, np.subtract(runs[1].A, runs[0].A))


def test_the_figure_is_drawn_at_the_beta_with_the_most_methods():
    runs = [made_up("a", beta=0.1), made_up("a", beta=1.0), made_up("afl", beta=1.0)]
    (chart,) = task_charts(runs)
    assert "β = 1" in chart.caption
    assert {"a", "afl"} & set(re.findall(r">([^<>]+)</text>", render(chart)[0]))


def test_long_names_are_not_cut_from_the_legend():
    (chart,) = task_charts(scratch(level=0.3)[2:3] + scratch(beta=0.5)[2:3])
    assert scratch()[2].label in render(chart)[0]
