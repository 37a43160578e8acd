"""The study of few labels."""

from fedran.bench.report.studies.labels import labels_section
from helpers.made_up import label_rates


def test_label_rates_show_the_quality_of_pseudo_labels_and_the_papers_gain():
    (table,) = labels_section(label_rates(1)).tables
    assert [c.text for c in table.rows[1][5:7]] == ["80.0 %", "90.0 %"]
    assert "+3.26" in table.note
