"""The two figures of a setting: accuracy against bytes, and accuracy after each task.

Only the object-oriented API of matplotlib is used: no window, no global figure. The files hold no
date and have fixed ids, so the same results give the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedran.core.errors import MissingExtra, printable
from fedran_bench.report.tables import MIB
from fedran_bench.report.verdict import (
    ANALYTIC,
    HEAD,
    MESSAGES,
    NAMED,
    NETWORK,
    PAPER,
    POINTS,
    POOLED,
    PROMPTS,
    SUMS,
    TUNED,
    leaders,
    quoted,
    role,
)
from fedran_bench.results.grouping import Group, Setting, line_of, training
from fedran_bench.results.result import DEFAULT_STUDY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1c1e21", "#9aa0a7", "#dcdee0"
COLOURS = ("#2b7fd4", "#2f9e44", "#ae3ec9", "#b08900", "#d6417e", "#0c9aa8", "#a47764")
WIDTH, HEIGHT = 6.0, 3.5
"""Inches of the axes. Small enough to be read on a phone, where the page scales the figure."""
SIZES = {"fedran": ("rank",), "fedran-points": ("group_size", "min_group", "step")}
"""Methods with messages of several sizes, and the settings that change the size."""
MOST = 13
"""Methods with a colour. All others are grey."""
_STYLE: Any = {  # its keys are a Literal that only matplotlib knows
    "font.size": 10.5,
    "text.color": INK,
    "text.parse_math": False,  # a foreign label may hold dollar signs
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.4,
    "lines.markersize": 6.0,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.0,
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Chart:
    """A figure that is not drawn yet."""

    slug: str
    """The name of the file without its extension."""
    caption: str
    height: float
    """Inches."""
    draw: Callable[[Figure], None]


@dataclass(frozen=True)
class Style:
    """How a method looks in a figure. References are dashed with hollow markers."""

    colour: str
    marker: str
    dashed: bool = False

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of ``plot``."""
        return {
            "marker": self.marker,
            "ls": (0, (4, 2)) if self.dashed else "-",
            "mfc": "none" if self.dashed else self.colour,
            "color": self.colour,
        }


STYLES = {
    POINTS: Style("#d9480f", "o"),
    SUMS: Style(COLOURS[2], "D"),
    TUNED: Style(COLOURS[4], "P"),
    ANALYTIC: Style(COLOURS[0], "s"),
    HEAD: Style(COLOURS[1], "^"),
    PROMPTS: Style(COLOURS[3], "p"),
    NETWORK: Style(COLOURS[6], "v"),
    POOLED: Style(COLOURS[5], "o", dashed=True),
    PAPER: Style(INK, "X"),
}
"""The style of the leader of each kind of method."""


def charts(setting: Setting, found: Sequence[Group], name: str) -> list[Chart]:
    """The figures of one setting. A single method or a single task needs no figure."""
    styles = method_styles(found)
    made = []
    sent = [g for g in found if g.upload > 0]
    if len(sent) > 1:
        caption = (
            "Accuracy against bytes. Up and to the left is better: more accurate with a smaller "
            "message. Methods in the shaded area are beaten in both by another federated method. "
            "Lines connect one method at several sizes of its message. Hollow markers need all "
            "rows in one place."
        )
        if any(g.A_T.mean < _floor(sent) for g in sent):
            caption += " Methods below the axis are drawn at its lower edge."
        lines = _lines(sent)
        shown = len({styles[g.name][0] for g in sent if g.name in styles}) + 2
        draw = partial(_draw_bytes, sent, lines, styles)
        made.append(Chart(f"bytes-{name}", caption, HEIGHT + _legend(shown), draw))
    if setting.tasks > 1:
        drawn = _one_size(found)
        curves = {g.name: np.mean([r.A for r in g.results], axis=0) for g in drawn}
        names = [g.name for g in drawn if training(g.first) != "network"] or list(curves)
        floor = min(curves[name].min() for name in names) - 2.0
        caption = "Accuracy on all classes seen so far, after each task. Mean over seeds."
        if any(curve.max() < floor for curve in curves.values()):
            caption += " Networks that stay below the axis are not shown."
        leading = [g for g in leaders(found).values() if g.name in curves]
        chosen = {g.name: (quoted(g), styles[g.name][1]) for g in leading}
        draw = partial(_draw_tasks, curves, chosen, floor)
        made.append(Chart(f"tasks-{name}", caption, HEIGHT + _legend(len(chosen) + 1), draw))
    return made


def overview_svg(setting: Setting, found: Sequence[Group]) -> str:
    """Accuracy against bytes of the best known methods, on white, for pages of any colour."""
    known = [g for g in found if g.key in (*SIZES, *NAMED)]
    chart, *_ = charts(setting, known, "overview")
    return render(chart, background="white")


def render(chart: Chart, background: str | None = None) -> str:
    """Draw the chart as SVG text, transparent unless it gets a background."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("figures need matplotlib", "bench") from None
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        mpl.rcParams["svg.hashsalt"] = chart.slug
        figure = Figure(figsize=(WIDTH, chart.height), layout="constrained")
        chart.draw(figure)
        vector = io.StringIO()
        ground = {"facecolor": background} if background else {"transparent": True}
        figure.savefig(vector, format="svg", metadata={"Date": None}, **ground)
    return vector.getvalue()


def inline(svg: str, slug: str) -> str:
    """SVG for an HTML page: it takes the colours of the page, and its ids are unique there."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = body.replace(INK, "currentColor").replace(GRID, "var(--line)")
    body = body.replace(MUTED, "var(--mute)")
    body = re.sub(r'( id="|url\(#|xlink:href="#)', rf"\g<1>{slug}-", body)
    box = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', body)
    assert box is not None
    # Namespaces are implied in HTML. The width is given in CSS pixels, 96 per inch.
    opening = f'<svg role="img" {box[0]} style="width:{float(box[1]) * 96 / 72:.0f}px">'
    return opening + body[body.index(">") + 1 :]


def method_styles(found: Sequence[Group]) -> dict[str, tuple[str, Style]]:
    """Legend entry and style of at most ``MOST`` methods by name. All others are grey.

    The sizes of the message of one method share an entry and a style.
    """
    lead = leaders(found)
    sizes = Counter(map(role, found))
    styles = {
        # In a line of several sizes no single one is named.
        g.name: (kind if kind in MESSAGES.values() and sizes[kind] > 1 else quoted(g), STYLES[kind])
        for kind, g in lead.items()
    }
    for g in found:
        if role(g) in MESSAGES.values():
            styles.setdefault(g.name, styles[lead[role(g)].name])
    free = [Style(c, "^vPXpsD"[(i + turn) % 7]) for turn in range(7) for i, c in enumerate(COLOURS)]
    others = [g for g in found if g.key in NAMED] or [g for g in found if g.key not in SIZES]
    others = sorted((g for g in others if g.name not in styles), key=lambda g: -g.A_T.mean)
    for g, style in zip(others[: MOST - len(lead)], free, strict=False):
        styles[g.name] = g.name, replace(style, dashed=not g.competes)
    return styles


def pareto_front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (bytes, accuracy) points for which no other is as cheap and as accurate.

    >>> pareto_front([(1, 50), (2, 40), (3, 60), (3, 55)])
    [(1, 50), (3, 60)]
    """
    kept: list[tuple[float, float]] = []
    for size, accuracy in sorted(points, key=lambda p: (p[0], -p[1])):
        if not kept or accuracy > kept[-1][1]:
            kept.append((size, accuracy))
    return kept


def _lines(found: Sequence[Group]) -> list[list[Group]]:
    """The methods that differ only in the size of their message, by size."""
    lines: dict[str, list[Group]] = {}
    for g in sorted(found, key=lambda g: g.upload):
        if g.key in SIZES:
            lines.setdefault(line_of(g, *SIZES[g.key]), []).append(g)
    return [members for members in lines.values() if len(members) > 1]


def _one_size(found: Sequence[Group]) -> list[Group]:
    """The methods without those that only vary the size of our messages."""
    usual = {g.key for g in found if g.first.study == DEFAULT_STUDY}
    return [g for g in found if g.first.study == DEFAULT_STUDY or g.key not in usual]


def _floor(found: Sequence[Group]) -> float:
    """The vertical axis shows all methods but the networks that training made much worse."""
    frozen = [g for g in found if training(g.first) != "network"]
    shown = [g.A_T.mean for g in frozen or found]
    return min(shown) - 0.1 * max(1.0, max(shown) - min(shown))


def _draw_bytes(
    found: Sequence[Group],
    lines: Sequence[Sequence[Group]],
    styles: dict[str, tuple[str, Style]],
    figure: Figure,
) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    ax, floor = figure.subplots(), _floor(found)
    for members in lines:
        points = [(g.upload / MIB, max(g.A_T.mean, floor)) for g in members]
        colour = styles[members[0].name][1].colour if members[0].name in styles else MUTED
        ax.plot(*zip(*points, strict=True), color=colour, lw=1.2, zorder=2)
    sizes = [g.upload / MIB for g in found]
    entries: set[str] = set()
    grey = ("other methods", Style(MUTED, "."))
    # The styled methods first, in the order of the legend.
    for g in sorted(found, key=lambda g: [*styles, g.name].index(g.name)):
        text, style = styles.get(g.name, grey)
        look = style.line | {"ls": "", "zorder": 4 if g.name in styles else 3}
        label = "_nolegend_" if text in entries else _short(text)
        ax.plot(g.upload / MIB, max(g.A_T.mean, floor), **look, label=label, clip_on=False)
        entries.add(text)
    ax.set_xscale("log")
    wide = max(sizes) > 50 * min(sizes)
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.margins(x=0.07)
    top = max(g.A_T.mean for g in found)
    ax.set_ylim(floor, top + 0.09 * max(1.0, top - floor))
    ax.set_xlim(ax.get_xlim())
    front = pareto_front((g.upload / MIB, g.A_T.mean) for g in found if g.competes)
    if front:
        x, y = zip(*front, (ax.get_xlim()[1], front[-1][1]), strict=True)
        ax.step(x, y, where="post", color=INK, lw=0.8, alpha=0.6, zorder=1)
        ax.fill_between(x, y, floor, step="post", color=INK, alpha=0.045, lw=0, zorder=0)
    ax.set_ylabel("accuracy after the last task, %")
    ax.set_xlabel("largest upload of a client in one task, MiB")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)


def _draw_tasks(
    curves: dict[str, Any], styles: dict[str, tuple[str, Style]], floor: float, figure: Figure
) -> None:
    ax, grey = figure.subplots(), "other methods"
    x = range(1, 1 + len(next(iter(curves.values()))))
    for name in [*styles, *(name for name in curves if name not in styles)]:
        if name in styles:
            text, style = styles[name]
            ax.plot(x, curves[name], **style.line, label=_short(text), zorder=3)
        else:
            ax.plot(x, curves[name], color=MUTED, lw=0.7, zorder=1, label=grey)
            grey = "_nolegend_"
    ax.set_xticks(x[:: max(1, len(x) // 10)])
    ax.set_ylim(max(0.0, floor), None)
    ax.set_xlabel("task")
    ax.set_ylabel("accuracy over classes seen, %")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)


def _legend(entries: int) -> float:
    """Inches of a legend in two columns."""
    return 0.2 * -(-entries // 2) + 0.1


def _short(name: str, limit: int = 40) -> str:
    """A name that fits a legend; matplotlib hides names that start with an underscore."""
    name = re.sub(r" rows? per group$", "", name)
    return ("\u200a" if name.startswith("_") else "") + printable(name, limit)
