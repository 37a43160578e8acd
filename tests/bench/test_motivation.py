"""The figure of drift, its cost, and bytes over rounds."""

import warnings

import pytest

from fedran.bench.report.figures.chart import legend_columns, line_styles, render
from fedran.bench.report.figures.motivation import VIT_B16, motivation_charts, vit_upload
from fedran.bench.report.figures.tasks import task_charts
from helpers.made_up import METHODS, made_up
from helpers.made_up_trained import all_trained, fedran, heads, scratch

pytest.importorskip("matplotlib")


def axes_of(chart):
    from matplotlib.figure import Figure

    figure = Figure(figsize=chart.size, layout="constrained")
    chart.draw(figure)
    return figure.axes


def lines(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_one_figure_a_setting_at_the_most_skewed_beta_with_drift():
    runs = [fedran(beta=0.1), *scratch(beta=0.5), *scratch(beta=1.0), fedran(beta=0.5)]
    (chart,) = motivation_charts(runs)
    assert "β = 0.5" in chart.caption
    assert "computed" in chart.caption
    assert "85,798,656" in chart.caption
    assert motivation_charts([fedran(), *heads()]) == []


def test_what_is_drawn_is_what_was_measured():
    (chart,) = motivation_charts([fedran(), *heads(10), *scratch(10)])
    left, middle, right = axes_of(chart)
    drawn = lines(left)
    assert list(drawn["FedRAN"].get_ydata()) == [0.0] * 4
    assert list(drawn["Finetune (from scratch)"].get_xdata()) == [2, 3, 4, 5]
    assert list(drawn["Finetune (from scratch)"].get_ydata()) == [0.0, 0.715, 1.04, 1.3]
    assert not any("head" in name for name in drawn)
    # A line, a ring and the other points for each of six networks and FedRAN.
    assert len(middle.lines) == 3 * 7
    sent = lines(right)
    assert set(sent) == {"linear head, measured", "ResNet-18, measured", "ViT-B/16, computed"}
    assert list(sent["ResNet-18, measured"].get_xdata()) == [1, 10, 20, 30, 40, 50]
    x, y = (sent["ViT-B/16, computed"].get_data()[i][-1] for i in (0, 1))
    assert y == pytest.approx(x * vit_upload(10) / 2**20)


def test_the_parameters_of_the_vision_transformer():
    d = 768
    block = (d * 3 * d + 3 * d) + (d * d + d) + (d * 4 * d + 4 * d) + (4 * d * d + d) + 4 * d
    patches, positions, token, norm = 16 * 16 * 3 * d + d, 197 * d, d, 2 * d
    assert 12 * block + patches + positions + token + norm == VIT_B16
    assert vit_upload(0) == 4 * VIT_B16


def test_one_network_makes_one_line_and_old_results_two_panels():
    old = [made_up(), *scratch(10, reference_acc=[])]
    left, right = axes_of(motivation_charts(old)[0])
    assert set(lines(right)) == {"ResNet-18, measured", "ViT-B/16, computed"}
    assert left.get_ylabel().startswith("drift")
    (chart,) = motivation_charts(scratch(10))
    assert "FedRAN" not in lines(axes_of(chart)[0])


def test_it_draws_without_a_warning_and_names_are_text():
    odd = made_up(
        *("finetune", "$\\frac{<script>\x1b"),
        family="trained",
        drift=[0.0, 1.0],
        reference_acc=[0.5],
        params={"network": "_<script>$"},
    )
    old = made_up("finetune", "_bare", family="trained", drift=[0, 1, 2, 3], tasks=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for runs in (all_trained(), [odd, fedran()], [old], [made_up(**m) for m in METHODS]):
            for chart in motivation_charts(runs):
                svg, png = render(chart)
                assert "<script" not in svg
                assert png.startswith(b"\x89PNG")


def test_no_two_of_many_methods_look_the_same():
    runs = [made_up(f"k{i}", f"method {i}") for i in range(60)]
    styles = line_styles(runs).values()
    assert len({(s.colour, s.marker) for s in styles}) == 60


def test_long_names_take_fewer_columns():
    assert legend_columns(6.2, [], 3) == 3
    assert legend_columns(1.0, ["x" * 50], 3) == 1
    runs = [*scratch(), *scratch(beta=0.5)]
    (chart,) = task_charts(runs)
    svg, _ = render(chart)
    assert "FedEWC (from scratch, as published)" in svg
