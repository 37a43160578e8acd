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
from fedran.bench.results.grouping import Group, by_place, comparisons, groups, place_title
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
    for (setting, beta), found in by_place(groups(comparisons(results))).items():
        shown = [g for g in found if largest_upload(g) > 0]
        if len(shown) < 2:
            continue
        name = slug("pareto", setting.dataset, setting.frame, "" if beta is None else beta)
        caption = f"Accuracy against largest upload: {place_title(setting, beta)}"
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


def _draw(found: list[Group], styles: dict[str, Style], figure: Figure) -> None:
    axes = figure.subplots(1, len(MEASURES))
    for ax, (title, measure) in zip(axes, MEASURES, strict=True):
        _panel(ax, found, styles, measure)
        ax.set_ylabel(title)
        ax.set_xlabel("largest upload of a client and task, MiB")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", handletextpad=0.3)
    # Label positions are in dots, so the layout must be final before they are chosen.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax, (_, measure) in zip(axes, MEASURES, strict=True):
        _number(figure, ax, [_point(g, measure) for g in found], found)


def _point(g: Group, measure: Callable[[Result], float]) -> Point:
    s = g.stat(measure)
    assert s is not None
    return largest_upload(g) / MIB, s.mean


def _front_of(found: list[Group], points: list[Point]) -> list[Point]:
    return pareto_front([p for g, p in zip(found, points, strict=True) if g.competes])


def _dots(ax: Axes, points: list[Point], scale: float) -> list[Point]:
    """Data coordinates as positions in the figure, in points of 1/72 inch."""
    placed = [ax.transData.transform(p) for p in points]
    return [(scale * float(x), scale * float(y)) for x, y in placed]


def _panel(
    ax: Axes, found: list[Group], styles: dict[str, Style], measure: Callable[[Result], float]
) -> None:
    for i, g in enumerate(found, 1):
        x, y = _point(g, measure)
        s = styles[g.name]
        face = s.colour if g.competes else "none"
        label = f"{i}  {short(g.name)}"
        ax.plot([x], [y], s.marker, ls="", color=s.colour, mfc=face, ms=6, label=label, zorder=3)
    line = _front_of(found, [_point(g, measure) for g in found])
    if line:
        ax.plot(*zip(*line, strict=True), "-", color=INK, lw=0.8, alpha=0.55, zorder=1)
    ax.set_xscale("log")
    log_ticks(ax.xaxis, [largest_upload(g) / MIB for g in found])
    ax.margins(0.09, 0.12)


def _number(figure: Figure, ax: Axes, points: list[Point], found: list[Group]) -> None:
    scale = 72.0 / figure.dpi
    spots, joined = _dots(ax, points, scale), _dots(ax, _front_of(found, points), scale)
    bounds = ax.bbox
    frame = Box(*(scale * v for v in (bounds.x0, bounds.y0, bounds.x1, bounds.y1)))
    sizes = [(5.8 * len(str(i)) + 2.0, 9.5) for i in range(1, len(points) + 1)]
    places = place(spots, sizes, frame, along(joined))
    for i, (point, spot, (x, y)) in enumerate(zip(points, spots, places, strict=True), 1):
        far = abs(x - spot[0]) + abs(y - spot[1]) > 13
        ours = found[i - 1].key == "fedran"
        ax.annotate(
            str(i),
            point,
            (x - spot[0], y - spot[1]),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8.5,
            fontweight="bold" if ours else "normal",
            color=ACCENT if ours else INK,
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": INK, "shrinkA": 4, "shrinkB": 3}
            if far
            else None,
        )
