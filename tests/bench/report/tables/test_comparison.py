"""One row per setting and beta: our messages, two references, and the best other method."""

from fedran.bench.report.tables.comparison import comparison_table
from helpers.made_up import METHODS, comparison, made_up
from helpers.report_tables import texts


def test_the_table_of_all_comparisons_shows_our_messages_and_the_best_other_method():
    table = comparison_table(comparison(seeds=(1,), betas=(0.1,), datasets=("digits",))[:12])
    best = made_up(**{**METHODS[5], "dataset": "digits"})
    assert list(texts(table, "best other method").values()) == [f"AFL: {best.A_T:.2f} (6.96)"]
    assert [c.text for c in table.columns] == [
        *("setting", "β", "FedRAN", "FedRAN-paper", "Exact Gram", "best other method")
    ]
