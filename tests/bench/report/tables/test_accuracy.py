"""The accuracy tables: order, ranks, seeds, and the figures of the paper."""

from fedran.bench.report.tables.accuracy import accuracy_tables, comparison_table
from fedran.bench.results.grouping import comparisons
from helpers.made_up import METHODS, comparison, components, label_rates, made_up, ranks
from helpers.made_up_trained import heads, scratch, speedup
from helpers.report_tables import column, texts

PRINTED = "Printed in the paper: CIFAR-100 with ResNet-18"


def test_references_and_yardsticks_are_shown_last_and_not_ranked():
    (table,) = accuracy_tables([made_up(**m, dataset="digits") for m in METHODS])
    cells = column(table, "A_avg")
    assert {name: c.mark for name, c in cells.items() if c.mark} == {
        "Exact Gram": "best",
        "FedRAN": "second",
    }
    assert list(cells)[-3:] == ["Joint training", "Send float32 features", "Send 8-bit features"]


def test_each_beta_has_its_columns_and_is_ranked_separately():
    levels = {"a": {0.1: 0.9, 1.0: 0.5}, "b": {0.1: 0.7, 1.0: 0.6}}
    runs = [made_up(k, beta=b, level=v) for k, by in levels.items() for b, v in by.items()]
    table = accuracy_tables(runs)[0]
    assert [c.mark for c in column(table, "A_avg", "β = 0.1").values()] == ["best", "second"]
    assert [c.mark for c in column(table, "A_T", "β = 1").values()] == ["second", "best"]


def test_a_method_that_was_not_run_at_a_beta_has_a_dash():
    table = accuracy_tables([made_up("a", beta=0.1), made_up("b", beta=1.0)])[0]
    assert texts(table, "A_avg", "β = 1")["a"] == "-"


def test_every_setting_has_its_own_table():
    tables = accuracy_tables(comparison(seeds=(1,), betas=(0.1,)))
    assert [t.title for t in tables if not t.title.startswith("Printed")] == [
        "All methods: CIFAR-100, EfficientNet-Lite0: 5 tasks, 5 clients, dirichlet split",
        "All methods: VTAB-50, ViT-S/14: 5 tasks, 5 clients, dirichlet split",
        "All methods: CIFAR-100, EfficientNet-Lite0: 5 tasks, 100 clients, dirichlet split",
    ]


def test_the_note_names_the_rows_with_another_number_of_seeds():
    runs = [made_up(key, seed=s) for key in ("a", "c") for s in (1, 2)] + [made_up("b")]
    assert accuracy_tables(runs)[0].note.startswith(
        "Mean ± sample standard deviation over 2 seeds, except 1 seed: b. "
    )
    uneven = [made_up("a", beta=b, seed=s) for b, s in ((0.1, 1), (0.1, 2), (1.0, 1))]
    assert accuracy_tables([*uneven, *runs])[0].note.count("except 1 seed: b; a (β = 1). ") == 1


def test_a_row_ends_with_the_largest_upload_of_all_betas_and_the_mean_seconds():
    runs = [
        made_up("a", beta=b, upload=n * 2**20, client=c, server=1.0)
        for b, n, c in ((0.1, 2, 0.0), (1.0, 3, 2.0))
    ]
    table = accuracy_tables(runs)[0]
    assert texts(table, "largest upload, MiB") == {"a": "3.00"}
    assert texts(table, "seconds per task") == {"a": "2.20"}  # clients take 0.2 s more on average
    assert "any client, task, seed and β" in table.note
    assert "indicative" not in table.note
    assert "indicative" in accuracy_tables([made_up(side_by_side=2)])[0].note


def test_the_papers_figures_are_muted_and_never_ranked():
    measured, printed = accuracy_tables([made_up(**m) for m in METHODS])
    assert not any(c.muted for row in measured.rows for c in row)
    assert printed.title == PRINTED
    assert texts(printed, "A_avg", "β = 0.1")["FedRAN"] == "76.54"
    assert texts(printed, "A_avg", "β = 0.1")["TARGET"] == "48.61"
    assert all(c.muted and not c.mark for row in printed.rows for c in row)
    assert "not measured here" in printed.note


def test_networks_that_were_trained_as_long_as_in_the_paper_stand_beside_its_figures():
    full = [r for r in scratch(100, beta=0.5) if r.key != "target"]
    printed = accuracy_tables([*full, *scratch(12, beta=0.1)])[-1]
    measured = texts(accuracy_tables(full)[0], "A_T", "β = 0.5")
    assert texts(printed, "here A_T", "β = 0.5") == {
        **{
            m: measured[f"{m} (from scratch)"] for m in ("Finetune", "FedLwF", "FedEWC", "FediCaRL")
        },
        "TARGET": "not run",
        "STSA": "-",
        "FedRAN": "-",
    }
    assert "trained from scratch for 100 rounds per task" in printed.note
    assert [c.text for c in printed.columns].count("here A_T") == 1  # none at β = 0.1


def test_two_lengths_of_training_are_told_apart_by_their_rounds():
    names = texts(accuracy_tables([*scratch(100), *scratch(12)])[0], "A_T")
    assert {"Finetune (from scratch), 12 rounds", "Finetune (from scratch), 100 rounds"} < {*names}


def test_analytic_methods_come_first_then_heads_then_networks_then_references():
    analytic = [made_up(**m) for m in METHODS if m["key"] != "finetune"]
    ranked = [m["label"] for m in METHODS if m["key"] != "finetune" and "family" not in m]
    for runs in (analytic + scratch() + heads(), heads() + analytic + scratch()):
        names = list(column(accuracy_tables(runs)[0], "A_avg"))
        n = len(ranked)
        assert names[:n] == ranked
        assert [name.endswith("(head)") for name in names[n : n + 6]] == [True] * 5 + [False]
        assert names[n + 5 : -3] == [r.label for r in scratch()]
        assert names[-3:] == ["Joint training", "Send float32 features", "Send 8-bit features"]


def test_ablations_stay_out_of_the_comparison():
    assert accuracy_tables(label_rates(1) + ranks(1) + components(1)) == []


def test_a_run_for_the_speed_up_counts_only_if_the_method_has_no_other_run():
    names = set(column(accuracy_tables([*scratch(100), *speedup(2)])[0], "A_avg"))
    assert {"Finetune (from scratch)", "Finetune (head)"} < names
    assert not any("n_rounds" in name for name in names)
    assert len(comparisons(speedup(2))) == len(speedup(2))


def test_the_table_of_all_comparisons_shows_our_messages_and_the_best_other_method():
    table = comparison_table(comparison(seeds=(1,), betas=(0.1,), datasets=("digits",))[:12])
    best = made_up(**{**METHODS[5], "dataset": "digits"})
    assert list(texts(table, "best other method").values()) == [f"AFL: {best.A_T:.2f} (6.96)"]
    assert [c.text for c in table.columns] == [
        *("setting", "β", "FedRAN", "FedRAN-paper", "Exact Gram", "best other method")
    ]
