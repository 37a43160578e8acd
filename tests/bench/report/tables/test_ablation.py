"""Tables of label rate, rank and width, and components."""

from fedran.bench.report.tables.ablation import component_tables, label_tables, rank_tables
from helpers.made_up import components, label_rates, ranks
from helpers.report_tables import texts


def test_label_rates_show_the_quality_of_pseudo_labels_and_the_papers_gain():
    (table,) = label_tables(label_rates(1))
    assert [c.text for c in table.rows[1][5:7]] == ["80.0 %", "90.0 %"]
    assert "+3.26" in table.note


def test_each_method_has_its_table_of_ranks():
    tables = rank_tables(ranks(1))
    assert [t.title.split(";")[0] for t in tables] == ["fedran", "fedran-paper"]
    assert texts(tables[0], "Gram error")["8192"] == f"{1 / 1024:.3g}"


def test_components_stand_beside_the_printed_figures():
    (table,) = component_tables(components(1))
    assert [row[-1].text for row in table.rows] == ["87.71", "90.21", "93.95", "93.96"]
    assert [c.text for c in table.columns[1:4]] == [
        *("λ by FedRAN's rule", "λ = 0.001", "λ = 1e+06")
    ]
