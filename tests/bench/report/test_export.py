"""Tables as text, Markdown, CSV and LaTeX."""

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
    export_tables,
    latex_table,
    pipe_table,
    text_table,
    update_markdown,
)
from fedran_bench.report.pages import make_pages
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


HOSTILE = '[x] {a} \\end{tabular} \\input 漢 é $&%#_^~\\ <b> "q",\n\\\\ 76 ± 1, β |'


def test_exported_csv_reads_back_to_the_cells_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    runs = [made_up(k, k + HOSTILE, seed=s, beta=b) for k in "ab" for s in (1, 2) for b in (0.1, 1)]
    pages = make_pages(runs, "")
    tables = [t for p in pages for s in p.sections for t in [*s.tables, *s.folded]]
    assert export_tables(pages, tmp_path) == len(tables) == 3
    found = [io.StringIO(p.read_bytes().decode(), newline="") for p in tmp_path.glob("*.csv")]
    assert {tuple(map(tuple, csv.reader(file))) for file in found} == {
        (tuple(c.text for c in t.columns), *(tuple(c.text for c in row) for row in t.rows))
        for t in tables
    }
    assert {p.stem for p in tmp_path.glob("*.tex")} == {p.stem for p in tmp_path.glob("*.csv")}


def test_no_latex_command_comes_from_a_label():
    runs = [*(made_up(**m) for m in METHODS), made_up("odd", HOSTILE, machine=HOSTILE)]
    for table in (t for s in make_pages(runs, HOSTILE)[0].sections for t in s.tables + s.folded):
        lines = [x for x in latex_table(table).splitlines() if not x.startswith("%")]
        (shape,) = re.findall(r"^\\begin\{tabular\}\{([lr]+)\}$", lines[0])
        assert [lines[1], lines[3], *lines[-2:]] == [
            *(r"\toprule", r"\midrule"),
            *(r"\bottomrule", r"\end{tabular}"),
        ]
        for row in (lines[2], *lines[4:-2]):
            assert row.endswith(r" \\")
            cells = re.split(r"(?<!\\)&", row[:-3])
            assert len(cells) == len(shape) == len(table.columns)
            for cell in cells:
                plain = re.fullmatch(r"(?:\\(?:textbf|underline)\{(.*)\}|(.*))", cell.strip())
                text = plain[1] or plain[2]
                known = r"\\[&%$#_{}]|\\text[a-z]+\{\}|\$\\(?:pm|beta|varepsilon)\$|\{\[\}"
                assert not set(re.sub(known, "", text)) & set("\\{}$&#^_%~[<>|")
    row = latex_table(TABLE).splitlines()[6]
    assert row == r"""R\&D\_1, "x" & \textbf{76.5 $\pm$ 0.1} & 1 \\"""


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    rows = [[Cell(HOSTILE, "best")], [Cell(HOSTILE, "second")]]
    table = latex_table(Table(HOSTILE, [Column(HOSTILE, numeric=False)], rows))
    start = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{start}\n{table}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    if "booktabs.sty' not found" in done.stdout:
        pytest.skip("booktabs is not installed")
    assert done.returncode == 0, done.stdout[-800:]


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
