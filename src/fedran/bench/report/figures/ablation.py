"""Figures of the ablations: label rate, rank and width, components of the feature map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedran.bench.report.ablations import (
    ComponentStudy,
    LabelStudy,
    RankStudy,
    component_studies,
    label_studies,
    rank_studies,
)
from fedran.bench.report.figures.chart import (
    ACCENT,
    COLOURS,
    INK,
    MARKERS,
    Chart,
    is_narrow,
    legend_below,
    log_ticks,
    panels,
    short,
    slug,
    unique,
)
from fedran.bench.report.paper import COMPONENTS
from fedran.bench.report.tables.communication import largest_upload
from fedran.bench.report.tables.table import MIB
from fedran.bench.results.grouping import Stat
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HUES = (ACCENT, *COLOURS)
AVERAGE, FINAL = "average accuracy, %", "final accuracy, %"


def label_charts(results: Sequence[Result]) -> list[Chart]:
    """A_avg and A_T against the label rate."""
    studies = label_studies(results)
    return unique(_two_panels("labels", s.title, partial(_draw_labels, s)) for s in studies)


def _two_panels(kind: str, title: str, draw: Callable[[Figure], None]) -> Chart:
    return Chart(slug(kind, title), title, (7.2, 3.0), draw, narrow_height=5.4)


def _draw_labels(study: LabelStudy, figure: Figure) -> None:
    axes = panels(figure, 2)
    for i, (name, line) in enumerate(study.lines.items()):
        rates, found = [100 * rate for rate in line], line.values()
        error_line(axes[0], rates, [g.A_avg for g in found], i, name)
        error_line(axes[1], rates, [g.A_T for g in found], i, name)
    for ax, title in zip(axes, (AVERAGE, FINAL), strict=True):
        ax.set_xlabel("labelled rows, %")
        ax.set_ylabel(title)
    legend_below(figure, [axes[0]])


def error_line(ax: Axes, x: list[float], stats: list[Stat], i: int, name: str) -> None:
    """A line of means with their standard deviations, in the i-th colour."""
    ax.errorbar(
        x,
        [s.mean for s in stats],
        [s.spread or 0.0 for s in stats],
        fmt=MARKERS[i % len(MARKERS)] + "-",
        color=HUES[i % len(HUES)],
        elinewidth=0.8,
        capsize=2,
        label=short(name),
    )


def rank_charts(results: Sequence[Result]) -> list[Chart]:
    """A_avg and bytes over the rank, one line per width."""
    studies = rank_studies(results)
    return unique(_two_panels("rank", s.title, partial(_draw_rank, s)) for s in studies)


def _draw_rank(study: RankStudy, figure: Figure) -> None:
    left, right = panels(figure, 2)
    for i, (m, line) in enumerate(study.lines.items()):
        ranks = [float(rank) for rank in line]
        error_line(left, ranks, [g.A_avg for g in line.values()], i, f"M = {m}")
        sizes = [largest_upload(g) / MIB for g in line.values()]
        right.plot(ranks, sizes, MARKERS[i % len(MARKERS)] + "-", color=HUES[i % len(HUES)])
    every = sorted({rank for line in study.lines.values() for rank in line})
    for ax, title in ((left, AVERAGE), (right, "largest upload, MiB")):
        ax.set_xscale("log", base=2)
        ax.set_xticks(every, [str(rank) for rank in every])
        ax.set_xticks([], minor=True)
        ax.set_xlabel("rank r")
        ax.set_ylabel(title)
    right.set_yscale("log")
    log_ticks(right.yaxis, right.dataLim.intervaly)
    legend_below(figure, [left])


def component_charts(results: Sequence[Result]) -> list[Chart]:
    """A_avg as components are added, one bar per ridge parameter."""
    return unique(
        Chart(
            slug("components", study.title),
            study.title,
            (max(5.5, 1.75 * len(study.bars) + 0.8), 3.2),
            partial(_draw_components, study),
            study.backbones + (" The axis does not start at zero." * (_floor(study) > 0)),
            narrow_height=1.2 + 0.2 * sum(len(row) + 1 for row in study.bars.values()),
        )
        for study in component_studies(results)
    )


def _floor(study: ComponentStudy) -> float:
    """The lower end of the vertical axis, below all bars and printed figures."""
    bars = [g.A_avg.mean for row in study.bars.values() for g in row.values()]
    printed = [COMPONENTS[name] for name, _ in study.bars if name in COMPONENTS]
    return max(0.0, 5.0 * math.floor(min([100.0, *bars, *printed]) / 5.0) - 5.0)


def _draw_components(study: ComponentStudy, figure: Figure) -> None:
    """Bars, which lie in a narrow figure."""
    ax, lying = figure.subplots(), is_narrow(figure)
    steps, lams = list(study.bars), study.lams
    width = 0.8 / len(lams)
    for i, lam in enumerate(lams):
        at = [(k, row[lam]) for k, row in enumerate(study.bars.values()) if lam in row]
        x = np.array([k - 0.4 + width * (i + 0.5) for k, _ in at])
        mean = [g.A_avg.mean for _, g in at]
        draw = ax.barh if lying else ax.bar
        bars = draw(x, mean, width * 0.92, color=HUES[i % len(HUES)], alpha=0.85, label=lam)
        ax.bar_label(bars, [f"{v:.1f}" for v in mean], fontsize=7, padding=1)
    printed = [(k, COMPONENTS[name]) for k, (name, _) in enumerate(steps) if name in COMPONENTS]
    for k, value in printed:
        label = "printed (ViT-B/16)" if k == printed[0][0] else "_nolegend_"
        ends = [[k - 0.42, k + 0.42], [value, value]]
        ax.plot(*(reversed(ends) if lying else ends), ":", color=INK, lw=1.2, label=label)
    names = [text.replace(", ", "\n", 1) for _, text in steps]
    if lying:
        ax.set_xlim(_floor(study), None)
        ax.set_yticks(range(len(steps)), names)
        ax.invert_yaxis()
        ax.set_xlabel(AVERAGE)
    else:
        ax.set_ylim(_floor(study), None)
        ax.set_xticks(range(len(steps)), names)
        ax.set_ylabel(AVERAGE)
    ax.grid(visible=False, axis="y" if lying else "x")
    legend_below(figure, [ax])
