"""Drift: its tables, its cost in accuracy, and bytes over rounds."""

import warnings

import pytest

from fedran.bench.report.drift import VIT_B16, drift_charts, drift_tables, vit_upload
from fedran.bench.report.figures.chart import render
from helpers.made_up import made_up
from helpers.made_up_trained import all_trained, fedran, heads, scratch
from helpers.report_tables import column, texts

pytest.importorskip("matplotlib")
ACCURACY = "accuracy on the reference rows after, %"


def axes_of(chart):
    from matplotlib.figure import Figure

    figure = Figure(figsize=chart.size, layout="constrained")
    chart.draw(figure)
    return figure.axes


def lines(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_each_setting_has_one_figure_at_the_most_skewed_beta_with_drift():
    runs = [fedran(beta=0.1), *scratch(beta=0.5), *scratch(beta=1.0), fedran(beta=0.5)]
    (chart,) = drift_charts(runs)
    assert "β = 0.5" in chart.caption
    assert "computed from the parameters of ViT-B/16 (85,798,656" in chart.note
    assert drift_charts([fedran(), *heads()]) == []


def test_the_lines_of_the_drift_figure_show_the_measurements():
    (chart,) = drift_charts([fedran(), *heads(10), *scratch(10)])
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


def test_the_parameters_of_the_vision_transformer_add_up():
    d = 768
    block = (d * 3 * d + 3 * d) + (d * d + d) + (d * 4 * d + 4 * d) + (4 * d * d + d) + 4 * d
    patches, positions, token, norm = 16 * 16 * 3 * d + d, 197 * d, d, 2 * d
    assert 12 * block + patches + positions + token + norm == VIT_B16
    assert vit_upload(0) == 4 * VIT_B16


def test_without_reference_accuracy_there_are_two_panels():
    left, right = axes_of(drift_charts([made_up(), *scratch(10, reference_acc=[])])[0])
    assert set(lines(right)) == {"ResNet-18, measured", "ViT-B/16, computed"}
    assert left.get_ylabel().startswith("drift")


def test_without_fedran_the_drift_figure_has_no_line_for_it():
    (chart,) = drift_charts(scratch(10))
    assert "FedRAN" not in lines(axes_of(chart)[0])


def test_the_drift_figure_is_drawn_without_a_warning():
    bare = made_up("finetune", "_bare", family="trained", drift=[0, 1, 2, 3], tasks=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for runs in (all_trained(), [bare]):
            for chart in drift_charts(runs):
                assert render(chart)[1].startswith(b"\x89PNG")


def test_drift_and_accuracy_on_the_reference_rows_of_trained_methods_and_fedran():
    (table,) = drift_tables([fedran(), made_up("afl"), *heads(), *scratch()])
    last = texts(table, "drift after the last task")
    assert (last["Finetune (from scratch)"], last["FedRAN"]) == ("1.3", "0")
    assert "afl" not in last
    accuracy = texts(table, "the last task", ACCURACY)
    assert (accuracy["FedRAN"], accuracy["Finetune (head)"]) == ("84.0", "30.0")


def test_results_without_reference_accuracy_have_dashes():
    (table,) = drift_tables([made_up(), *scratch(reference_acc=[])])
    assert {c.text for c in column(table, "the last task", ACCURACY).values()} == {"-"}


def test_without_drift_there_is_no_drift_table():
    assert drift_tables([fedran(), *heads()]) == []
