"""Accuracy against the largest upload, with the Pareto front: methods that none beats in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedran.bench.report.figures.chart import (
    ACCENT,
    INK,
    Chart,
    Style,
    log_ticks,
    method_styles,
    short,
    slug,
    unique,
)
from fedran.bench.report.figures.label_layout import Box, Point, along, place
from fedran.bench.report.tables.communication import largest_upload
from fedran.bench.report.tables.table import MIB
from fedran.bench.results.grouping import (
    Group,
    by_setting_and_beta,
    comparisons,
    groups,
    mean_of,
    setting_title,
)
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURES: tuple[tuple[str, Callable[[Result], float]], ...] = (
    ("final accuracy, %", lambda r: r.A_T),
    ("average accuracy, %", lambda r: r.A_avg),
)


def pareto_charts(results: Sequence[Result]) -> list[Chart]:
    """One figure per setting and beta with at least two methods."""
    styles = method_styles(results)
    charts: list[Chart] = []
    for (setting, beta), found in by_setting_and_beta(groups(comparisons(results))).items():
        shown = [g for g in found if largest_upload(g) > 0]
        if len(shown) < 2:
            continue
        name = slug("pareto", setting.dataset, setting.frame, "" if beta is None else beta)
        caption = f"Accuracy against largest upload: {setting_title(setting, beta)}"
        size = (9.2, max(3.7, 0.21 * len(shown) + 0.7))
        draw = partial(_draw, shown, styles)
        charts.append(Chart(name, caption, size, draw, collapsed=bool(charts)))
    return unique(charts)


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The (bytes, accuracy) points for which no other is as cheap and as accurate.

    >>> pareto_front([(1, 50), (2, 40), (3, 60), (3, 55)])
    [(1, 50), (3, 60)]
    """
    kept: list[Point] = []
    for size, accuracy in sorted(points, key=lambda p: (p[0], -p[1])):
        if not kept or accuracy > kept[-1][1]:
            kept.append((size, accuracy))
    return kept


def _draw(found: Sequence[Group], styles: dict[str, Style], figure: Figure) -> None:
    axes = figure.subplots(1, len(MEASURES))
    panels = []
    for ax, (title, measure) in zip(axes, MEASURES, strict=True):
        points = [(largest_upload(g) / MIB, mean_of(g.stat(measure)) or 0.0) for g in found]
        front = pareto_front([p for g, p in zip(found, points, strict=True) if g.competes])
        for i, (g, (x, y)) in enumerate(zip(found, points, strict=True), 1):
            s = styles[g.name]
            face = s.colour if g.competes else "none"
            look = {"ls": "", "color": s.colour, "mfc": face, "ms": 6, "zorder": 3}
            ax.plot([x], [y], s.marker, label=f"{i}  {short(g.name)}", **look)
        if front:
            ax.plot(*zip(*front, strict=True), "-", color=INK, lw=0.8, alpha=0.55, zorder=1)
        ax.set_xscale("log")
        log_ticks(ax.xaxis, [x for x, _ in points])
        ax.margins(0.09, 0.12)
        ax.set_ylabel(title)
        ax.set_xlabel("largest upload of a client and task, MiB")
        panels.append((ax, points, front))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", handletextpad=0.3)
    # Label positions are in dots, so the layout must be final before they are chosen.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    ours = [g.key == "fedran" for g in found]
    for ax, points, front in panels:
        _number_points(ax, points, front, ours, 72.0 / figure.dpi)


def _number_points(
    ax: Axes, points: Sequence[Point], front: Sequence[Point], ours: Sequence[bool], scale: float
) -> None:
    """Write the number of each point next to it; ``scale`` turns dots into 1/72 inch."""

    def positions(data: Sequence[Point]) -> list[Point]:
        placed = [ax.transData.transform(p) for p in data]
        return [(scale * float(x), scale * float(y)) for x, y in placed]

    bounds = ax.bbox
    frame = Box(*(scale * v for v in (bounds.x0, bounds.y0, bounds.x1, bounds.y1)))
    sizes = [(5.8 * len(str(i)) + 2.0, 9.5) for i in range(1, len(points) + 1)]
    spots = positions(points)
    places = place(spots, sizes, frame, along(positions(front)))
    for i, (point, spot, (x, y)) in enumerate(zip(points, spots, places, strict=True)):
        far = abs(x - spot[0]) + abs(y - spot[1]) > 13
        line = {"arrowstyle": "-", "lw": 0.5, "color": INK, "shrinkA": 4, "shrinkB": 3}
        ax.annotate(
            str(i + 1),
            point,
            (x - spot[0], y - spot[1]),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8.5,
            fontweight="bold" if ours[i] else "normal",
            color=ACCENT if ours[i] else INK,
            arrowprops=line if far else None,
        )
