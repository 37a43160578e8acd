"""Figures that are drawn on demand, and their bytes as SVG and PNG.

Only the object-oriented API of matplotlib is used: no window, no global figure. The files hold no
date and have fixed ids, so the same results give the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedran.bench.report.verdict import (
    ANALYTIC,
    HEAD,
    MIXTURE,
    NETWORK,
    OURS,
    PAPER,
    POOLED,
    PROMPTS,
    TUNED,
    leaders,
    main_beta,
)
from fedran.bench.results.grouping import Group, Stat
from fedran.core.errors import MissingExtra, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, SOFT, MUTED, GRID = "#1c1e21", "#646b73", "#9aa0a7", "#dcdee0"
ACCENT = "#d9480f"
COLOURS = ("#2b7fd4", "#2f9e44", "#ae3ec9", "#b08900", "#d6417e", "#0c9aa8", "#a47764")
HUES = (ACCENT, *COLOURS)
MARKERS = "osD^vPX<>p"
AVERAGE, FINAL = "average accuracy, %", "final accuracy, %"
NARROW = 3.85
"""Inches of the drawings for narrow windows."""
_STYLE: Any = {  # its keys are a Literal that only matplotlib knows
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a foreign label may hold dollar signs
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Chart:
    """A figure that is not drawn yet."""

    slug: str
    """The name of the file without its extension."""
    caption: str
    size: tuple[float, float]
    """Inches."""
    draw: Callable[[Figure], None]
    note: str = ""
    """How to read the figure."""
    collapsed: bool = False
    """Folded on the HTML page."""
    narrow_height: float | None = None
    """Inches of a second drawing for narrow windows. By default their panels lie in a column."""


@dataclass(frozen=True)
class Style:
    """How a method looks in a figure."""

    colour: str
    marker: str = ""
    dashed: bool = False

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of ``plot``; references are dashed with hollow markers."""
        return {
            "marker": self.marker,
            "ls": (0, (4, 2)) if self.dashed else "-",
            "mfc": "none" if self.dashed else self.colour,
            "color": self.colour,
            "lw": 1.4 if self.marker else 0.7,
            "zorder": 3 if self.marker else 1,
        }


OTHER = Style(MUTED)
STYLES = {
    OURS: Style(ACCENT, "o"),
    MIXTURE: Style(COLOURS[2], "D"),
    TUNED: Style(COLOURS[4], "P"),
    ANALYTIC: Style(COLOURS[0], "s"),
    HEAD: Style(COLOURS[1], "^"),
    PROMPTS: Style(COLOURS[3], "p"),
    NETWORK: Style(COLOURS[6], "v"),
    POOLED: Style(COLOURS[5], "o", dashed=True),
    PAPER: Style(INK, "X"),
}
"""The style of the leader of each kind of method."""


def render(chart: Chart, background: str | None = None, png: bool = True) -> tuple[str, bytes]:
    """Draw the chart as SVG text and, unless it is not wanted, as PNG on white.

    The SVG is transparent unless it gets a background.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("figures need matplotlib", "report") from None
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        mpl.rcParams["svg.hashsalt"] = chart.slug
        figure = Figure(figsize=chart.size, layout="constrained")
        chart.draw(figure)
        vector, pixels = io.StringIO(), io.BytesIO()
        ground = {"facecolor": background} if background else {"transparent": True}
        figure.savefig(vector, format="svg", metadata={"Date": None}, **ground)
        if png:
            figure.savefig(pixels, format="png", dpi=200, facecolor="white")
    return vector.getvalue(), pixels.getvalue()


def inline(svg: str, slug: str) -> str:
    """SVG for an HTML page: it takes the colours of the page, and its ids are unique there."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = body.replace(INK, "currentColor").replace(GRID, "var(--line)")
    body = body.replace(SOFT, "var(--soft)").replace(MUTED, "var(--mute)")
    body = re.sub(r'( id="|url\(#|xlink:href="#)', rf"\g<1>{slug}-", body)
    box = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', body)
    assert box is not None
    # Namespaces are implied in HTML. The width is given in CSS pixels, 96 per inch.
    opening = f'<svg role="img" {box[0]} style="width:{float(box[1]) * 96 / 72:.0f}px">'
    return opening + body[body.index(">") + 1 :]


def slug(*parts: object) -> str:
    """A file name from any words.

    >>> slug("tasks", "CIFAR-100 <b>", 0.1)
    'tasks-cifar-100-b-0.1'
    """
    plain = re.sub(r"[^a-z0-9.]+", "-", "-".join(str(p) for p in parts).lower())
    return re.sub(r"\.{2,}", ".", plain).strip("-.")[:120]


def unique(charts: Iterable[Chart]) -> list[Chart]:
    """The charts; a number is added to file names that would repeat."""
    seen: dict[str, int] = {}
    kept = []
    for c in charts:
        seen[c.slug] = seen.get(c.slug, 0) + 1
        name = c.slug if seen[c.slug] == 1 else f"{c.slug}-{seen[c.slug]}"
        kept.append(replace(c, slug=name))
    return kept


def short(name: str, limit: int = 40) -> str:
    """A name that fits a legend; matplotlib hides names that start with an underscore."""
    return ("\u200a" if name.startswith("_") else "") + printable(name, limit)


def method_styles(members: Sequence[Group]) -> dict[str, Style]:
    """The styles of at most eight methods of one setting by name. All others are grey.

    Where no kind has a leader, the first methods have colours.
    """
    beta = main_beta(members)
    found = [g for g in members if g.beta == beta]
    styles = {g.name: STYLES[kind] for kind, g in leaders(found).items()}
    return styles or numbered_styles(g.name for g in found)


def numbered_styles(names: Iterable[str]) -> dict[str, Style]:
    """The first methods in different colours, for figures that compare one kind of method."""
    looks = zip(COLOURS, MARKERS[1:], strict=False)
    return {name: Style(*look) for name, look in zip(names, looks, strict=False)}


def is_narrow(figure: Figure) -> bool:
    """Whether the figure is the drawing for narrow windows."""
    return figure.get_figwidth() < 1.2 * NARROW


def panels(figure: Figure, n: int, **options: Any) -> list[Axes]:
    """Axes beside each other, or below each other in a narrow figure."""
    rows, columns = (n, 1) if is_narrow(figure) else (1, n)
    return list(figure.subplots(rows, columns, squeeze=False, **options).ravel())


def error_line(ax: Axes, x: list[float], stats: list[Stat], i: int, name: str) -> None:
    """A line of means with their standard deviations, in the i-th colour."""
    ax.errorbar(
        x,
        [s.mean for s in stats],
        [s.spread or 0.0 for s in stats],
        fmt=MARKERS[i % len(MARKERS)] + "-",
        color=HUES[i % len(HUES)],
        elinewidth=0.8,
        capsize=2,
        label=short(name),
    )


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, below them, with as many columns as fit."""
    pairs = [ax.get_legend_handles_labels() for ax in axes]
    handles = [h for found, _ in pairs for h in found]
    labels = [text for _, found in pairs for text in found]
    columns, _ = fit_legend(figure.get_figwidth(), labels)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def log_ticks(axis: Axis, values: Iterable[float]) -> None:
    """Plain numbers at a logarithmic axis, also if it covers less than a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    found = list(values)
    wide = max(found) > 50 * min(found)
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def fit_legend(width: float, names: Iterable[str]) -> tuple[int, float]:
    """Columns of a legend with such names that fit a width, and its height; both in inches.

    >>> fit_legend(6.2, ["FedRAN", "AFL"])[0], fit_legend(6.2, ["x" * 36])[0]
    (4, 2)
    """
    lengths = [len(short(name)) for name in names]
    fitting = int(width / (0.068 * max(lengths, default=0) + 0.45))
    columns = max(1, min(4, fitting))
    return columns, 0.2 * -(-len(lengths) // columns) + 0.1
