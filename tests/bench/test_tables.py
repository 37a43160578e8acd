"""Grouping, ranking and the tables of the report."""

import re

import numpy as np
import pytest

from fedran.bench.report.markdown import markdown_page, markdown_table
from fedran.bench.report.page import html_table
from fedran.bench.report.paper import COMMUNICATION, RESNET, VIT, printed
from fedran.bench.report.tables.ablation import component_tables, label_tables, rank_tables
from fedran.bench.report.tables.accuracy import accuracy_tables
from fedran.bench.report.tables.bytes import communication_tables
from fedran.bench.report.tables.memory import forgetting_details, forgetting_tables
from fedran.bench.report.tables.provenance import provenance_table
from fedran.bench.report.tables.table import Cell, Column, Table
from fedran.bench.report.tables.time import runtime_tables
from fedran.bench.results.grouping import groups, marks, stat
from helpers.made_up import METHODS, comparison, components, label_rates, made_up, ranks

HOSTILE = "<script>alert('x')</script>\"&|*_b_*\x1b[31m\n\u202e" + "long " * 200


def column(table, name, group=None):
    places = [
        i
        for i, c in enumerate(table.columns)
        if c.text == name and (group is None or c.group == group)
    ]
    return {row[0].text: row[places[0]] for row in table.rows}


def test_mean_and_spread_are_numpys():
    found = groups([made_up(seed=s, level=0.5 + s / 50) for s in range(4)])
    values = [made_up(seed=s, level=0.5 + s / 50).A_avg for s in range(4)]
    s = found[0].stat(lambda r: r.A_avg)
    assert (s.mean, s.spread, s.n) == (np.mean(values), np.std(values, ddof=1), 4)
    assert stat([3.0]).spread is None
    assert stat([]) is None


def test_ties_are_all_marked_and_only_competitors_rank():
    assert marks([1.0, 2.0, 2.001, 0.5], [True] * 4) == ["second", "best", "best", ""]
    assert marks([1.0, 9.0, None], [True, False, True]) == ["best", "", ""]
    assert marks([], []) == []


def test_references_and_yardsticks_are_shown_but_not_ranked():
    (table,) = accuracy_tables([made_up(**m, dataset="digits") for m in METHODS])
    cells = column(table, "A_avg")
    assert {"Joint training", "Send 8-bit features"} < set(cells)
    assert {name: c.mark for name, c in cells.items() if c.mark} == {
        "Exact Gram": "best",
        "FedRAN": "second",
    }
    assert list(cells)[-3:] == ["Joint training", "Send float32 features", "Send 8-bit features"]


def test_each_beta_is_ranked_by_itself():
    a = [made_up("a", beta=b, level=v) for b, v in ((0.1, 0.9), (1.0, 0.5))]
    b = [made_up("b", beta=b, level=v) for b, v in ((0.1, 0.7), (1.0, 0.6))]
    (table,) = accuracy_tables(a + b)
    own = [(row[0].text, row[1].text, row[2].mark) for row in table.rows if not row[0].muted]
    assert own == [
        ("a", "0.1", "best"),
        ("a", "1", "second"),
        ("b", "0.1", "second"),
        ("b", "1", "best"),
    ]


def test_settings_are_kept_apart_and_datasets_side_by_side():
    tables = accuracy_tables(comparison(seeds=(1,), betas=(0.1,)))
    assert [t.title for t in tables] == [
        "5 tasks, 5 clients, dirichlet split",
        "cifar100-efficientnet_lite0: 5 tasks, 100 clients, dirichlet split",
    ]
    assert {c.group for c in tables[0].columns} >= {"cifar100-efficientnet_lite0", "vtab50-vit_s14"}


def test_a_seed_counts_once():
    twice = [
        made_up(seed=1, config="a.toml"),
        made_up(seed=1, config="b.toml", date="2026-12-01"),
        made_up(seed=2, config="a.toml"),
    ]
    (g,) = groups(twice)
    assert len(g.results) == 2
    assert {r.config for r in g.results} == {"a.toml", "b.toml"}


def test_one_label_with_two_settings_becomes_two_names():
    found = groups([made_up(label="F", params={"rank": r, "M": 8}) for r in (16, 32)])
    assert [g.name for g in found] == ["F (rank=16)", "F (rank=32)"]


def test_unequal_numbers_of_seeds_are_said_in_the_cell():
    (table,) = accuracy_tables([made_up("a", seed=s) for s in (1, 2)] + [made_up("b")])
    texts = [row[2].text for row in table.rows if not row[0].muted]
    assert texts[0].endswith("(n=2)")
    assert texts[1].endswith("(n=1)")


def test_printed_figures_are_muted_and_never_ranked():
    (table,) = accuracy_tables([made_up(**m) for m in METHODS])
    head = "CIFAR-100, printed (ResNet-18)"
    told = column(table, "A_avg", head)
    assert told["FedRAN"].text == "76.54"
    assert told["STSA-E"].text == "71.74"
    assert all(c.muted and not c.mark for c in told.values())
    assert "TARGET (printed, not run)" in told
    assert "Finetune (printed, not run)" not in told


def test_the_papers_tables_are_whole():
    assert all(set(row) == {"CIFAR-100", "ImageNet-R", "VTAB"} for row in RESNET.values())
    assert all(set(row) == {"CIFAR-100", "ImageNet-R"} for row in VIT.values())
    # The arithmetic behind tab:comm_cost: 8 bytes a number, MiB, all classes.
    for name, (rank, classes) in {"CIFAR-100": (2048, 100), "VTAB": (512, 50)}.items():
        size = (8192 * rank + rank + 8192 * classes) * 8 / 2**20
        assert round(size, 2) == COMMUNICATION["FedRAN"][name]
    assert printed("cifar100-vit", 10, 5).pair("FedRAN", 0.5) == (93.91, 89.90)
    assert printed("cifar100-vit", 10, 5).seconds("FedRAN") is None
    assert printed("imagenet-r-vit", 10, 5).backbone == "ViT-B/16"
    assert printed("digits", 5, 5) is None


def test_both_ratios_of_fedran_are_told():
    tables = communication_tables([made_up(**m) for m in METHODS])
    cells = [c.text for c in tables[0].rows[0]]
    ours, theirs = 1_110_000, 67_780_000
    assert cells[2:] == [
        f"{ours / 2**20:.2f}",
        "134.27",
        f"{134.27 * 2**20 / ours:.0f}x",
        f"{theirs / 2**20:.2f}",
        f"{theirs / ours:.3g}x",
    ]
    assert column(tables[1], "ratio to FedRAN")["FedRAN"].text == "1x"
    assert column(tables[1], "formula")["FedRAN-paper"].text == "134.27"


def test_machines_are_not_mixed():
    runs = [made_up(seed=s, machine=m) for s in (1, 2) for m in ("laptop", "server")]
    (table,) = runtime_tables(runs)
    assert sorted(row[-1].text for row in table.rows) == ["laptop", "server"]
    assert table.rows[0][1].text == "1.00 ± 0.00"


def test_runs_side_by_side_are_left_out():
    shared = [made_up(key, side_by_side=4) for key in ("a", "b")]
    (table,) = runtime_tables([*shared, made_up("a", seed=2)])
    assert [(row[0].text, row[-1].text) for row in table.rows] == [("a", "Linux x86_64")]
    assert runtime_tables(shared) == []


def test_drift_and_budgets():
    tables = forgetting_tables([made_up(**m) for m in METHODS])
    drift = column(tables[0], "drift")
    assert drift["FedRAN"].text == "0 (frozen)"
    assert drift["Finetune"].text == "0.5"
    assert column(tables[0], "budgets")["Finetune"].text == "bytes missed by 1 of 1 runs, drift met"
    assert [t.collapsed for t in forgetting_details([made_up()])] == [True, True]


def test_worst_classes_are_named():
    right = [[50, 40], [10, 40, 50, 50]]
    r = made_up(tasks=2, class_right=right, class_rows=[50] * 4)
    worst = next(t for t in forgetting_details([r]) if "most forgotten" in t.title)
    assert [c.text for c in worst.rows[0][1:4]] == [
        "80.0, -80.0 (class 0, t1)",
        "0.0, +0.0 (class 1, t1)",
        "-",
    ]


def test_studies_fill_their_tables():
    (labels,) = label_tables(label_rates(1))
    assert [c.text for c in labels.rows[1][5:7]] == ["80.0 %", "90.0 %"]
    assert "+3.26" in labels.note
    tables = rank_tables(ranks(1))
    assert [t.title.split(";")[0] for t in tables] == ["fedran", "fedran-paper"]
    assert column(tables[0], "Gram error")["8192"].text == f"{1 / 1024:.3g}"
    (parts,) = component_tables(components(1))
    assert [row[-1].text for row in parts.rows] == ["87.71", "90.21", "93.95", "93.96"]
    assert [c.text for c in parts.columns[1:4]] == ["λ by our rule", "λ = 0.001", "λ = 1e+06"]


def test_studies_stay_out_of_the_comparison():
    assert accuracy_tables(label_rates(1) + ranks(1) + components(1)) == []


def test_provenance_names_command_seeds_and_ids():
    r = [made_up(seed=s) for s in (1, 2)]
    (row,) = provenance_table(r).rows
    texts = [c.text for c in row]
    assert "fedran run configs/paper/accuracy.toml" in texts
    assert "order, partition 1, 2; projection 0" in texts
    assert ", ".join(x.run_id[:8] for x in r) in texts


@pytest.mark.parametrize("render", [html_table, markdown_table])
def test_hostile_strings_are_text(render):
    table = Table(HOSTILE, [Column(HOSTILE), Column("b", group=HOSTILE)], [[[Cell(HOSTILE)] * 2]])
    out = render(table)
    assert "<script" not in out
    assert "&lt;script&gt;" in out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", out)


def test_html_head_spans_groups_and_blocks():
    columns = [Column("m"), Column("x", "g"), Column("y", "g")]
    out = html_table(Table("t", columns, [[[Cell("a")] * 3, [Cell("a")] * 3]]))
    assert 'colspan="2"' in out
    assert out.count('rowspan="2"') == 2
    assert out.count("<th") == 4 + 2  # thead counts too


def test_markdown_tables_are_well_formed():
    page = markdown_page([*comparison(seeds=(1,)), made_up(label=HOSTILE, params={"h": 1})])
    width = None
    for line in page.splitlines():
        if not line.startswith("|"):
            width = None
            continue
        width = width or line.count("|")
        assert line.count("|") == width, line
    assert "**" in page
    assert "<u>" in page
    assert "configs/paper/rank.toml" in page
    assert "<script" not in page


def test_runs_made_for_their_seconds_stand_for_all():
    other, own = made_up("a"), made_up("a", seed=2, study="runtime")
    (table,) = runtime_tables([other, own])
    assert column(table, "seeds")["a"].text == "1"
