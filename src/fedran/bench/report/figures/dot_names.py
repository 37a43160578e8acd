"""The names beside the dots of a figure: which dots share one, what it says, where it stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedran.bench.report.figures.chart import INK, SOFT, STYLES, short
from fedran.bench.report.figures.dots import KINDS, Dot
from fedran.bench.report.figures.label_layout import FAR, Box, Point, along, place
from fedran.bench.report.verdict import MIXTURE, OURS, TUNED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEAR = 4.0
"""Points that are closer than this many 1/72 inch share one name."""


def write_names(
    ax: Axes, dots: Sequence[Dot], floor: float, paths: Sequence[Sequence[Point]]
) -> None:
    """Write names next to the dots, as many as find a free position beside all dots and paths.

    Dots below ``floor`` are drawn there.
    """
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
