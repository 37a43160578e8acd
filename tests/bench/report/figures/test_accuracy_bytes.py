"""The Pareto front, and labels that do not cover each other."""

import numpy as np
import pytest

from fedran.bench.report.figures.accuracy_bytes import pareto_front
from fedran.bench.report.figures.label_layout import Box, along, place


def test_the_pareto_front_holds_the_points_that_no_other_beats():
    points = [tuple(p) for p in np.random.default_rng(0).random((50, 2))]
    best = {
        (x, y)
        for x, y in points
        if not any((a <= x and b >= y) and (a, b) != (x, y) for a, b in points)
    }
    assert set(pareto_front(points)) == best


@pytest.mark.parametrize("seed", range(5))
def test_labels_cover_neither_each_other_nor_a_marker(seed):
    points = [tuple(p) for p in 60 + 90 * np.random.default_rng(seed).random((20, 2))]
    sizes = [(12.0, 9.5)] * len(points)
    frame = Box(0, 0, 220, 200)
    placed = [box for box in place(points, sizes, frame) if box is not None]
    assert len(placed) >= len(points) - 2
    markers = [Box.around(*p, 7, 7) for p in points]
    for i, box in enumerate(placed):
        assert box.inside(frame)
        assert not any(box.meets(other) for other in placed[:i] + markers)


def test_labels_do_not_cover_the_line():
    line = along([(0, 50), (100, 50)])
    (box,) = place([(50, 44)], [(8, 8)], Box(0, 0, 100, 100), line)
    assert not any(box.meets(b) for b in line)
