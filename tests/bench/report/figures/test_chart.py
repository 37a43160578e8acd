"""Rendering of figures: bytes, file names, styles, legends, hostile names."""

import sys
import warnings

import pytest

from fedran.bench.report.figures.ablation import component_charts
from fedran.bench.report.figures.accuracy_bytes import accuracy_bytes_charts
from fedran.bench.report.figures.chart import (
    fit_legend,
    inline,
    method_styles,
    render,
    slug,
    unique,
)
from fedran.bench.report.figures.curves import round_charts, task_charts
from fedran.bench.report.figures.drift import drift_charts
from fedran.bench.report.sections import sections
from helpers.made_up import comparison, made_up, studies

pytest.importorskip("matplotlib")


def test_the_same_results_give_the_same_bytes():
    runs = comparison(seeds=(1, 2), betas=(0.1,))[:24]
    for first, again in zip(accuracy_bytes_charts(runs), accuracy_bytes_charts(runs), strict=True):
        assert render(first) == render(again)


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
    charts = [*task_charts(runs), *accuracy_bytes_charts(runs), *round_charts(runs)]
    charts += drift_charts([drifting])
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


def test_no_two_of_many_methods_look_the_same():
    runs = [made_up(f"k{i}", f"method {i}") for i in range(60)]
    styles = method_styles(runs).values()
    assert len({(s.colour, s.marker) for s in styles}) == 60


def test_a_legend_with_long_names_has_fewer_columns_and_is_higher():
    assert fit_legend(6.2, [], 3)[0] == 3
    assert fit_legend(1.0, ["x" * 50], 3)[0] == 1
    assert fit_legend(6.2, ["x" * 36] * 6, 3)[1] > fit_legend(6.2, ["x"] * 6, 3)[1]


def test_the_ablations_are_drawn():
    drawn = [c for s in sections(studies(seeds=(1, 2))) for c in s.charts]
    assert {c.slug.split("-")[0] for c in drawn} == {"labels", "rank", "components"}
    for c in drawn:
        assert len(render(c)[1]) > 5000


def test_components_that_the_paper_does_not_print_are_drawn_without_a_printed_value():
    features = {"features": "random", "out_features": 1250, "lam": None}
    runs = [
        made_up("exact", params={**features, "kind": kind}, study="components")
        for kind in ("cosine", "relu", "hellinger")
    ]
    (chart,) = component_charts(runs)
    assert render(chart)[0].count("printed (ViT-B/16)") == 1


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"install fedran's extra 'report'"):
        render(task_charts([made_up()])[0])
