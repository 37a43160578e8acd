"""Tables as text, CSV and LaTeX."""

import csv
import io
import re
import shutil
import subprocess
import sys

import pytest

from fedran.bench.report.export import (
    csv_table,
    export_tables,
    latex_table,
    overview_tables,
    text_table,
)
from fedran.bench.report.pages import make_pages
from fedran.bench.report.tables.table import Cell, Table, number_columns, text_columns
from helpers.made_up import comparison, made_up

TABLE = Table(
    "Title, 5 %",
    [*text_columns("method"), *number_columns("A_T", group="β = 0.1"), *number_columns("MiB")],
    [
        [[Cell('R&D_1, "x"'), Cell("76.5 ± 0.1", "best"), Cell("1")]],
        [[Cell("\x1b[31m~"), Cell("9", "second"), Cell("-")]],
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


def test_csv_keeps_the_names_of_datasets_that_pages_show_as_titles():
    (section,) = make_pages(comparison(seeds=(1,), betas=(0.1,)), "")[0].sections
    (table,) = section.tables
    keys = [row[0] for row in list(csv.reader(io.StringIO(csv_table(table))))[1:]]
    assert keys[0] == "cifar100-efficientnet_lite0: 5 tasks, 5 clients, dirichlet split"
    assert table.rows[0][0].text.startswith("CIFAR-100, EfficientNet-Lite0: 5 tasks")


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
    for path in export_tables([*comparison(seeds=(1,))[:12], hostile], tmp_path):
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
    table = Table(
        cells, [*text_columns(cells)], [[[Cell(cells, "best")]], [[Cell(cells, "second")]]]
    )
    start = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{start}\n{latex_table(table)}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    if "booktabs.sty' not found" in done.stdout:
        pytest.skip("booktabs is not installed")
    assert done.returncode == 0, done.stdout[-800:]


def test_the_overview_shows_accuracy_upload_and_seconds_of_every_method():
    runs = [made_up("fedran", seed=s, upload=792, level=0.8) for s in (1, 2)]
    (table,) = overview_tables([*runs, made_up("afl", upload=3 * 2**20)])
    rows = {row[0].text: [c.text for c in row[1:]] for row in table.rows}
    mean = sum(r.A_T for r in runs) / 2
    assert rows["fedran"][0] == "0.1"
    assert float(rows["fedran"][2]) == pytest.approx(mean, abs=0.01)
    assert rows["fedran"][3:] == ["792 B", "1", "2"]
    assert rows["afl"][3] == "3.00 MiB"


def test_every_table_of_the_report_becomes_two_files_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    runs = [made_up(k, seed=s) for k in ("fedran", "afl") for s in (1, 2)]
    written = export_tables(runs, tmp_path / "tables")
    tables = [t for page in make_pages(runs, "") for s in page.sections for t in s.tables]
    assert len(written) == len(set(written)) == 2 * len(tables) > 10
    assert {p.name for p in (tmp_path / "tables").iterdir()} == {p.name for p in written}
    assert next(p for p in written if p.suffix == ".tex").read_text().endswith("tabular}\n")
