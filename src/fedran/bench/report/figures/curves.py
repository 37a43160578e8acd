"""Accuracy after each task, and the differences between methods."""

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
from fedran.bench.report.verdict import main_beta
from fedran.bench.results.grouping import Case, Group, Setting, by_setting, comparisons, groups
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
        names, two = [*styles, GREY], bool(_steady(found, styles))
        width = 10.4 if two else 6.6
        charts.append(
            Chart(
                slug("tasks", setting.dataset, setting.frame),
                f"Accuracy after each task: {Case(setting, beta).title}",
                (width, height + fit_legend(width, names)[1]),
                partial(_draw_tasks, found, styles),
                "The best method of each kind has a colour."
                f"{f' Second: their difference from {next(iter(styles))}.' if two else ''}",
                narrow_height=(2 if two else 1) * height + fit_legend(NARROW, names)[1],
            )
        )
    return unique(charts)


def _one_size(results: Sequence[Result]) -> list[Result]:
    """The comparisons, without the runs that vary the size of the message of a method."""
    found = comparisons(results)
    known = {(Setting.of(r), r.key) for r in found if r.study != "communication"}
    return [r for r in found if r.study != "communication" or (Setting.of(r), r.key) not in known]


def _draw_tasks(found: Sequence[Group], styles: dict[str, Style], figure: Figure) -> None:
    axes = panels(figure, 2 if _steady(found, styles) else 1)
    left, right = axes[0], axes[-1]
    order = {name: i for i, name in enumerate(styles)}
    curves = {g.name: np.mean([r.A for r in g.results], axis=0) for g in found}
    x, grey = range(1, found[0].setting.tasks + 1), GREY
    base = curves[next((name for name in styles if name in curves), found[0].name)]
    for name in sorted(curves, key=lambda name: order.get(name, len(order))):
        label = short(name) if name in styles else grey
        grey = "_nolegend_" if label == grey else grey
        look = styles.get(name, OTHER).line
        left.plot(x, curves[name], **look, label=label)
        if name in styles and right is not left:
            right.plot(x, curves[name] - base, **look)
    left.set_ylabel("accuracy over classes seen, %")
    if right is not left:
        gaps = np.concatenate([curves[name] - base for name in _steady(found, styles)])
        space = 0.15 * max(1.0, float(np.ptp(gaps)))
        right.set_ylim(gaps.min() - space, gaps.max() + space)
        right.set_ylabel("difference, points")
    for ax in axes:
        ax.set_xticks(x[:: max(1, len(x) // 10)])
        ax.set_xlabel("task")
    legend_below(figure, [left])


def _steady(found: Sequence[Group], styles: dict[str, Style]) -> list[str]:
    """The coloured methods without training, whose differences are drawn; none if there is one."""
    names = [g.name for g in found if g.name in styles and not is_trained(g.first)]
    return names if len(names) > 1 else []
