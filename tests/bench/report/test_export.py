"""Tables as text and Markdown."""

import re

import pytest

from fedran_bench.report.export import (
    FIRST_MARK,
    LAST_MARK,
    pipe_table,
    text_table,
    update_markdown,
)
from fedran_bench.report.pages import make_pages
from fedran_bench.report.tables import Cell, Column, Table
from helpers.bench.made_up import made_up

TABLE = Table(
    "Title, 5 %",
    [Column("method", numeric=False), Column("β = 0.1: A_T"), Column("MiB")],
    [
        [Cell('R&D_1, "x"'), Cell("76.5 ± 0.1", "best"), Cell("1")],
        [Cell("\x1b[31m~"), Cell("9", "second"), Cell("-")],
    ],
    "A note_with 100 %.",
)


def test_text_has_aligned_columns_and_no_escape_sequences():
    title, empty, *lines = text_table(TABLE).splitlines()
    assert (title, empty) == ("Title, 5 %", "")
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split("  ")[0] == "method"
    assert lines[2].endswith("  76.5 ± 0.1    1")
    assert "\x1b" not in "".join(lines)


def test_nothing_in_a_markdown_table_is_markup():
    hostile = Table("", [Column("a|b")], [[Cell("<i> *c* `d` [e](f)|g\nh")]])
    heading, _, row = pipe_table(hostile).splitlines()
    assert heading.count("|") == row.count("|") == 2
    assert "<i>" not in row
    assert not set("*`[") & set(re.sub(r"\\.", "", row))


def test_a_markdown_page_keeps_its_other_text(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{FIRST_MARK}\nold\n{LAST_MARK}\nafter\n")
    runs = [made_up(dataset=d) for d in ("digits", "har-dsa19")]
    update_markdown(page, make_pages(runs, "name"), runs)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| fedran |" in text
    page.write_text("without marks\n")
    with pytest.raises(ValueError, match="expected the lines"):
        update_markdown(page, make_pages(runs, "name"), runs)
