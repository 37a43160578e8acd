"""Tables as text, Markdown, CSV and LaTeX. No matplotlib is needed."""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedran.core.errors import printable
from fedran_bench.report.pages import Page, slug
from fedran_bench.report.tables import Table, date_range
from fedran_bench.results.grouping import comparisons
from fedran_bench.results.result import Result, dataset_title

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "β": r"$\beta$",
    "ε": r"$\varepsilon$",
    "[": "{[}",  # at the start of a row it would be an argument of the line break before it
    **{c: f"\\{c}" for c in "&%$#_{}"},
}
FIRST_MARK, LAST_MARK = "<!-- made by fedran bench report -->", "<!-- end -->"


def text_table(table: Table) -> str:
    """Title, headings and rows in aligned columns.

    >>> from fedran_bench.report.tables import Cell, Column
    >>> columns = [Column("method", numeric=False), Column("A_T")]
    >>> print(text_table(Table("Digits", columns, [[Cell("FedRAN"), Cell("97.8")]])))
    Digits
    <BLANKLINE>
    method   A_T
    ------  ----
    FedRAN  97.8
    """
    lines = [[printable(c.text, 60) for c in table.columns]]
    lines += [[printable(cell.text, 60) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    aligned = [
        "  ".join(
            text.rjust(width) if column.numeric else text.ljust(width)
            for text, width, column in zip(line, widths, table.columns, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([printable(table.title, 200), "", *aligned])


def export_tables(pages: Sequence[Page], folder: Path) -> int:
    """Write every table as ``PAGE-NUMBER-TITLE.csv`` and ``.tex``; return the number of tables."""
    folder.mkdir(parents=True, exist_ok=True)
    numbered = [
        (slug(page.slug, number, table.title)[:100], table)
        for page in pages
        for number, table in enumerate((t for s in page.sections for t in s.tables + s.folded), 1)
    ]
    for name, table in numbered:
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(c.text for c in table.columns)
            writer.writerows([cell.text for cell in row] for row in table.rows)
        (folder / f"{name}.tex").write_text(latex_table(table), encoding="utf-8")
    return len(numbered)


def latex_table(table: Table) -> str:
    """A ``tabular`` with rules of the package booktabs. Title and note are comments."""

    def line(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    marks = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
    shape = "".join("r" if column.numeric else "l" for column in table.columns)
    lines = [f"% {printable(text, 4000)}" for text in (table.title, table.note) if text]
    lines += [rf"\begin{{tabular}}{{{shape}}}", r"\toprule"]
    lines += [line(_latex(c.text) for c in table.columns), r"\midrule"]
    lines += [line(marks[c.mark].format(_latex(c.text)) for c in row) for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex(foreign: str) -> str:
    r"""Text in which nothing is a command. Letters that pdfLaTeX may lack become question marks.

    >>> print(_latex("A_T: 76.5 ± 0.1 %"))
    A\_T: 76.5 $\pm$ 0.1 \%
    """
    shown = printable(foreign, 4000)
    return "".join(LATEX.get(c, c if c.isascii() or "À" <= c <= "ÿ" else "?") for c in shown)


def update_markdown(file: Path, pages: Sequence[Page], results: Sequence[Result]) -> None:
    """Write verdict and brief tables between two marks of a Markdown page, which has other text."""
    before, first, rest = file.read_text(encoding="utf-8").partition(FIRST_MARK)
    _, last, after = rest.partition(LAST_MARK)
    if not (first and last):
        raise ValueError(f"{file}: expected the lines {FIRST_MARK} and {LAST_MARK}")
    text = f"{before}{FIRST_MARK}\n\n{markdown(pages, results)}\n\n{LAST_MARK}{after}"
    file.write_text(text, encoding="utf-8")


def markdown(pages: Sequence[Page], results: Sequence[Result]) -> str:
    """The first verdict, and the best known methods of every comparison; no studies."""
    first = pages[0].sections[0]
    lines = [f"{i}. {_markdown(line)}" for i, line in enumerate(first.verdict, 1)]
    parts = ["\n".join([f"**Verdict** for {_markdown(first.about)}:", "", *lines])]
    compared = comparisons(results)
    for i, page in enumerate(pages):
        parts += [f"## {_markdown(page.title)}"] if i else ["## All comparisons"]
        for table in (t for s in page.sections if s.verdict for t in s.tables):
            what = table.title.removeprefix("All methods: ") + ":" if i else table.note
            parts.append(_markdown(what))
            parts.append(pipe_table(table.brief(known=True)))
        made = [r for r in compared if not i or dataset_title(r.dataset) == page.title]
        if i or len(pages) == 1:
            files = ", ".join(
                f"`{_markdown(name)}`" for name in dict.fromkeys(r.config for r in made)
            )
            parts.append(f"By `fedran bench run` with {files}, {date_range(r.date for r in made)}.")
    return "\n\n".join(parts)


def pipe_table(table: Table) -> str:
    """Headings and rows as a table of Markdown. The best method is bold."""
    lines = ["| " + " | ".join(_markdown(c.text) for c in table.columns) + " |"]
    lines.append("|" + "|".join("---:" if c.numeric else "---" for c in table.columns) + "|")
    for row in table.rows:
        cells = [f"**{_markdown(c.text)}**" if c.mark == "best" else _markdown(c.text) for c in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _markdown(foreign: str) -> str:
    r"""One line in which nothing is markup.

    >>> print(_markdown("a|b <i> *c* A_avg _d_"))
    a&#124;b &lt;i&gt; \*c\* A_avg \_d\_
    """
    safe = html.escape(printable(foreign, 4000), quote=False).replace("|", "&#124;")
    safe = re.sub(r"([\\`*\[\]])", r"\\\1", safe)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", safe)
