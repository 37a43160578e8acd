"""The study of rank and width."""

from fedran.bench.report.studies.rank import rank_section
from helpers.made_up import ranks
from helpers.report_tables import texts


def test_each_method_has_its_table_of_ranks():
    tables = rank_section(ranks(1)).tables
    assert [t.title.split(";")[0] for t in tables] == ["fedran", "fedran-paper"]
    assert texts(tables[0], "Gram error")["8192"] == f"{1 / 1024:.3g}"
