"""A_t over the tasks: one figure a setting, one panel a beta."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedran.bench.report.figures.chart import (
    Chart,
    Line,
    legend_below,
    legend_columns,
    legend_rows,
    line_styles,
    short,
    slug,
    unique,
)
from fedran.bench.results.grouping import Group, by_place, by_setting, comparisons, groups
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 3
PANEL = (3.1, 2.8)


def task_charts(results: Sequence[Result]) -> list[Chart]:
    """Curves for every setting of more than one task."""
    styles = line_styles(results)
    found = by_setting(groups(comparisons(results)))
    return unique(
        Chart(
            slug("tasks", setting.dataset, setting.frame),
            setting.title,
            _size(members),
            partial(_draw, members, styles),
        )
        for setting, members in found.items()
        if setting.tasks > 1
    )


def _panels(members: list[Group]) -> list[tuple[float | None, list[Group]]]:
    return [(beta, found) for (_, beta), found in by_place(members).items()]


def _columns(members: list[Group], across: int) -> int:
    return legend_columns(_width(across), {g.name for g in members}, max(2, across * 3 // 2))


def _width(across: int) -> float:
    return max(5.8, PANEL[0] * across)


def _size(members: list[Group]) -> tuple[float, float]:
    panels = len(_panels(members))
    across, down = min(panels, ACROSS), -(-panels // ACROSS)
    legend = legend_rows(len({g.name for g in members}), _columns(members, across))
    return _width(across), PANEL[1] * down + legend


def _draw(members: list[Group], styles: dict[str, Line], figure: Figure) -> None:
    panels = _panels(members)
    across = min(len(panels), ACROSS)
    axes = figure.subplots(-(-len(panels) // ACROSS), across, squeeze=False, sharey=True).ravel()
    shown: set[str] = set()
    for ax, (beta, found) in zip(axes, panels, strict=False):
        for g in found:
            s = styles[g.name]
            mean = np.mean([r.A for r in g.results], axis=0)
            # A name is in the legend once, whichever panel it is first seen in.
            label = "_nolegend_" if g.name in shown else short(g.name)
            shown.add(g.name)
            ax.plot(
                range(1, len(mean) + 1),
                mean,
                s.marker,
                ls=(0, (4, 2)) if s.dashed else "-",
                mfc="none" if s.dashed else s.colour,
                color=s.colour,
                label=label,
                zorder=3 if g.key == "fedran" else 2,
            )
        ax.set_xticks(_ticks(found[0].setting.tasks))
        ax.set_title("" if beta is None else f"β = {beta:g}")
        ax.set_xlabel("task t")
    for ax in axes[len(panels) :]:
        ax.remove()
    axes[0].set_ylabel("accuracy over classes seen, %")
    legend_below(figure, list(axes[: len(panels)]), _columns(members, across))


def _ticks(tasks: int) -> list[int]:
    return list(range(1, tasks + 1, max(1, tasks // 10)))
