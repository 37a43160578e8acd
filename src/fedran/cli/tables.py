"""Tables of the commands, in one style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def named_values(rows: Iterable[Sequence[str]]) -> Table:
    """Rows of a name, a value and possibly a note, in aligned columns without a header.

    The values are right-aligned if there are notes. Long values are folded.
    """
    rows = [[escape(cell) for cell in row] for row in rows]
    table = Table(show_header=False, show_edge=False, pad_edge=False, box=None, padding=(0, 1))
    with_notes = any(len(row) > 2 for row in rows)
    table.add_column(style="bold" if with_notes else "")
    table.add_column(overflow="fold", justify="right" if with_notes else "left")
    if with_notes:
        table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def print_numbers(console: Console, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of a name and right-aligned numbers, below a header.

    No digit is cut off in a narrow terminal: the terminal wraps the lines instead.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    width, needed = console.width, console.measure(table, options=console.options.update(width=500))
    console.width = max(width, needed.maximum)
    console.print(table)
    console.width = width
