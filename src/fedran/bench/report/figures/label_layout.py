"""Positions of short labels around their points, so that no label covers another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]


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
) -> list[Point]:
    """The centre of the label of each point: the nearest free position in a few directions.

    Points are handled greedily in their order. A label that is nearer to another point would be
    attributed to that point, so such a position is only used if there is no other. If no position
    is free, the label is placed right above its point.

    >>> place([(50, 50)], [(8, 8)], Box(0, 0, 100, 100))
    [(50.0, 59.0)]
    """
    taken = [*obstacles, *(Box.around(x, y, marker, marker) for x, y in points)]
    places: list[Point] = []
    for (x, y), (width, height) in zip(points, sizes, strict=True):
        free = [
            c
            for c in _around(x, y)
            if (box := Box.around(*c, width, height)).inside(frame)
            and not any(box.meets(other) for other in taken)
        ]
        clear = (c for c in free if all(math.dist(c, (x, y)) <= math.dist(c, p) for p in points))
        chosen = next(clear, next(iter(free), (x, y + 9.0)))
        taken.append(Box.around(*chosen, width, height))
        places.append((float(chosen[0]), float(chosen[1])))
    return places


def _around(x: float, y: float) -> list[Point]:
    """Candidates: above first, then around the clock, ring after ring."""
    return [
        (
            x + radius * round(math.sin(math.tau * k / 16), 9),
            y + radius * round(math.cos(math.tau * k / 16), 9),
        )
        for radius in (9.0, 13.0, 18.0, 24.0, 32.0, 42.0, 54.0)
        for k in (0, 4, 12, 8, 2, 14, 6, 10, 1, 3, 5, 7, 9, 11, 13, 15)
    ]
