"""Positions of short labels around their points, so that no label covers another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]
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


def along(line: Sequence[Point], width: float = 2.0, step: float = 3.0) -> list[Box]:
    """Small boxes that cover a line through some points."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(line):
        n = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / step))
        boxes += [
            Box.around(x0 + (x1 - x0) * i / n, y0 + (y1 - y0) * i / n, width, width)
            for i in range(n + 1)
        ]
    return boxes


def place(
    points: Sequence[Point],
    sizes: Sequence[Point],
    frame: Box,
    obstacles: Sequence[Box] = (),
    marker: float = 7.0,
) -> list[Box | None]:
    """The box of the label of each point: the nearest free position in a few directions.

    Points are handled greedily in their order. A label that is nearer to another point would be
    attributed to that point, so such a position is only used if there is no other. The result is
    None for a label without a free position.

    >>> place([(50, 50)], [(30, 8)], Box(0, 0, 100, 100))
    [Box(x0=35.0, y0=54.0, x1=65.0, y1=62.0)]
    """
    taken = [*obstacles, *(Box.around(x, y, marker, marker) for x, y in points)]
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
