"""The names beside the dots of a figure: which dots share one, what it says, where it stands.

No name covers another, a dot or a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedran.bench.report.figures.chart import INK, SOFT, STYLES, short
from fedran.bench.report.figures.dots import KINDS, Dot, Point
from fedran.bench.report.verdict import MIXTURE, OURS, TUNED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEAR = 4.0
"""Points that are closer than this many 1/72 inch share one name."""
MARKER = 7.0
"""Width and height that a dot takes."""
FAR = 9.0
"""A label that is farther from its point is connected to it by a line."""


@dataclass(frozen=True)
class Box:
    """A rectangle with its left, bottom, right and top edge."""

    x0: float
    y0: float
    x1: float
    y1: float

    @classmethod
    def around(cls, x: float, y: float, width: float, height: float) -> Box:
        """The box with this centre and size."""
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    def meets(self, other: Box) -> bool:
        """Whether the two overlap."""
        return (
            self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1
        )

    @property
    def centre(self) -> Point:
        """The point in the middle."""
        return (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2

    def nearest(self, x: float, y: float) -> Point:
        """The point of the box that is nearest to another point."""
        return min(max(x, self.x0), self.x1), min(max(y, self.y0), self.y1)

    def distance(self, x: float, y: float) -> float:
        """The distance of a point from the box; 0 for a point in it."""
        return math.dist((x, y), self.nearest(x, y))

    def inside(self, other: Box) -> bool:
        """Whether it lies completely in the other box."""
        return (
            self.x0 >= other.x0
            and self.x1 <= other.x1
            and self.y0 >= other.y0
            and self.y1 <= other.y1
        )


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
    obstacles += [Box.around(*spot, MARKER, MARKER) for spot in spots]
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


def along(line: Sequence[Point]) -> list[Box]:
    """Small boxes that cover a line through some points."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(line):
        n = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / 3.0))
        boxes += [
            Box.around(x0 + (x1 - x0) * i / n, y0 + (y1 - y0) * i / n, 2.0, 2.0)
            for i in range(n + 1)
        ]
    return boxes


def place(
    points: Sequence[Point],
    sizes: Sequence[Point],
    frame: Box,
    obstacles: Sequence[Box] = (),
) -> list[Box | None]:
    """The box of the label of each point: the nearest free position in a few directions.

    Points are handled greedily in their order. A label that is nearer to another point would be
    attributed to that point, so such a position is only used if there is no other. The result is
    None for a label without a free position.

    >>> place([(50, 50)], [(30, 8)], Box(0, 0, 100, 100))
    [Box(x0=35.0, y0=54.0, x1=65.0, y1=62.0)]
    """
    taken = [*obstacles, *(Box.around(x, y, MARKER, MARKER) for x, y in points)]
    labels: list[Box] = []
    places: list[Box | None] = []
    for (x, y), (width, height) in zip(points, sizes, strict=True):
        free = [
            box
            for c in _around(x, y, width, height)
            if (box := Box.around(*c, width, height)).inside(frame)
            and not any(box.meets(other) for other in taken)
            and not any(dot.meets(other) for dot in leader((x, y), box) for other in labels)
        ]
        clear = (b for b in free if all(b.distance(x, y) <= b.distance(*p) for p in points))
        chosen = next(clear, next(iter(free), None))
        if chosen is not None:
            labels.append(chosen)
            taken += [chosen, *leader((x, y), chosen)]
        places.append(chosen)
    return places


def leader(point: Point, label: Box) -> list[Box]:
    """Small boxes that cover the line from a point to its label; none if the label is near."""
    return [] if label.distance(*point) <= FAR else along([point, label.nearest(*point)])


def _around(x: float, y: float, width: float, height: float) -> list[Point]:
    """Candidates: above first, then at the sides and corners, ring after ring."""
    return [
        (x + across * (gap + width / 2), y + up * (gap + height / 2))
        for gap in (4.0, 8.0, 13.0, 19.0, 27.0)
        for across, up in (
            *((0.0, 1.0), (1.0, 0.0), (-1.0, 0.0), (0.0, -1.0)),
            *((0.6, 1.0), (-0.6, 1.0), (0.6, -1.0), (-0.6, -1.0)),
            *((1.0, 0.6), (-1.0, 0.6), (1.0, -0.6), (-1.0, -0.6)),
            *((1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)),
        )
    ]
