"""A plain table, and how numbers are written in it. Rendering is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedran.bench.results.grouping import Mark, Stat

MIB = 2**20
NOTHING = "-"


@dataclass(frozen=True)
class Cell:
    """A text, how it ranks, and whether it is only context (printed elsewhere, not measured)."""

    text: str
    mark: Mark = ""
    muted: bool = False


@dataclass(frozen=True)
class Column:
    """A heading; columns that share a group stand under one more heading."""

    text: str
    group: str = ""
    numeric: bool = True
    muted: bool = False
    wide: bool = False
    """Holds prose: it wraps."""


Block = Sequence[Sequence[Cell]]
"""Rows that share their first cell."""


@dataclass(frozen=True)
class Table:
    """Title, columns, blocks of rows, and a note below."""

    title: str
    columns: Sequence[Column]
    blocks: Sequence[Block] = field(default_factory=list)
    note: str = ""
    collapsed: bool = False
    """Shown on demand where the page can do that."""

    @property
    def rows(self) -> list[Sequence[Cell]]:
        """All rows of all blocks."""
        return [row for block in self.blocks for row in block]


def collapse_but_first(tables: Sequence[Table], leading: Sequence[object]) -> list[Table]:
    """Fold away every table that is not the first of its ``leading`` (a setting, say)."""
    pairs = zip(tables, leading, strict=True)
    return [replace(t, collapsed=a in leading[:i]) for i, (t, a) in enumerate(pairs)]


def words(*texts: str) -> list[Column]:
    """Columns of text."""
    return [Column(t, numeric=False) for t in texts]


def numbers(*texts: str, group: str = "") -> list[Column]:
    """Columns of numbers."""
    return [Column(t, group) for t in texts]


def number(value: float | None, digits: int = 2, mark: Mark = "", muted: bool = False) -> Cell:
    """A number or a dash."""
    return Cell(NOTHING if value is None else f"{value:.{digits}f}", mark, muted)


def spread(s: Stat | None, digits: int = 2, mark: Mark = "", say_n: bool = False) -> Cell:
    """Mean ± spread; with the number of seeds where the table cannot say it once.

    >>> spread(Stat(76.543, 0.117, 3)).text
    '76.54 ± 0.12'
    """
    if s is None:
        return Cell(NOTHING)
    text = f"{s.mean:.{digits}f}" + ("" if s.spread is None else f" ± {s.spread:.{digits}f}")
    return Cell(text + (f" (n={s.n})" if say_n else ""), mark)


def mib(size: float | None) -> str:
    """Bytes in MiB with three digits that say something.

    >>> mib(140_787_712), mib(1_100_000), mib(2_000)
    ('134.27', '1.05', '0.00191')
    """
    if size is None:
        return NOTHING
    value = size / MIB
    if value >= 1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3f}" if value >= 0.01 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """Seconds with about three digits.

    >>> seconds(3.541), seconds(0.3), seconds(0.0021)
    ('3.54', '0.300', '0.0021')
    """
    return NOTHING if value is None else f"{value:.{seconds_digits(value)}f}"


def seconds_digits(value: float) -> int:
    """Digits after the point."""
    return 2 if value >= 1 else 3 if value >= 0.1 else 4


def times(ratio: float | None) -> str:
    """A ratio.

    >>> times(31.904), times(0.0123), times(1200)
    ('31.9x', '0.012x', '1200x')
    """
    if ratio is None:
        return NOTHING
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.3g}x" if ratio >= 1 else f"{ratio:.2g}x"


def seeds_note(counts: Sequence[int]) -> str:
    """How many seeds stand behind a table's means."""
    if not counts or set(counts) == {1}:
        return "One seed each, so no spread is shown."
    if len(set(counts)) == 1:
        return f"Mean ± sample standard deviation over {counts[0]} seeds."
    return "Mean ± sample standard deviation over n seeds, n in brackets."
