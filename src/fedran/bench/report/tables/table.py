"""A table as plain data. Numbers become text only in this module."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from fedran.bench.results.grouping import Case, Group, Mark, Setting, Stat, counted
from fedran.bench.results.result import Result

MIB = 2**20
NOTHING, NOT_RUN = "-", "not run"


@dataclass(frozen=True)
class Cell:
    """The text of a cell, its rank, and whether it is context instead of a measurement."""

    text: str
    mark: Mark = ""
    muted: bool = False
    key: str = ""
    """What CSV files hold instead of the text, where programs know it by another name."""


@dataclass(frozen=True)
class Column:
    """A heading. Columns of the same group share a second heading above."""

    text: str
    group: str = ""
    numeric: bool = True
    muted: bool = False

    @property
    def label(self) -> str:
        """The whole heading, for formats with one row of headings."""
        return f"{self.group}: {self.text}" if self.group else self.text


Block = Sequence[Sequence[Cell]]
"""Rows that share their first cell."""
Shown = tuple[Column, Callable[[Group], Cell]]
"""A column, and its cell for a method."""


@dataclass(frozen=True)
class Table:
    """Title, columns, blocks of rows, and the note that explains them."""

    title: str
    columns: Sequence[Column]
    blocks: Sequence[Block] = field(default_factory=list)
    note: str = ""
    results: Sequence[Result] = ()
    """The measurements behind the table. Their commands and dates are shown below it."""
    collapsed: bool = False
    """Folded on the HTML page."""
    exported: bool = False
    """Only exported: on no page."""

    @property
    def rows(self) -> list[Sequence[Cell]]:
        """All rows of all blocks."""
        return [row for block in self.blocks for row in block]

    @property
    def commands(self) -> list[str]:
        """The commands that produced the measurements, without options for the machine."""
        return list(dict.fromkeys(base_command(r) for r in self.results))

    @property
    def dates(self) -> str:
        """The day or the first and the last day of the measurements."""
        return date_range(r.date for r in self.results)


def method_table(
    title: str,
    found: Sequence[Group],
    shown: Sequence[Shown],
    note: str = "",
    order: Callable[[Group], float] = lambda _: 0,
) -> Table:
    """One row per method, sorted by ``order``: its name, and what is ``shown``."""
    blocks = [[[Cell(g.name), *(cell(g) for _, cell in shown)]] for g in sorted(found, key=order)]
    columns = [*text_columns("method"), *(column for column, _ in shown)]
    return Table(title, columns, blocks, note, results_of(found))


def base_command(result: Result) -> str:
    """The command that produced a result, without options for the machine."""
    if result.arguments:
        return f"fedran run {shlex.join(result.arguments)}"
    return f"fedran run {result.config}" if result.config else "a command that is not recorded"


def full_command(result: Result) -> str:
    """The command that produced a result, with the options that follow from its machine."""
    device = " --device cuda" if "NVIDIA" in result.machine else ""
    jobs = f" --jobs {result.side_by_side}" if result.side_by_side > 1 else ""
    return f"{base_command(result)}{device}{jobs}"


def date_range(days: Iterable[str]) -> str:
    """The only day, or the first and the last one."""
    found = sorted(set(days))
    return " to ".join(dict.fromkeys(found[:1] + found[-1:]))


def results_of(found: Iterable[Group]) -> list[Result]:
    """All results of some groups."""
    return [r for g in found for r in g.results]


def one_per_setting(tables: Iterable[tuple[Setting, Table]]) -> list[Table]:
    """The longest table of every setting is on the page, the others are only exported."""
    found = list(tables)
    longest: dict[Setting, int] = {}
    for setting, t in found:
        longest[setting] = max(longest.get(setting, 0), len(t.rows))
    kept = []
    for setting, t in found:
        shown = longest.get(setting) == len(t.rows)
        kept.append(replace(t, exported=not shown))
        if shown:
            del longest[setting]
    return kept


def setting_cell(where: Setting | Case, remark: str = "") -> Cell:
    """A setting under the title of its dataset; in CSV files under the name of its dataset."""
    return Cell(where.title + remark, key=where.key + remark)


def text_columns(*headings: str) -> list[Column]:
    """Columns of text."""
    return [Column(h, numeric=False) for h in headings]


def number_columns(*headings: str, group: str = "") -> list[Column]:
    """Columns of numbers."""
    return [Column(h, group) for h in headings]


def number(value: float | None, digits: int = 2, muted: bool = False) -> Cell:
    """A number with fixed digits, or a dash."""
    return Cell(NOTHING if value is None else f"{value:.{digits}f}", muted=muted)


def mean_and_spread(s: Stat | None, digits: int = 2, mark: Mark = "") -> Cell:
    """Mean ± standard deviation; the mean alone where there is one seed.

    >>> mean_and_spread(Stat(76.543, 0.117, 3)).text
    '76.54 ± 0.12'
    """
    if s is None:
        return Cell(NOTHING)
    spread = "" if s.spread is None else f" ± {s.spread:.{digits}f}"
    return Cell(f"{s.mean:.{digits}f}{spread}", mark)


def significant(value: float | None) -> Cell:
    """A number with three significant digits, or a dash."""
    return Cell(NOTHING if value is None else f"{value:.3g}")


def beta_text(beta: float | None) -> str:
    """The skew of a partition, or a dash."""
    return NOTHING if beta is None else f"{beta:g}"


def mib(size: float | None) -> str:
    """Bytes in MiB with about three significant digits, and at most four decimals.

    >>> mib(140_787_712), mib(1_100_000), mib(2_000), mib(800)
    ('134.27', '1.05', '0.0019', '0.0008')
    """
    if size is None:
        return NOTHING
    value = size / MIB
    if value >= 1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3f}" if value >= 0.01 else f"{value:.4f}"


def seconds(value: float | None) -> str:
    """Seconds with about three significant digits.

    >>> seconds(3.541), seconds(0.3), seconds(0.0021)
    ('3.54', '0.300', '0.0021')
    """
    return NOTHING if value is None else f"{value:.{seconds_digits(value)}f}"


def seconds_digits(value: float) -> int:
    """Digits after the decimal point."""
    return 2 if value >= 1 else 3 if value >= 0.1 else 4


def ratio(value: float | None, base: float | None) -> float | None:
    """``value / base``, or None where one is unknown or the base is 0."""
    return value / base if value is not None and base else None


def times(factor: float | None) -> str:
    """A ratio as text.

    >>> times(31.904), times(0.0123), times(1200)
    ('31.9x', '0.012x', '1200x')
    """
    if factor is None:
        return NOTHING
    return f"{factor:.0f}x" if factor >= 100 else f"{factor:.{3 if factor >= 1 else 2}g}x"


def seeds_note(
    rows: Sequence[tuple[str, int]], what: str = "Mean ± sample standard deviation"
) -> str:
    """State once how many seeds are behind the means, given (row, number of seeds) pairs.

    >>> seeds_note([("FedRAN", 3), ("AFL", 3)])
    'Mean ± sample standard deviation over 3 seeds.'
    >>> seeds_note([("FedRAN", 3), ("AFL", 3), ("TARGET", 1)])
    'Mean ± sample standard deviation over 3 seeds, except 1 seed: TARGET.'
    >>> seeds_note([("FedRAN", 1), ("AFL", 1), ("TARGET", 3)])
    'One seed each, except 3 seeds: TARGET.'
    """
    counts = Counter(n for _, n in rows)
    if set(counts) <= {1}:
        return "One seed each, so no spread is shown."
    usual = max(counts, key=lambda n: (counts[n], n))
    note = "One seed each" if usual == 1 else f"{what} over {counted(usual, 'seed')}"
    for n in sorted(set(counts) - {usual}):
        names = dict.fromkeys(name for name, other in rows if other == n)
        note += f", except {counted(n, 'seed')}: {'; '.join(names)}"
    return note + "."


def seeds_per_group(found: Iterable[Group]) -> list[tuple[str, int]]:
    """Name and number of seeds of each group, with its β where a method has several numbers."""
    members = [(g.name, len(g.results), g) for g in found]
    betas: dict[str, dict[int, list[str]]] = {}
    for name, n, g in members:
        betas.setdefault(name, {}).setdefault(n, []).append(beta_text(g.beta))
    return [
        (name if len(betas[name]) == 1 else f"{name} (β = {', '.join(betas[name][n])})", n)
        for name, n, _ in members
    ]
