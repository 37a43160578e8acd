"""Accuracy against the largest upload, with the Pareto front: methods that none beats in both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedran.bench.report.figures.chart import (
    INK,
    STYLES,
    Chart,
    is_narrow,
    log_ticks,
    render,
    short,
    slug,
    unique,
)
from fedran.bench.report.figures.dot_names import write_names
from fedran.bench.report.figures.dots import KINDS, OVERVIEW, Dot, Point, find_dots, front_of
from fedran.bench.report.verdict import MIXTURE, OURS, main_beta, main_case
from fedran.bench.results.grouping import Case, by_setting, comparisons, groups
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW_HEIGHT, OVERVIEW_SIZE = (11.4, 5.0), 4.8, (8.0, 4.6)
"""Inches of a figure in wide windows, in narrow ones, and in the documentation."""


def accuracy_bytes_charts(results: Sequence[Result]) -> list[Chart]:
    """One figure per setting and beta with two methods; the main beta comes first, not folded."""
    charts: list[Chart] = []
    for setting, members in by_setting(groups(comparisons(results))).items():
        main = main_beta(members)
        for beta in sorted(dict.fromkeys(g.beta for g in members), key=lambda b: b != main):
            dots = find_dots([g for g in members if g.beta == beta])
            if len(dots) < 2:
                continue
            name = slug("bytes", setting.dataset, setting.frame, "" if beta is None else beta)
            caption = f"Accuracy against bytes: {Case(setting, beta).title}"
            draw, folded = partial(_draw, dots), beta != main
            note = "" if folded else _note(dots)
            charts.append(
                Chart(name, caption, WIDE, draw, note, folded, narrow_height=NARROW_HEIGHT)
            )
    return unique(charts)


def _note(dots: Sequence[Dot]) -> str:
    """How to read the figure; only what is in it."""
    parts = ["Up and to the left is better: more accurate with a smaller message."]
    if front_of(dots):
        parts.append(
            "Methods in the shaded area are beaten in both by another federated method (Pareto "
            "front)."
        )
    sizes = [d.line for d in dots if d.line]
    if len(set(sizes)) < len(sizes):
        parts.append(
            "Lines connect one method at several sizes of its message: summaries by their rank r, "
            "mixtures by the rows per group."
        )
    if any(not d.competes for d in dots):
        parts.append("Hollow markers need all rows in one place.")
    floor, _ = _limits(dots)
    if any(d.accuracy < floor for d in dots):
        parts.append("Methods below the axis are drawn at its lower edge.")
    return " ".join(parts)


def overview_chart(results: Sequence[Result]) -> Chart:
    """The figure for the documentation: the best known methods at the first setting and beta."""
    case = main_case(results)
    if case is None:
        raise ValueError("the results hold no comparison of methods")
    where, found = case
    dots = find_dots([g for g in found if g.key in OVERVIEW])
    front, lines = front_of(dots), Counter(d.line for d in dots)
    dots = [d for d in dots if not d.line or lines[d.line] > 1 or (d.size, d.accuracy) in front]
    draw = partial(_draw, dots, title=where.title)
    return Chart("accuracy_bytes", "Accuracy against bytes", OVERVIEW_SIZE, draw)


def overview_svg(results: Sequence[Result]) -> str:
    """The overview as an SVG file on white, readable on pages of any colour."""
    return render(overview_chart(results), background="white", png=False)[0]


def _draw(dots: Sequence[Dot], figure: Figure, title: str = "") -> None:
    ax = figure.subplots()
    floor, ceiling = _limits(dots)
    _plot_kinds(ax, dots, floor)
    paths = _plot_lines(ax, dots)
    ax.set_xscale("log")
    log_ticks(ax.xaxis, [d.size for d in dots])
    ax.locator_params(axis="y", integer=True)
    ax.margins(x=0.07)
    ax.set_ylim(floor, ceiling)
    ax.set_xlim(ax.get_xlim())
    paths.append(_plot_front(ax, dots, floor))
    ax.set_ylabel("accuracy after the last task, %")
    ax.set_xlabel("largest upload of a client in one task, MiB")
    columns, size = (1, 7.5) if is_narrow(figure) else (4, 8.5)
    spacing = {"handletextpad": 0.4, "columnspacing": 1.2, "alignment": "left"}
    heading = short(title, 90)
    figure.legend(loc="outside upper left", ncols=columns, title=heading, fontsize=size, **spacing)
    # Label positions are in dots, so the layout must be final before they are chosen.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    write_names(ax, dots, floor, paths)


def _plot_kinds(ax: Axes, dots: Sequence[Dot], floor: float) -> None:
    """The dots of each kind, those below the axis at its lower edge."""
    for kind, style in KINDS.items():
        members = [d for d in dots if d.kind == kind]
        if members:
            x, y = zip(*((d.size, max(d.accuracy, floor)) for d in members), strict=True)
            size, order = (6.0, 4) if kind in STYLES else (4.5, 3)
            look: dict[str, Any] = style.line | {"ls": "", "ms": size, "zorder": order}
            ax.plot(x, y, **look, label=_entry(kind, members), clip_on=False)


def _plot_lines(ax: Axes, dots: Sequence[Dot]) -> list[list[Point]]:
    """Connect the dots of one method at several sizes; the points of each line."""
    lines: dict[str, list[Dot]] = {}
    for d in sorted(dots, key=lambda d: d.size):
        if d.line:
            lines.setdefault(d.line, []).append(d)
    for members in lines.values():
        colour = KINDS[members[0].kind].colour
        ax.plot([d.size for d in members], [d.accuracy for d in members], color=colour, lw=1.6)
    return [[(d.size, d.accuracy) for d in members] for members in lines.values()]


def _plot_front(ax: Axes, dots: Sequence[Dot], floor: float) -> list[Point]:
    """The Pareto front up to the right edge, with the area below it shaded; its corners."""
    front = front_of(dots)
    if not front:
        return []
    steps = [*front, (ax.get_xlim()[1], front[-1][1])]
    x, y = zip(*steps, strict=True)
    ax.step(x, y, where="post", color=INK, lw=0.8, alpha=0.6, zorder=1, label="Pareto front")
    ax.fill_between(x, y, floor, step="post", color=INK, alpha=0.045, lw=0, zorder=0)
    corners = steps[:1]
    for (_, before), (size, accuracy) in pairwise(steps):
        corners += [(size, before), (size, accuracy)]
    return corners


def _entry(kind: str, members: Sequence[Dot]) -> str:
    """A kind of method in the legend; our messages with their usual number of random features."""
    if kind not in (OURS, MIXTURE):
        return kind
    widths = Counter(d.width for d in members if d.line and isinstance(d.width, int))
    return kind + "".join(f", M = {width}" for width, _ in widths.most_common(1))


def _limits(dots: Sequence[Dot]) -> Point:
    """The vertical axis shows all methods but those that training made much worse."""
    shown = [d.accuracy for d in dots if not d.trained] or [d.accuracy for d in dots]
    space = max(1.0, max(shown) - min(shown))
    top = max(d.accuracy for d in dots)
    return min(shown) - 0.1 * space, top + 0.09 * space
