"""Curves over time: accuracy after each task, and bytes sent after each round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedran.bench.report.figures.chart import (
    INK,
    Chart,
    Style,
    fit_legend,
    legend_below,
    log_ticks,
    method_styles,
    short,
    slug,
    unique,
)
from fedran.bench.report.paper import ROUNDS, printed_for
from fedran.bench.report.tables.table import MIB
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_setting,
    by_setting_and_beta,
    comparisons,
    groups,
    setting_title,
)
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS_PER_ROW = 3
PANEL = (3.1, 2.8)
"""Inches of one panel."""
FEW_ROUNDS = 20
"""Up to this many rounds the axis is linear."""


def task_charts(results: Sequence[Result]) -> list[Chart]:
    """Accuracy after each task: one figure per setting with several tasks, one panel per beta."""
    styles = method_styles(results)
    charts: list[Chart] = []
    for setting, members in by_setting(groups(_one_size(results))).items():
        if setting.tasks < 2:
            continue
        panels = [(beta, found) for (_, beta), found in by_setting_and_beta(members).items()]
        across, down = min(len(panels), PANELS_PER_ROW), -(-len(panels) // PANELS_PER_ROW)
        width = max(5.8, PANEL[0] * across)
        columns, height = fit_legend(width, {g.name for g in members}, max(2, across * 3 // 2))
        charts.append(
            Chart(
                slug("tasks", setting.dataset, setting.frame),
                f"Accuracy after each task: {setting.title}",
                (width, PANEL[1] * down + height),
                partial(_draw_tasks, panels, styles, columns),
                collapsed=bool(charts),
            )
        )
    return unique(charts)


def _one_size(results: Sequence[Result]) -> list[Result]:
    """The comparisons, without the runs that vary the size of the message of a method."""
    found = comparisons(results)
    known = {(Setting.of(r), r.key) for r in found if r.study != "communication"}
    return [r for r in found if r.study != "communication" or (Setting.of(r), r.key) not in known]


def _draw_tasks(
    panels: Sequence[tuple[float | None, list[Group]]],
    styles: dict[str, Style],
    columns: int,
    figure: Figure,
) -> None:
    across = min(len(panels), PANELS_PER_ROW)
    down = -(-len(panels) // PANELS_PER_ROW)
    axes = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    named: set[str] = set()
    for ax, (beta, found) in zip(axes, panels, strict=False):
        for g in found:
            mean = np.mean([r.A for r in g.results], axis=0)
            # The legend names a method once, in whichever panel it appears first.
            label = "_nolegend_" if g.name in named else short(g.name)
            named.add(g.name)
            ax.plot(
                range(1, len(mean) + 1),
                mean,
                **styles[g.name].line,
                label=label,
                zorder=3 if g.key == "fedran" else 2,
            )
        tasks = found[0].setting.tasks
        ax.set_xticks(range(1, tasks + 1, max(1, tasks // 10)))
        ax.set_title("" if beta is None else f"β = {beta:g}")
        ax.set_xlabel("task t")
    for ax in axes[len(panels) :]:
        ax.remove()
    axes[0].set_ylabel("accuracy over classes seen, %")
    legend_below(figure, list(axes[: len(panels)]), columns)


def round_charts(results: Sequence[Result]) -> list[Chart]:
    """Bytes sent so far: one figure per setting, at its most skewed partition."""
    styles = method_styles(results)
    charts: list[Chart] = []
    for setting, members in by_setting(groups(_one_size(results))).items():
        beta = min((g.beta for g in members if g.beta is not None), default=None)
        found = [g for g in members if g.beta == beta]
        size = (7.6, max(3.2, 0.21 * len(found) + 0.9))
        name = slug("rounds", setting.dataset, setting.frame)
        draw = partial(_draw_rounds, found, styles)
        caption = f"Bytes sent over rounds: {setting_title(setting, beta)}"
        charts.append(Chart(name, caption, size, draw, collapsed=bool(charts)))
    return unique(charts)


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


def _draw_rounds(found: Sequence[Group], styles: dict[str, Style], figure: Figure) -> None:
    ax = figure.subplots()
    for g in sorted(found, key=lambda g: -cumulative_upload(g.first)[1][-1]):
        ax.plot(*mean_cumulative_upload(g), **styles[g.name].line, label=short(g.name))
    setting = found[0].setting
    paper = printed_for(setting)
    printed = paper.mib("TARGET") if paper else None
    if printed:
        x = np.array([1.0, ROUNDS * setting.tasks])
        text = f"TARGET, printed by the paper, not\nmeasured: {ROUNDS} rounds x state_dict"
        ax.plot(x, x * printed / ROUNDS, ":", color=INK, label=text)
    ax.set_yscale("log")
    log_ticks(ax.yaxis, ax.dataLim.intervaly)
    if ax.dataLim.x1 > FEW_ROUNDS:
        ax.set_xscale("log")
        log_ticks(ax.xaxis, ax.dataLim.intervalx)
    else:
        ax.set_xticks(range(1, int(ax.dataLim.x1) + 1))
    ax.set_xlabel("rounds so far")
    ax.set_ylabel("sent by the mean client so far, MiB")
    figure.legend(loc="outside right upper")
