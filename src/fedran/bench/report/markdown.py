"""Tables as Markdown, for the documentation."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from fedran.bench.report.sections import FOOTNOTES, Section, missing, sections
from fedran.bench.report.tables.table import NOTHING, Cell, Column, Table
from fedran.bench.results.result import Result
from fedran.core.errors import printable

_MARKS = {"": "{}", "best": "**{}**", "second": "<u>{}</u>"}


def markdown_page(results: Sequence[Result]) -> str:
    """All tables of the report as one Markdown text, without a page title.

    What was printed by the paper or computed, not measured, is in italics. The page's folded
    details are left out.
    """
    parts = [_section(s) for s in sections(results)]
    absent = missing(results)
    if absent:
        parts.append("## Not in these results\n\n" + "\n".join(f"- {text(a)}" for a in absent))
    parts.append("## Terms\n\n" + "\n".join(f"- {t}: {text(s)}" for t, s in FOOTNOTES.items()))
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> str:
    parts = [f"## {text(section.title)}", text(section.intro)]
    return "\n\n".join([*parts, *(markdown_table(t) for t in section.tables)])


def markdown_table(table: Table) -> str:
    """A title, a pipe table, a note; columns of one group carry its name."""
    heads = [_line([_head(c) for c in table.columns])]
    heads.append("|" + "|".join("---:" if c.numeric else "---" for c in table.columns) + "|")
    body = [
        _line([("" if i and j == 0 and len(block) > 1 else _cell(c)) for j, c in enumerate(row)])
        for block in table.blocks
        for i, row in enumerate(block)
    ]
    lines = [f"### {text(table.title)}", "", *heads, *body]
    return "\n".join(lines + (["", text(table.note)] if table.note else []))


def text(foreign: str) -> str:
    r"""One line in which nothing is markup.

    >>> print(text("a|b <i> *c* A_avg _d_"))
    a&#124;b &lt;i&gt; \*c\* A_avg \_d\_
    """
    safe = html.escape(printable(foreign, 4000), quote=False).replace("|", "&#124;")
    safe = re.sub(r"([\\`*\[\]])", r"\\\1", safe)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", safe)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(column: Column) -> str:
    return text(f"{column.group}: {column.text}" if column.group else column.text)


def _cell(cell: Cell) -> str:
    inner = _MARKS[cell.mark].format(text(cell.text))
    return f"*{inner}*" if cell.muted and cell.text != NOTHING else inner
