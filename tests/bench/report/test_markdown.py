"""Tables and sections as Markdown."""

import pytest

from fedran.bench.report.export import markdown_page, markdown_table
from fedran.bench.report.pages import make_pages
from fedran.bench.report.tables.table import Cell, Column, Table
from helpers.made_up import comparison, made_up
from helpers.made_up_trained import all_trained
from helpers.report_tables import HOSTILE, assert_is_plain_text


def rendered(results):
    return "\n\n".join(map(markdown_page, make_pages(results, "x")))


def test_tables_are_well_formed_whatever_they_contain():
    hostile = made_up(label=HOSTILE, params={"h": 1}, config=HOSTILE, machine=HOSTILE)
    page = rendered([*comparison(seeds=(1,)), hostile])
    width = None
    for line in page.splitlines():
        if not line.startswith("|"):
            width = None
            continue
        width = width or line.count("|")
        assert line.count("|") == width, line
    assert "**" in page
    assert "<u>" in page
    assert_is_plain_text(page)


def test_a_table_ends_with_the_commands_and_the_date_of_its_results():
    runs = [made_up(seed=s, config=c) for s, c in ((1, "a.toml"), (2, "b.toml"))]
    lines = markdown_table(Table("t", [Column("x")], [[[Cell("1")]]], results=runs)).splitlines()
    assert lines[-1] == "Produced by `fedran run a.toml`, `fedran run b.toml` on 2026-11-15."


def test_the_verdict_comes_first_and_terms_where_they_are_first_used():
    _, page = make_pages(comparison(seeds=(1,), datasets=("digits",))[:36], "x")
    shown = markdown_page(page)
    assert shown.startswith("**Verdict** for Digits: ")
    assert shown.count("\n- A_T: ") == shown.count("\n- β: ") == 1
    assert (
        shown.index("\n- A_T: ")
        < shown.index(": A_T |")
        < shown.index("<summary>Communication</summary>")
    )


def test_tables_for_the_export_are_left_out():
    page = rendered([made_up("a", beta=b) for b in (0.1, 0.5)])
    assert "split, β = 0.1, in MiB" in page
    assert "split, β = 0.5, in MiB" not in page


def test_columns_carry_the_name_of_their_group_and_computed_figures_are_in_italics():
    page = rendered(all_trained(seeds=(1,)))
    assert "| Time: at 100 rounds, computed |" in page
    assert "*310x*" in page


@pytest.mark.parametrize("part", ["title", "note", "heading", "group", "cell"])
def test_hostile_text_stays_text_in_every_part_of_a_table(part):
    text = {"title": "", "note": "", "heading": "", "group": "", "cell": "", part: HOSTILE}
    columns = [Column(text["heading"], text["group"])]
    table = Table(text["title"], columns, [[[Cell(text["cell"])]]], text["note"])
    assert_is_plain_text(markdown_table(table))


def test_a_muted_cell_is_italic_unless_it_is_empty():
    cells = [Cell("7", muted=True), Cell("", muted=True), Cell("-", muted=True)]
    table = Table("t", [Column("x"), Column("y"), Column("z")], [[cells]])
    assert "| *7* |  | - |" in markdown_table(table)
