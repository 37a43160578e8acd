"""Accuracy against the largest upload, with the Pareto front: methods that none beats in both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedran.bench.report.figures.chart import (
    INK,
    MUTED,
    SOFT,
    STYLES,
    Chart,
    Style,
    is_narrow,
    log_ticks,
    render,
    short,
    slug,
    unique,
)
from fedran.bench.report.figures.label_layout import FAR, Box, Point, along, place
from fedran.bench.report.tables.communication import largest_upload
from fedran.bench.report.tables.table import MIB
from fedran.bench.report.verdict import (
    HIGHLIGHTED,
    MIXTURE,
    OURS,
    PAPER,
    TUNED,
    final,
    leaders,
    main_beta,
    main_case,
    role,
)
from fedran.bench.results.grouping import (
    Group,
    as_text,
    by_setting,
    by_setting_and_beta,
    comparisons,
    groups,
    setting_phrase,
    setting_title,
)
from fedran.bench.results.metrics import is_prompted, is_trained
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZES = {
    "fedran": ("rank",),
    "fedran-mixture": ("group_size", "min_group"),
    "fedpft": ("components", "covariance"),
}
"""Methods with messages of several sizes, and the settings that change the size."""
GAUSSIAN = frozenset({"fedcgs", "gh-ofl-lda", "gh-ofl-fishermix", "fedpft"})
"""Methods that send Gaussian statistics. Their sizes are not one curve."""
GREY, GREY_POOLED = "other methods", "others, all rows in one place"
KINDS = STYLES | {GREY: Style(MUTED, "o"), GREY_POOLED: Style(MUTED, "o", dashed=True)}
"""Colour and marker of each kind of dot."""
OVERVIEW = (
    *("fedran-paper", "fedran-mixture", "fedran", "stsa", "afl", "fedcgs", "gh-ofl-lda"),
    *("fedpft", "fedncm", "loranpac", "ranpac", "send-features-8bit", "send-images"),
)
"""The methods of the overview. In every figure they are labelled before the others."""
WIDE, NARROW_HEIGHT, OVERVIEW_SIZE = (11.4, 5.0), 4.8, (8.0, 4.6)
"""Inches of a figure in wide windows, in narrow ones, and in the documentation."""
NEAR = 4.0
"""Points that are closer than this many 1/72 inch share one label."""


@dataclass(frozen=True)
class Dot:
    """A method at one size of its message. Dots with the same line are connected."""

    name: str
    size: float
    """MiB."""
    accuracy: float
    kind: str
    """Its role, or grey."""
    competes: bool
    trained: bool = False
    """Whether its accuracy may be too low for the axis."""
    line: str = ""
    width: object = None
    """The number M of random features, of a method that has it."""


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
    if _front(dots):
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
    front, lines = _front(dots), Counter(d.line for d in dots)
    dots = [d for d in dots if not d.line or lines[d.line] > 1 or (d.size, d.accuracy) in front]
    draw = partial(_draw, dots, title=setting_title(setting, beta))
    return Chart("accuracy_bytes", "Accuracy against bytes", OVERVIEW_SIZE, draw)


def overview_svg(results: Sequence[Result]) -> str:
    """The overview as an SVG file on white, readable on pages of any colour."""
    return render(overview_chart(results), background="white", png=False)[0]


def pareto_front(points: Iterable[Point]) -> list[Point]:
    """The (bytes, accuracy) points for which no other is as cheap and as accurate.

    >>> pareto_front([(1, 50), (2, 40), (3, 60), (3, 55)])
    [(1, 50), (3, 60)]
    """
    kept: list[Point] = []
    for size, accuracy in sorted(points, key=lambda p: (p[0], -p[1])):
        if not kept or accuracy > kept[-1][1]:
            kept.append((size, accuracy))
    return kept


def _front(dots: Iterable[Dot]) -> list[Point]:
    return pareto_front((d.size, d.accuracy) for d in dots if d.competes)


def find_dots(found: Sequence[Group]) -> list[Dot]:
    """The methods that send something. Leaders come first, then the overview, then by accuracy."""
    lead = leaders(found)
    first = {id(g): i for i, g in enumerate(list(lead.values())[:HIGHLIGHTED])}
    order = {key: i for i, key in enumerate(OVERVIEW)}
    members = sorted(
        found,
        key=lambda g: (first.get(id(g), len(first)), order.get(g.key, len(order)), -final(g)),
    )
    return [
        Dot(
            g.name if id(g) in first else _short_name(g, [o for o in members if o.key == g.key]),
            largest_upload(g) / MIB,
            final(g),
            _kind(g, id(g) in first),
            g.competes,
            is_trained(g.first) and not is_prompted(g.first),
            _line(g),
            g.params.get("out_features"),
        )
        for g in members
        if largest_upload(g) > 0
    ]


def _kind(g: Group, leads: bool) -> str:
    """The role of a leader and of all sizes of our messages; otherwise grey."""
    kind = role(g)
    if leads or kind in (OURS, MIXTURE):
        return kind
    return GREY if g.competes else GREY_POOLED


def _line(g: Group) -> str:
    """Equal for the groups that differ only in the size of their message."""
    if g.key in GAUSSIAN or g.key not in SIZES:
        return ""
    return as_text({"key": g.key} | {k: v for k, v in g.params.items() if k not in SIZES[g.key]})


def _short_name(g: Group, peers: Sequence[Group]) -> str:
    """The size of a message, and its settings that are not the usual ones; else the name."""
    if g.key == "fedran-paper":
        return PAPER
    step = SIZES.get(g.key, ("",))[0]
    if step not in g.params or len(peers) == 1:
        return g.name
    words = [*([g.first.label] if g.key in GAUSSIAN else []), setting_phrase(step, g.params[step])]
    for k, v in g.params.items():
        usual = Counter(as_text({"": p.params.get(k)}) for p in peers).most_common(1)[0][0]
        if k == "task0" or (k not in SIZES[g.key] and as_text({"": v}) != usual):
            words.append(setting_phrase(k, v))
    return ", ".join(words)


def _draw(dots: Sequence[Dot], figure: Figure, title: str = "") -> None:
    ax = figure.subplots()
    front = _front(dots)
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
