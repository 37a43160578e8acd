"""Tables and texts as HTML; every foreign string is escaped here."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from itertools import groupby

from fedran.bench.report.tables.table import Block, Cell, Column, Table
from fedran.core.errors import printable

SHORT = 16
"""A text of so few characters is not broken, at a hyphen say."""
_MARKS = {"": "{}", "best": "<strong>{}</strong>", "second": "<u>{}</u>"}


def text(foreign: str, limit: int = 4000) -> str:
    """One line in which nothing is markup; A_avg and its like get their subscripts.

    >>> text('A_avg of <script>"')
    'A<sub>avg</sub> of &lt;script&gt;&quot;'
    """
    safe = html.escape(printable(foreign, limit))
    return re.sub(r"\bA_(avg|T|t)\b", r"A<sub>\1</sub>", safe)


def html_table(table: Table) -> str:
    """A table in a box that scrolls; folded away where it is asked for."""
    body = "".join(_block(block, table.columns) for block in table.blocks)
    note = f'<p class="note">{text(table.note)}</p>' if table.note else ""
    inner = f'<div class="scroll" tabindex="0"><table>{_head(table.columns)}{body}</table></div>'
    if table.collapsed:
        return f"<details><summary>{text(table.title)}</summary>{inner}{note}</details>\n"
    return f"<h3>{text(table.title)}</h3>{inner}{note}\n"


def _head(columns: Sequence[Column]) -> str:
    if not any(c.group for c in columns):
        return f"<thead><tr>{''.join(_th(c) for c in columns)}</tr></thead>"
    above, below = "", ""
    for group, members in groupby(columns, key=lambda c: c.group):
        of = list(members)
        if not group:
            above += "".join(_th(c, ' rowspan="2"') for c in of)
            continue
        kind = ' class="printed"' if of[0].muted else ""
        above += f'<th colspan="{len(of)}" scope="colgroup"{kind}>{text(group)}</th>'
        below += "".join(_th(c) for c in of)
    return f"<thead><tr>{above}</tr><tr>{below}</tr></thead>"


def _th(column: Column, more: str = "") -> str:
    return f'<th scope="col"{_kind(column)}{more}>{text(column.text)}</th>'


def _kind(column: Column, cell: Cell | None = None) -> str:
    names = {
        "num": column.numeric,
        "printed": column.muted or (cell is not None and cell.muted),
        "wide": column.wide,
        "short": not column.numeric and cell is not None and len(cell.text) <= SHORT,
    }
    chosen = " ".join(name for name, wanted in names.items() if wanted)
    return f' class="{chosen}"' if chosen else ""


def _block(block: Block, columns: Sequence[Column]) -> str:
    rows = ""
    for i, row in enumerate(block):
        span = f' rowspan="{len(block)}"' if len(block) > 1 else ""
        kind = _kind(columns[0], row[0])
        first = "" if i else f'<th scope="row"{span}{kind}>{_cell(row[0])}</th>'
        rest = "".join(
            f"<td{_kind(c, cell)}>{_cell(cell)}</td>"
            for c, cell in zip(columns[1:], row[1:], strict=True)
        )
        rows += f"<tr>{first}{rest}</tr>"
    return f"<tbody>{rows}</tbody>\n"


def _cell(cell: Cell) -> str:
    return _MARKS[cell.mark].format(text(cell.text, 300))
