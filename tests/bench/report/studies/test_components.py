"""The study of the components of the feature map."""

from fedran.bench.report.studies.components import components_section
from helpers.made_up import components


def test_components_stand_beside_the_printed_figures():
    (table,) = components_section(components(1)).tables
    assert [row[-1].text for row in table.rows] == ["87.71", "90.21", "93.95", "93.96"]
    assert [c.text for c in table.columns[1:4]] == [
        *("λ by FedRAN's rule", "λ = 0.001", "λ = 1e+06")
    ]
