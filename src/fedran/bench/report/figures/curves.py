"""Curves over time: accuracy after each task, and the bytes sent so far."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedran.bench.report.figures.chart import (
    NARROW,
    OTHER,
    Chart,
    Style,
    fit_legend,
    legend_below,
    method_styles,
    panels,
    short,
    slug,
    unique,
)
from fedran.bench.report.tables.table import MIB
from fedran.bench.report.verdict import main_beta
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_setting,
    comparisons,
    groups,
    setting_title,
)
from fedran.bench.results.metrics import is_trained
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY = "other methods"


def task_charts(results: Sequence[Result]) -> list[Chart]:
    """Accuracy after each task at the main beta: one figure per setting with several tasks."""
    charts: list[Chart] = []
    for setting, members in by_setting(groups(_one_size(results))).items():
        if setting.tasks < 2:
            continue
        beta, styles = main_beta(members), method_styles(members)
        found = [g for g in members if g.beta == beta]
        height = 3.2
        names = [*styles, GREY]
        charts.append(
            Chart(
                slug("tasks", setting.dataset, setting.frame),
                f"Accuracy after each task: {setting_title(setting, beta)}",
                (10.4, height + fit_legend(10.4, names)[1]),
                partial(_draw_tasks, found, styles),
                "First: all methods; the best of each kind has a colour. Second: these minus "
                f"{next(iter(styles), found[0].name)}.",
                narrow_height=2 * height + fit_legend(NARROW, names)[1],
            )
        )
    return unique(charts)


def _one_size(results: Sequence[Result]) -> list[Result]:
    """The comparisons, without the runs that vary the size of the message of a method."""
    found = comparisons(results)
    known = {(Setting.of(r), r.key) for r in found if r.study != "communication"}
    return [r for r in found if r.study != "communication" or (Setting.of(r), r.key) not in known]


def _draw_tasks(found: Sequence[Group], styles: dict[str, Style], figure: Figure) -> None:
    left, right = panels(figure, 2)
    order = {name: i for i, name in enumerate(styles)}
    curves = {g.name: np.mean([r.A for r in g.results], axis=0) for g in found}
    x, grey = range(1, found[0].setting.tasks + 1), GREY
    base = curves[next((name for name in styles if name in curves), found[0].name)]
    for name in sorted(curves, key=lambda name: order.get(name, len(order))):
        label = short(name) if name in styles else grey
        grey = "_nolegend_" if label == grey else grey
        look = styles.get(name, OTHER).line
        left.plot(x, curves[name], **look, label=label)
        if name in styles:
            right.plot(x, curves[name] - base, **look)
    steady = [g.name for g in found if g.name in styles and not is_trained(g.first)]
    gaps = np.concatenate([base - base, *(curves[name] - base for name in steady)])
    space = 0.15 * max(1.0, float(np.ptp(gaps)))
    right.set_ylim(gaps.min() - space, gaps.max() + space)
    for ax in (left, right):
        ax.set_xticks(x[:: max(1, len(x) // 10)])
        ax.set_xlabel("task")
    left.set_ylabel("accuracy over classes seen, %")
    right.set_ylabel("difference, points")
    legend_below(figure, [left])


def cumulative_upload(result: Result) -> tuple[list[int], list[float]]:
    """Rounds and bytes of the mean client so far, after each task."""
    rounds = np.cumsum([t.rounds for t in result.tasks])
    sent = np.cumsum([np.mean(t.bytes_up) for t in result.tasks])
    return [int(r) for r in rounds], [float(b) for b in sent]


def mean_cumulative_upload(g: Group) -> tuple[list[int], list[float]]:
    """Rounds and MiB of the mean client so far, after each task, mean over seeds."""
    rounds = cumulative_upload(g.first)[0]
    sent = np.mean([cumulative_upload(r)[1] for r in g.results], axis=0) / MIB
    return rounds, [float(v) for v in sent]
