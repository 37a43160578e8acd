"""Tables as text, CSV and LaTeX."""

import csv
import io
import re
import shutil
import subprocess
import sys

import pytest

from fedran_bench.report.export import (
    FIRST_MARK,
    LAST_MARK,
    csv_table,
    export_tables,
    latex_table,
    pipe_table,
    text_table,
    update_markdown,
)
from fedran_bench.report.pages import all_tables, make_pages
from fedran_bench.report.tables import Cell, Column, Table
from helpers.bench.made_up import METHODS, made_up

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


def test_csv_reads_back_to_the_cells():
    header, *rows = csv.reader(io.StringIO(csv_table(TABLE)))
    assert header == ["method", "β = 0.1: A_T", "MiB"]
    assert rows == [[c.text for c in row] for row in TABLE.rows]


def test_latex_escapes_every_special_character_and_marks_the_best():
    lines = latex_table(TABLE).splitlines()
    assert lines[:4] == [
        "% Title, 5 %",
        "% A note_with 100 %.",
        r"\begin{tabular}{lrr}",
        r"\toprule",
    ]
    assert lines[4] == r"method & $\beta$ = 0.1: A\_T & MiB \\"
    assert lines[6] == r"""R\&D\_1, "x" & \textbf{76.5 $\pm$ 0.1} & 1 \\"""
    assert lines[7].endswith(r"\textasciitilde{} & \underline{9} & - \\")
    assert lines[-1] == r"\end{tabular}"


def rows_of(latex):
    """The rows of a tabular as lists of cells."""
    body = latex[latex.index(r"\toprule") : latex.index(r"\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith(r" \\")]
    return [re.split(r"(?<!\\)&", line.removesuffix(r" \\")) for line in lines]


def test_every_latex_table_of_a_report_is_balanced(tmp_path):
    hostile = made_up("odd", "[x] {a} \\end{tabular} 漢 é $&%#_^~\\", sends="[y]")
    for path in export_tables([*(made_up(**m) for m in METHODS), hostile], tmp_path):
        if path.suffix == ".tex":
            latex = path.read_text()
            (shape,) = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", latex)
            assert latex.count(r"\end{tabular}") == 1
            assert {len(row) for row in rows_of(latex)} == {len(shape)}
            plain = re.sub(r"\\[{}]", "", latex)
            assert plain.count("{") == plain.count("}")
            assert not re.search(r"^ *\[", latex, re.M)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    cells = '[x] {a} \\end 漢 é $&%#_^~\\ <b> "q" 76 ± 1, β λ |'
    rows = [[Cell(cells, "best")], [Cell(cells, "second")]]
    table = Table(cells, [Column(cells, numeric=False)], rows)
    start = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{start}\n{latex_table(table)}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    if "booktabs.sty' not found" in done.stdout:
        pytest.skip("booktabs is not installed")
    assert done.returncode == 0, done.stdout[-800:]


def test_every_table_of_the_report_becomes_two_files_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    runs = [made_up(k, seed=s, beta=b) for k in ("fedran", "afl") for s in (1, 2) for b in (0.1, 1)]
    written = export_tables(runs, tmp_path / "tables")
    tables = list(all_tables(make_pages(runs, "")))
    assert len(written) == len(set(written)) == 2 * len(tables) == 6
    assert {p.name for p in (tmp_path / "tables").iterdir()} == {p.name for p in written}


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
