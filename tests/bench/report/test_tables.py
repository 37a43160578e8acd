"""The tables hold what was measured, beside what the paper prints."""

import pytest

from fedran_bench.report.tables import command, command_table, comparison_table, method_table
from fedran_bench.results.grouping import groups
from helpers.bench.made_up import heads, made_up, scratch


def cells(table, heading):
    """The cells of a column by the text of the first cell of their row."""
    at = [c.text for c in table.columns].index(heading)
    return {row[0].text: row[at] for row in table.rows}


def texts(table, heading):
    return {name: cell.text for name, cell in cells(table, heading).items()}


def test_a_row_shows_accuracy_bytes_seconds_and_forgetting():
    runs = [made_up("fedran", "FedRAN", seed=s, upload=3 * 2**20) for s in (1, 2)]
    table = method_table(groups(runs), "title")
    shown = {c.text: cell.text for c, cell in zip(table.columns, table.rows[0], strict=True)}
    assert float(shown["A_T, %"].split(" ± ")[0]) == pytest.approx(
        sum(r.A_T for r in runs) / 2, abs=0.01
    )
    assert shown["upload, MiB"] == "3.00"
    assert shown["seconds"] == "1.00"
    assert shown["seeds"] == "2"
    assert "forgetting" in shown
    assert "formula, MiB" not in shown, "columns without a value are left out"


def test_the_best_ranked_methods_are_marked_and_ties_share_a_mark():
    runs = [
        made_up(key, acc=[[v]], tasks=1, clients=5, test_rows=[100])
        for key, v in (("a", 0.5), ("bb", 0.9), ("ccc", 0.9), ("dddd", 0.7))
    ]
    joint = made_up("joint", acc=[[0.99]], tasks=1, family="reference")
    marks = {
        k: c.mark for k, c in cells(method_table(groups([*runs, joint]), ""), "A_T, %").items()
    }
    assert marks == {"a": "", "bb": "best", "ccc": "best", "dddd": "second", "joint": ""}


def test_the_papers_figures_stand_beside_the_methods_that_it_runs():
    runs = [made_up("fedran-paper"), made_up("stsa-e"), made_up("afl"), *heads(), *scratch()]
    printed = texts(method_table(groups(runs), ""), "printed A_avg / A_T")
    assert printed["fedran-paper"] == "76.54 / 67.33"
    assert printed["stsa-e"] == "71.74 / 64.21"
    assert printed["Finetune (from scratch)"] == "34.43 / 15.65"
    assert printed["afl"] == printed["Finetune (head)"] == "-", "the paper trains whole networks"
    elsewhere = method_table(groups([made_up("fedran-paper", clients=9)]), "")
    assert not any(c.printed for c in elsewhere.columns)


def test_a_short_table_keeps_the_known_and_the_best_methods():
    runs = [made_up(key) for key in ("fedran", "afl")]
    runs += [made_up(k, k, level=v) for k, v in (("odd", 0.1), ("better", 0.9), ("strange", 0.2))]
    table = method_table(groups(runs), "")
    assert len(table.brief().rows) == 5
    assert {row[0].text for row in table.brief(known=True).rows} == {"fedran", "afl", "better"}
    assert len(table.brief().columns) < len(table.columns)


def test_all_comparisons_name_the_best_other_method_with_its_upload():
    runs = [made_up("fedran", upload=2**20), made_up("afl", level=0.9), made_up("ncm", level=0.1)]
    (row,) = comparison_table(runs).rows
    assert row[1].text == f"{runs[0].A_T:.2f} (1.00)"
    assert row[2].text.startswith(f"afl: {runs[1].A_T:.2f} (")


def test_commands_are_listed_once_per_machine():
    runs = [made_up(seed=s, config="c.toml") for s in (1, 2)]
    runs.append(made_up(seed=3, arguments=["c.toml", "--set", "methods=a b"], machine="other"))
    rows = [[c.text for c in row] for row in command_table(runs).rows]
    assert [(row[0], row[2]) for row in rows] == [
        ("fedran bench run c.toml", "2"),
        ("fedran bench run c.toml --set 'methods=a b'", "1"),
    ]
    assert command(made_up(config="")) == "a command that is not recorded"
