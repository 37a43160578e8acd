"""The report in other formats: text for the terminal, Markdown, and CSV and LaTeX files.

No matplotlib is needed.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedran.bench.report.figures.chart import slug
from fedran.bench.report.leakage import Measured
from fedran.bench.report.pages import Page, as_comparison, make_pages
from fedran.bench.report.section import first_terms
from fedran.bench.report.tables.table import (
    NOTHING,
    Cell,
    Table,
    beta_text,
    number_columns,
    text_columns,
)
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
_MARKDOWN_MARKS = {"": "{}", "best": "**{}**", "second": "<u>{}</u>"}
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


def markdown_page(page: Page) -> str:
    """Verdict and sections, without title and figures. Terms come at their first use.

    Folded sections are folded here too: MkDocs and GitHub show the element ``details``.
    """
    parts = []
    if page.verdict:
        where = f" for {markdown_text(page.where)}" if page.where else ""
        lines = [f"{i}. {markdown_text(line)}" for i, line in enumerate(page.verdict, 1)]
        parts.append("\n".join([f"**Verdict**{where}:", "", *lines]))
    for section, terms in first_terms(page.sections):
        if section.folded:
            parts.append(f'<details markdown="1"><summary>{markdown_text(section.title)}</summary>')
        elif section.title:
            parts.append(f"## {markdown_text(section.title)}")
        parts += map(markdown_text, section.intro)
        if terms:
            parts.append(
                "\n".join(f"- {term}: {markdown_text(meaning)}" for term, meaning in terms.items())
            )
        parts += map(markdown_table, section.shown)
        parts += ["</details>"] if section.folded else []
    return "\n\n".join(parts)


def markdown_table(table: Table) -> str:
    """Title, note, pipe table, and the commands and dates of the measurements.

    Columns of one group carry its name. Figures that are printed in the paper or computed are in
    italics.
    """
    lines = [f"### {markdown_text(table.title)}", ""]
    if table.note:
        lines += [markdown_text(table.note), ""]
    lines.append(pipe_table(table))
    if table.results:
        lines += ["", f"Produced by {', '.join(map(_code, table.commands))} on {table.dates}."]
    return "\n".join(lines)


def pipe_table(table: Table) -> str:
    """The headings and rows alone."""
    lines = [_markdown_row([markdown_text(c.label) for c in table.columns])]
    lines.append("|" + "|".join("---:" if c.numeric else "---" for c in table.columns) + "|")
    for block in table.blocks:
        for i, row in enumerate(block):
            first = "" if i else _markdown_cell(row[0])
            lines.append(_markdown_row([first, *map(_markdown_cell, row[1:])]))
    return "\n".join(lines)


def markdown_text(foreign: str) -> str:
    r"""One line in which nothing is markup.

    >>> print(markdown_text("a|b <i> *c* A_avg _d_"))
    a&#124;b &lt;i&gt; \*c\* A_avg \_d\_
    """
    safe = html.escape(printable(foreign, 4000), quote=False).replace("|", "&#124;")
    safe = re.sub(r"([\\`*\[\]])", r"\\\1", safe)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", safe)


def _code(foreign: str) -> str:
    """A command as code; characters that could end the code or be markup are left out.

    >>> _code("fedran run a`b.toml")
    '`fedran run ab.toml`'
    """
    return f"`{re.sub(r'[`|<>&]', '', printable(foreign, 4000))}`"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_cell(cell: Cell) -> str:
    inner = _MARKDOWN_MARKS[cell.mark].format(markdown_text(cell.text))
    return f"*{inner}*" if cell.muted and cell.text not in ("", NOTHING) else inner


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
