"""Rendering of figures: bytes, file names, styles, legends, hostile names."""

import sys
import warnings
from dataclasses import replace

import pytest

from fedran.bench.report.drift import drift_charts
from fedran.bench.report.figures.accuracy_bytes import accuracy_bytes_charts
from fedran.bench.report.figures.chart import (
    NARROW,
    fit_legend,
    inline,
    method_styles,
    panels,
    render,
    slug,
    unique,
)
from fedran.bench.report.figures.curves import task_charts
from fedran.bench.report.pages import make_pages
from fedran.bench.report.studies.components import components_section
from fedran.bench.report.verdict import HIGHLIGHTED
from fedran.bench.results.grouping import groups
from helpers.made_up import comparison, made_up, studies
from helpers.made_up_trained import heads, scratch
from helpers.made_up_vit import vit

pytest.importorskip("matplotlib")


def test_hostile_labels_are_drawn_as_text_without_a_warning():
    labels = ["$\\frac{", "_hidden", "<script>x</script>", "a\x00b\x1b", "漢字", "x" * 5000]
    runs = [made_up(f"k{i}", name, level=0.5 + i / 20) for i, name in enumerate(labels)]
    drifting = made_up(
        *("finetune", "_hidden $\\frac{<script>\x1b"),
        family="trained",
        drift=[0.0, 1.0],
        reference_acc=[0.5],
        params={"network": "_<script>$"},
    )
    charts = [*accuracy_bytes_charts(runs), *drift_charts([drifting])]
    charts += task_charts(runs[1:2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for chart in charts:
            svg, png = render(chart)
            assert "<script" not in svg
            assert "\x00" not in svg
            assert "_hidden" in svg
            assert png.startswith(b"\x89PNG")


def test_inline_svg_takes_ids_and_colours_from_the_page():
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


def test_the_best_of_each_kind_has_its_own_look_and_the_others_have_none():
    runs = [*comparison(seeds=(1,), betas=(0.1,))[:12], *vit(betas=(0.1,)), *scratch(), *heads()]
    styles = method_styles(groups([replace(r, dataset="x") for r in runs]))
    assert len(styles) == len(set(styles.values())) == HIGHLIGHTED
    assert "Nearest mean" not in styles


def test_a_narrow_drawing_has_its_panels_in_a_column():
    from matplotlib.figure import Figure

    wide, narrow = (panels(Figure(figsize=(w, 5.0)), 2) for w in (9.0, NARROW))
    assert [ax.get_subplotspec().colspan.start for ax in wide] == [0, 1]
    assert [ax.get_subplotspec().rowspan.start for ax in narrow] == [0, 1]


def test_every_figure_can_be_drawn_wide_and_narrow():
    pages = make_pages([*studies(seeds=(1, 2)), *vit(), *scratch()], "x")
    charts = {c.slug: c for page in pages for s in page.sections for c in s.charts}
    assert {slug.split("-")[0] for slug in charts} == {
        *("bytes", "tasks", "labels", "rank", "components", "drift")
    }
    for chart in {name.split("-")[0]: c for name, c in charts.items()}.values():
        assert len(render(chart)[1]) > 5000
        size = (NARROW, chart.narrow_height)
        assert len(render(replace(chart, size=size), png=False)[0]) > 5000


def test_a_legend_with_long_names_has_fewer_columns_and_is_higher():
    assert fit_legend(6.2, [])[0] == 4
    assert fit_legend(1.0, ["x" * 50])[0] == 1
    assert fit_legend(6.2, ["x" * 36] * 6)[1] > fit_legend(6.2, ["x"] * 6)[1]


def test_components_that_the_paper_does_not_print_are_drawn_without_a_printed_value():
    features = {"features": "random", "out_features": 1250, "lam": None}
    runs = [
        made_up("exact", params={**features, "kind": kind}, study="components")
        for kind in ("cosine", "relu", "hellinger")
    ]
    (chart,) = components_section(runs).charts
    assert render(chart)[0].count("printed (ViT-B/16)") == 1


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"install fedran's extra 'report'"):
        render(task_charts([made_up()])[0])
