"""Pages and tables as Markdown, for the documentation."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from fedran.bench.report.pages import Page
from fedran.bench.report.section import first_terms
from fedran.bench.report.tables.table import NOTHING, Cell, Table
from fedran.core.errors import printable

_MARKS = {"": "{}", "best": "**{}**", "second": "<u>{}</u>"}


def markdown_page(page: Page) -> str:
    """Verdict and sections, without title and figures. Terms come at their first use.

    Folded sections are folded here too: MkDocs and GitHub show the element ``details``.
    """
    parts = []
    if page.verdict:
        where = f" for {text(page.where)}" if page.where else ""
        lines = [f"{i}. {text(line)}" for i, line in enumerate(page.verdict, 1)]
        parts.append("\n".join([f"**Verdict**{where}:", "", *lines]))
    for section, terms in first_terms(page.sections):
        if section.folded:
            parts.append(f'<details markdown="1"><summary>{text(section.title)}</summary>')
        elif section.title:
            parts.append(f"## {text(section.title)}")
        parts += map(text, section.intro)
        if terms:
            parts.append("\n".join(f"- {term}: {text(meaning)}" for term, meaning in terms.items()))
        parts += map(markdown_table, section.shown)
        parts += ["</details>"] if section.folded else []
    return "\n\n".join(parts)


def markdown_table(table: Table) -> str:
    """Title, note, pipe table, and the commands and dates of the measurements.

    Columns of one group carry its name. Figures that are printed in the paper or computed are in
    italics.
    """
    lines = [f"### {text(table.title)}", ""]
    if table.note:
        lines += [text(table.note), ""]
    lines.append(pipe_table(table))
    if table.results:
        lines += ["", f"Produced by {', '.join(map(code, table.commands))} on {table.dates}."]
    return "\n".join(lines)


def pipe_table(table: Table) -> str:
    """The headings and rows alone."""
    lines = [_line([text(c.label) for c in table.columns])]
    lines.append("|" + "|".join("---:" if c.numeric else "---" for c in table.columns) + "|")
    for block in table.blocks:
        for i, row in enumerate(block):
            first = "" if i else _cell(row[0])
            lines.append(_line([first, *map(_cell, row[1:])]))
    return "\n".join(lines)


def text(foreign: str) -> str:
    r"""One line in which nothing is markup.

    >>> print(text("a|b <i> *c* A_avg _d_"))
    a&#124;b &lt;i&gt; \*c\* A_avg \_d\_
    """
    safe = html.escape(printable(foreign, 4000), quote=False).replace("|", "&#124;")
    safe = re.sub(r"([\\`*\[\]])", r"\\\1", safe)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", safe)


def code(foreign: str) -> str:
    """A command as code; characters that could end the code or be markup are left out.

    >>> code("fedran run a`b.toml")
    '`fedran run ab.toml`'
    """
    return f"`{re.sub(r'[`|<>&]', '', printable(foreign, 4000))}`"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(cell: Cell) -> str:
    inner = _MARKS[cell.mark].format(text(cell.text))
    return f"*{inner}*" if cell.muted and cell.text not in ("", NOTHING) else inner
