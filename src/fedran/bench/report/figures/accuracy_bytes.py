"""Accuracy against the largest upload, with the Pareto front: methods that none beats in both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedran.bench.report.figures.chart import (
    INK,
    SOFT,
    STYLES,
    Chart,
    is_narrow,
    log_ticks,
    render,
    short,
    slug,
    unique,
)
from fedran.bench.report.figures.dots import KINDS, OVERVIEW, Dot, find_dots, front_of
from fedran.bench.report.figures.label_layout import FAR, Box, Point, along, place
from fedran.bench.report.verdict import MIXTURE, OURS, TUNED, main_beta, main_case
from fedran.bench.results.grouping import (
    by_setting,
    by_setting_and_beta,
    comparisons,
    groups,
    setting_title,
)
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW_HEIGHT, OVERVIEW_SIZE = (11.4, 5.0), 4.8, (8.0, 4.6)
"""Inches of a figure in wide windows, in narrow ones, and in the documentation."""
NEAR = 4.0
"""Points that are closer than this many 1/72 inch share one label."""


def accuracy_bytes_charts(results: Sequence[Result]) -> list[Chart]:
    """One figure per setting and beta with two methods; the main beta comes first, not folded."""
    charts: list[Chart] = []
    for setting, members in by_setting(groups(comparisons(results))).items():
        main = main_beta(members)
        cases = by_setting_and_beta(members)
        for (_, beta), found in sorted(cases.items(), key=lambda case: case[0][1] != main):
            dots = find_dots(found)
            if len(dots) < 2:
                continue
            name = slug("bytes", setting.dataset, setting.frame, "" if beta is None else beta)
            caption = f"Accuracy against bytes: {setting_title(setting, beta)}"
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
    (setting, beta), found = case
    dots = find_dots([g for g in found if g.key in OVERVIEW])
    front, lines = front_of(dots), Counter(d.line for d in dots)
    dots = [d for d in dots if not d.line or lines[d.line] > 1 or (d.size, d.accuracy) in front]
    draw = partial(_draw, dots, title=setting_title(setting, beta))
    return Chart("accuracy_bytes", "Accuracy against bytes", OVERVIEW_SIZE, draw)


def overview_svg(results: Sequence[Result]) -> str:
    """The overview as an SVG file on white, readable on pages of any colour."""
    return render(overview_chart(results), background="white", png=False)[0]


def _draw(dots: Sequence[Dot], figure: Figure, title: str = "") -> None:
    ax = figure.subplots()
    front = front_of(dots)
    floor, ceiling = _limits(dots)
    lines: dict[str, list[Dot]] = {}
    for d in sorted(dots, key=lambda d: d.size):
        if d.line:
            lines.setdefault(d.line, []).append(d)
    for kind, style in KINDS.items():
        members = [d for d in dots if d.kind == kind]
        if members:
            x, y = zip(*((d.size, max(d.accuracy, floor)) for d in members), strict=True)
            size, order = (6.0, 4) if kind in STYLES else (4.5, 3)
            look: dict[str, Any] = style.line | {"ls": "", "ms": size, "zorder": order}
            ax.plot(x, y, **look, label=_entry(kind, members), clip_on=False)
    for members in lines.values():
        colour = KINDS[members[0].kind].colour
        ax.plot([d.size for d in members], [d.accuracy for d in members], color=colour, lw=1.6)
    ax.set_xscale("log")
    log_ticks(ax.xaxis, [d.size for d in dots])
    ax.locator_params(axis="y", integer=True)
    ax.margins(x=0.07)
    ax.set_ylim(floor, ceiling)
    right = ax.get_xlim()[1]
    ax.set_xlim(ax.get_xlim())
    steps = [*front, (right, front[-1][1])] if front else []
    if steps:
        x, y = zip(*steps, strict=True)
        ax.step(x, y, where="post", color=INK, lw=0.8, alpha=0.6, zorder=1, label="Pareto front")
        ax.fill_between(x, y, floor, step="post", color=INK, alpha=0.045, lw=0, zorder=0)
    ax.set_ylabel("accuracy after the last task, %")
    ax.set_xlabel("largest upload of a client in one task, MiB")
    columns, size = (1, 7.5) if is_narrow(figure) else (4, 8.5)
    spacing = {"handletextpad": 0.4, "columnspacing": 1.2, "alignment": "left"}
    heading = short(title, 90)
    figure.legend(loc="outside upper left", ncols=columns, title=heading, fontsize=size, **spacing)
    # Label positions are in dots, so the layout must be final before they are chosen.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    paths = [[(d.size, d.accuracy) for d in members] for members in lines.values()]
    _label(ax, dots, floor, [*paths, _corners(steps)])


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


def _corners(steps: Sequence[Point]) -> list[Point]:
    """The corners of a line that runs horizontally until the next point."""
    path = list(steps[:1])
    for (_, before), (size, accuracy) in pairwise(steps):
        path += [(size, before), (size, accuracy)]
    return path


def _label(ax: Axes, dots: Sequence[Dot], floor: float, paths: Sequence[Sequence[Point]]) -> None:
    """Write names next to the dots, as many as find a free position."""
    figure = ax.get_figure()
    assert figure is not None
    scale = 72.0 / figure.dpi

    def positions(data: Sequence[Point]) -> list[Point]:
        return [(scale * float(x), scale * float(y)) for x, y in map(ax.transData.transform, data)]

    shown = [(d.size, max(d.accuracy, floor)) for d in dots]
    spots = positions(shown)
    clusters = _clusters(dots, spots, floor)
    firsts = [c[0] for c in clusters]
    looks = [_look(dots[i]) for i in firsts]
    texts = [_text([dots[i] for i in c], floor) for c in clusters]
    sizes = []
    for text, look in zip(texts, looks, strict=True):
        drawn = ax.text(0.5, 0.5, text, transform=ax.transAxes, **look)
        extent = drawn.get_window_extent()
        drawn.remove()
        sizes.append((scale * extent.width + 2.0, scale * extent.height))
    frame = Box(*(scale * v for v in (ax.bbox.x0, ax.bbox.y0, ax.bbox.x1, ax.bbox.y1)))
    obstacles = [box for path in paths for box in along(positions(path))]
    obstacles += [Box.around(*spot, 7.0, 7.0) for spot in spots]
    places = place([spots[i] for i in firsts], sizes, frame, obstacles)
    for i, text, look, box in zip(firsts, texts, looks, places, strict=True):
        if box is None:
            continue
        (x, y), (across, up) = spots[i], box.nearest(*spots[i])
        start = (across - box.x0) / (box.x1 - box.x0), (up - box.y0) / (box.y1 - box.y0)
        line = {"arrowstyle": "-", "lw": 0.5, "color": INK, "shrinkA": 0, "relpos": start}
        ax.annotate(
            text,
            shown[i],
            (box.centre[0] - x, box.centre[1] - y),
            textcoords="offset points",
            ha="center",
            va="center",
            arrowprops=line if box.distance(x, y) > FAR else None,
            **look,
        )


def _clusters(dots: Sequence[Dot], spots: Sequence[Point], floor: float) -> list[list[int]]:
    """Dots of one kind or below the axis that cannot be told apart; never those on a line."""
    clusters: list[list[int]] = []
    for i, d in enumerate(dots):
        for c in clusters:
            first = dots[c[0]]
            below = max(first.accuracy, d.accuracy) < floor
            alike = (first.kind == d.kind or below) and not first.line and not d.line
            if alike and math.dist(spots[c[0]], spots[i]) < NEAR:
                c.append(i)
                break
        else:
            clusters.append([i])
    return clusters


def _text(members: Sequence[Dot], floor: float) -> str:
    """Names of a cluster; their common remark in parentheses once. Below the axis, the values.

    >>> dots = [Dot(f"{n} (head)", 1.0, 60.0, "", True) for n in ("Finetune", "FedLwF")]
    >>> _text(dots, 50.0), _text(dots, 70.0)
    ('Finetune, FedLwF (head)', 'Finetune, FedLwF (head): 60 %')
    """
    parts = [d.name.partition(" (") for d in members]
    remarks = {remark for _, _, remark in parts}
    if len(remarks) == 1:
        stems = [stem for stem, _, _ in parts]
        tail = "".join(parts[0][1:])
    else:
        stems, tail = [d.name for d in members], ""
    text = (", ".join(stems) if len(stems) < 4 else f"{len(stems)} methods") + tail
    values = [round(d.accuracy) for d in members]
    below = " to ".join(str(v) for v in sorted({min(values), max(values)}))
    return short(text) + (f": {below} %" if max(d.accuracy for d in members) < floor else "")


def _look(d: Dot) -> dict[str, Any]:
    ours = d.kind in (OURS, MIXTURE, TUNED)
    size = 8.5 if d.kind in STYLES else 7.0
    weight = "bold" if ours else "normal"
    colour = KINDS[d.kind].colour if d.kind in STYLES else SOFT
    return {"fontsize": size, "fontweight": weight, "color": colour}
