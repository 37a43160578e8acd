"""A figure that is drawn on demand, and its bytes as SVG and PNG.

Only the object-oriented API is used: no window, no global figure. Without dates and with fixed
ids the same results give the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedran.bench.results.grouping import Group, comparisons, groups
from fedran.bench.results.result import Result
from fedran.core.errors import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, GRID = "#1c1e21", "#dcdee0"
ACCENT = "#d9480f"
COLOURS = (
    *("#2b7fd4", "#2f9e44", "#9c5fd6", "#0c9aa8", "#b08900", "#d6417e"),
    *("#5c7cfa", "#6b8e23", "#8d6e63", "#7a7f87"),
)
MARKERS = "osD^vPX<>p"
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
    """A figure before it is drawn."""

    slug: str
    """The file's name without its ending."""
    caption: str
    size: tuple[float, float]
    """Inches."""
    draw: Callable[[Figure], None]
    collapsed: bool = False


@dataclass(frozen=True)
class Line:
    """How a method looks in every figure."""

    colour: str
    marker: str
    dashed: bool


def render(chart: Chart) -> tuple[str, bytes]:
    """The chart as SVG text and as PNG, 200 dots an inch on white."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'fedran[report]'") from None
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        mpl.rcParams["svg.hashsalt"] = chart.slug
        figure = Figure(figsize=chart.size, layout="constrained")
        chart.draw(figure)
        vector, pixels = io.StringIO(), io.BytesIO()
        figure.savefig(vector, format="svg", transparent=True, metadata={"Date": None})
        figure.savefig(pixels, format="png", dpi=200, facecolor="white")
    return vector.getvalue(), pixels.getvalue()


def inline(svg: str, slug: str) -> str:
    """SVG for the middle of a page: the page's ink and grid, ids that clash with no other."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = body.replace(INK, "currentColor").replace(GRID, "var(--line)")
    body = re.sub(r'( id="|url\(#|xlink:href="#)', rf"\g<1>{slug}-", body)
    return re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", _open_tag, body, count=1)


def _open_tag(match: re.Match[str]) -> str:
    width = float(match[1].split()[2])
    # Namespaces are implied in HTML; the size follows the box it stands in.
    return f'<svg role="img" {match[1]} style="width:{width * 4 / 3:.0f}px">'


def slug(*parts: object) -> str:
    """A file name from foreign words.

    >>> slug("tasks", "CIFAR-100 <b>", 0.1)
    'tasks-cifar-100-b-0.1'
    """
    plain = re.sub(r"[^a-z0-9.]+", "-", "-".join(str(p) for p in parts).lower())
    return re.sub(r"\.{2,}", ".", plain).strip("-.")[:120]


def unique(charts: Iterable[Chart]) -> list[Chart]:
    """The charts, with a number after file names that would repeat."""
    seen: dict[str, int] = {}
    kept = []
    for c in charts:
        seen[c.slug] = seen.get(c.slug, 0) + 1
        name = c.slug if seen[c.slug] == 1 else f"{c.slug}-{seen[c.slug]}"
        kept.append(Chart(name, c.caption, c.size, c.draw, c.collapsed))
    return kept


def short(name: str) -> str:
    """A foreign name that fits a legend, which leaves out names that start with a stroke."""
    return ("\u200a" if name.startswith("_") else "") + printable(name, 36)


def line_styles(results: Sequence[Result]) -> dict[str, Line]:
    """The same colour and marker for a method in every figure; FedRAN has its own."""
    first: dict[str, Group] = {}
    for g in groups(comparisons(results)):
        first.setdefault(g.name, g)
    styles: dict[str, Line] = {}
    count = 0
    for name, g in first.items():
        if g.key == "fedran" and ACCENT not in {s.colour for s in styles.values()}:
            styles[name] = Line(ACCENT, "o", dashed=False)
            continue
        colour = COLOURS[count % len(COLOURS)]
        # One further for every turn of the colours, so that no pair comes back.
        marker = MARKERS[(count + 1 + count // len(COLOURS)) % len(MARKERS)]
        styles[name] = Line(colour, marker, dashed=not g.competes)
        count += 1
    return styles


def legend_below(figure: Figure, panels: Sequence[Axes], columns: int) -> None:
    """One legend for all panels, under them."""
    pairs = [ax.get_legend_handles_labels() for ax in panels]
    handles = [h for found, _ in pairs for h in found]
    labels = [text for _, found in pairs for text in found]
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, columns))


def log_ticks(axis: Axis, values: Iterable[float]) -> None:
    """Plain numbers at a logarithmic axis, also where it covers less than a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    found = list(values)
    wide = max(found) > 50 * min(found)
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def legend_columns(width: float, names: Iterable[str], most: int) -> int:
    """Columns of a legend that fit so many inches, by the longest name.

    >>> legend_columns(6.2, ["FedRAN", "AFL"], 3), legend_columns(6.2, ["x" * 36], 3)
    (3, 2)
    """
    longest = max((len(short(name)) for name in names), default=0)
    return max(1, min(most, int(width / (0.068 * longest + 0.45))))


def legend_rows(entries: int, columns: int) -> float:
    """Inches that such a legend takes."""
    return 0.2 * -(-entries // max(1, columns)) + 0.1
