"""The page on differential privacy: budgets, honest clients, and the runs without noise."""

from fedran.bench.report.figures.chart import render
from fedran.bench.report.pages import make_pages
from fedran.bench.report.studies.privacy import privacy_section
from helpers.made_up import made_up
from helpers.report_tables import first_cells


def runs():
    noisy = [
        made_up(
            "fedran-dp",
            f"epsilon {e:g}, {honest}",
            level=0.5 + e / 20 - (0.1 if honest else 0.0),
            study="privacy",
            params={"epsilon": e, "honest": honest},
        )
        for e in (8.0, 1.0)
        for honest in (None, 3)
    ]
    return [*noisy, made_up("exact", "Exact", level=0.95, study="privacy")]


def test_rows_are_ordered_by_budget_and_end_without_noise():
    (table,) = privacy_section(runs()).tables
    assert [(row[0].text, row[1].text) for row in table.rows] == [
        ("8", "5 of 5 clients honest"),
        ("8", "3 of 5 clients honest"),
        ("1", "5 of 5 clients honest"),
        ("1", "3 of 5 clients honest"),
        ("no noise", "Exact"),
    ]
    accuracies = [float(row[3].text) for row in table.rows]
    assert accuracies[4] > accuracies[0] > accuracies[1] > accuracies[2] > accuracies[3]


def test_the_page_has_a_verdict_and_a_figure_and_stays_out_of_the_comparisons():
    index, dataset, page = make_pages([*runs(), made_up("fedran"), made_up("afl")], "x")
    assert (page.slug, page.title) == ("privacy", "Differential privacy")
    (line,) = page.verdict
    assert line.startswith("CIFAR-100, EfficientNet-Lite0, after the last task: ")
    assert line.index("ε = 8") < line.index("ε = 1") < line.index("without privacy")
    assert not any("epsilon" in name for name in first_cells(index, dataset))


def test_the_figure_shows_every_line_and_the_runs_without_noise():
    (chart,) = privacy_section(runs()).charts
    svg, _ = render(chart, png=False)
    for text in ("5 of 5 clients honest", "3 of 5 clients honest", "Exact", "privacy budget ε"):
        assert text in svg
