"""Figures: what they show, that labels keep apart, that bytes repeat."""

import sys

import numpy as np
import pytest

from fedran.bench.report.figures.chart import inline, render, slug, unique
from fedran.bench.report.figures.front import front, front_charts
from fedran.bench.report.figures.label_layout import Box, along, place
from fedran.bench.report.figures.rounds import round_charts, uploads
from fedran.bench.report.figures.tasks import task_charts
from fedran.bench.report.sections import sections
from helpers.made_up import METHODS, comparison, made_up, studies

pytest.importorskip("matplotlib")


def test_the_front_is_what_nothing_beats():
    rng = np.random.default_rng(0)
    points = [tuple(p) for p in rng.random((50, 2))]
    best = {
        (x, y)
        for x, y in points
        if not any((a <= x and b >= y) and (a, b) != (x, y) for a, b in points)
    }
    assert set(front(points)) == best


@pytest.mark.parametrize("seed", range(5))
def test_placed_labels_do_not_overlap(seed):
    points = [tuple(p) for p in 60 + 90 * np.random.default_rng(seed).random((20, 2))]
    sizes = [(12.0, 9.5)] * len(points)
    frame = Box(0, 0, 220, 200)
    placed = [Box.around(*p, *s) for p, s in zip(place(points, sizes, frame), sizes, strict=True)]
    markers = [Box.around(*p, 7, 7) for p in points]
    for i, box in enumerate(placed):
        assert box.inside(frame)
        assert not any(box.meets(other) for other in placed[:i] + markers)


def test_labels_keep_off_the_line():
    line = along([(0, 50), (100, 50)])
    ((x, y),) = place([(50, 44)], [(8, 8)], Box(0, 0, 100, 100), line)
    assert not any(Box.around(x, y, 8, 8).meets(b) for b in line)


def test_uploads_add_up_over_rounds():
    r = made_up(upload=1000, rounds=10, tasks=3, clients=2)
    assert uploads(r) == ([10, 20, 30], [800.0, 1600.0, 2400.0])


def test_the_printed_line_says_that_it_is_printed():
    runs = [made_up(**m) for m in METHODS[:2]]
    svg, _ = render(round_charts(runs)[0])
    assert "printed by the paper" in svg
    svg, _ = render(round_charts([made_up(dataset="digits")])[0])
    assert "printed" not in svg


def test_every_method_is_in_the_legend_even_if_missing_in_one_panel():
    runs = [made_up("a", beta=0.1), made_up("b", beta=1.0)]
    svg, _ = render(task_charts(runs)[0])
    assert ">a</text>" in svg
    assert ">b</text>" in svg


def test_same_results_same_bytes():
    runs = comparison(seeds=(1, 2), betas=(0.1,))[:24]
    for first, again in zip(front_charts(runs), front_charts(runs), strict=True):
        assert render(first) == render(again)


def test_hostile_labels_are_drawn_as_text():
    labels = ["$\\frac{", "_hidden", "<script>x</script>", "a\x00b\x1b", "漢字", "x" * 5000]
    runs = [made_up(f"k{i}", name, level=0.5 + i / 20) for i, name in enumerate(labels)]
    for chart in task_charts(runs) + front_charts(runs) + round_charts(runs):
        svg, png = render(chart)
        assert "<script" not in svg
        assert "\x00" not in svg
        assert "_hidden" in svg
        assert png.startswith(b"\x89PNG")


def test_ids_and_ink_are_the_pages():
    chart = task_charts([made_up()])[0]
    body = inline(render(chart)[0], "some-name")
    assert 'id="figure_1"' not in body
    assert "currentColor" in body
    assert "#1c1e21" not in body
    assert "<metadata" not in body
    assert body.startswith('<svg role="img"')


def test_file_names_are_plain_and_different():
    assert slug("a/../b", "<x>") == "a-.-b-x"
    charts = task_charts([made_up(dataset=d) for d in ("a b", "a-b")])
    assert [c.slug for c in charts] == [charts[0].slug, charts[0].slug + "-2"]
    assert len({c.slug for c in unique(charts)}) == 2


def test_all_sections_draw():
    drawn = [c for s in sections(studies(seeds=(1, 2))) for c in s.charts]
    assert {c.slug.split("-")[0] for c in drawn} == {"labels", "rank", "components"}
    for c in drawn:
        assert len(render(c)[1]) > 5000


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'fedran\[report\]'"):
        render(task_charts([made_up()])[0])
