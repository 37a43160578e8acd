"""Tables as plain text for the terminal, and as CSV and LaTeX files. No matplotlib is needed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedran.bench.report.figures.chart import slug
from fedran.bench.report.leakage import Measured
from fedran.bench.report.pages import as_comparison, make_pages
from fedran.bench.report.tables.table import Cell, Table, beta_text, number_columns, text_columns
from fedran.bench.results.grouping import by_setting, comparisons, groups, row_order
from fedran.bench.results.metrics import task_seconds
from fedran.bench.results.result import Result
from fedran.core.errors import printable
from fedran.wire.files import write_atomically
from fedran.wire.sizes import human_bytes

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "β": r"$\beta$",
    "λ": r"$\lambda$",
    "[": "{[}",  # at the start of a row it would be an argument of the line break before it
    **{c: f"\\{c}" for c in "&%$#_{}"},
}
_LATEX_MARKS = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}


def overview_tables(results: Sequence[Result]) -> list[Table]:
    """One table per setting: accuracies, largest upload and seconds of every method."""
    tables = []
    shown = comparisons(results) or as_comparison(results)  # a study alone is shown as well
    for setting, members in by_setting(groups(shown)).items():
        rows = [
            [
                Cell(g.name),
                Cell(beta_text(g.beta)),
                *(Cell(f"{accuracy.mean:.2f}") for accuracy in (g.A_avg, g.A_T)),
                Cell(human_bytes(g.largest_upload)),
                Cell(f"{g.mean(task_seconds):.3g}"),
                Cell(str(len(g.results))),
            ]
            for g in sorted(members, key=row_order)
        ]
        columns = [
            *text_columns("method"),
            *number_columns("beta", "A_avg", "A_T", "largest upload", "s per task", "seeds"),
        ]
        tables.append(Table(setting.title, columns, [rows]))
    return tables


def text_table(table: Table) -> str:
    """Title, headings and rows in aligned columns.

    >>> columns = [*text_columns("method"), *number_columns("A_T")]
    >>> print(text_table(Table("Digits", columns, [[[Cell("FedRAN"), Cell("97.8")]]])))
    Digits
    <BLANKLINE>
    method   A_T
    ------  ----
    FedRAN  97.8
    """
    lines = [[printable(c.label, 60) for c in table.columns]]
    lines += [[printable(cell.text, 60) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    numeric = [column.numeric for column in table.columns]
    aligned = [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([printable(table.title, 200), "", *aligned])


def csv_table(table: Table) -> str:
    """A heading row and one line per row. Columns of one group carry its name.

    Datasets have the names by which ``fedran run`` knows them.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([c.label for c in table.columns])
    writer.writerows([cell.key or cell.text for cell in row] for row in table.rows)
    return out.getvalue()


def latex_table(table: Table) -> str:
    """A ``tabular`` with rules of the package booktabs. Title and note are comments."""
    shape = "".join("r" if column.numeric else "l" for column in table.columns)
    lines = [f"% {printable(text, 4000)}" for text in (table.title, table.note) if text]
    lines += [rf"\begin{{tabular}}{{{shape}}}", r"\toprule"]
    lines += [_latex_row(_latex(c.label) for c in table.columns), r"\midrule"]
    for row in table.rows:
        lines.append(_latex_row(_LATEX_MARKS[c.mark].format(_latex(c.text)) for c in row))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def export_tables(
    results: Sequence[Result], folder: Path, leakage: Sequence[Measured] = ()
) -> list[Path]:
    """Write every table of the report as ``PAGE-SECTION-NUMBER-TITLE.csv`` and ``.tex``."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    pages = make_pages(results, "", leakage)
    parts = [(page, section) for page in pages for section in page.sections]
    for page, section in parts:
        for i, table in enumerate(section.tables, 1):
            name = f"{slug(page.slug, section.slug)}-{i:02d}-{slug(table.title)[:80]}"
            for suffix, render in ((".csv", csv_table), (".tex", latex_table)):
                path = folder / f"{name}{suffix}"
                write_atomically(path, render(table).encode())
                written.append(path)
    return written


def _latex(foreign: str) -> str:
    r"""Text in which nothing is a command. Letters that pdfLaTeX may lack become question marks.

    >>> print(_latex("A_T: 76.5 ± 0.1 %"))
    A\_T: 76.5 $\pm$ 0.1 \%
    """
    shown = printable(foreign, 4000)
    return "".join(_LATEX.get(c, c if c.isascii() or "À" <= c <= "ÿ" else "?") for c in shown)


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
