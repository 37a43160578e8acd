"""A study of one setting: lines of runs over its values, and the section that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fedran.bench.report.figures.chart import Chart, slug, unique
from fedran.bench.report.section import Section
from fedran.bench.report.tables.table import Table
from fedran.bench.results.grouping import Case, Group

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Study:
    """The groups of one setting and beta: ``lines[name][value of the setting]``."""

    case: Case
    lines: dict[Any, dict[Any, Group]]
    others: Sequence[Group] = ()
    """Groups that do not have the setting, for comparison."""
    method: str = ""
    """The only method of the study; empty where its lines are different methods."""

    @property
    def title(self) -> str:
        """The method and the setting."""
        return f"{self.method}; {self.case.title}" if self.method else self.case.title

    @property
    def members(self) -> list[Group]:
        """All groups."""
        return [*(g for line in self.lines.values() for g in line.values()), *self.others]

    @property
    def values(self) -> list[Any]:
        """The values of the setting, each once, in order of appearance."""
        return list(dict.fromkeys(value for line in self.lines.values() for value in line))


def study_section(
    name: str,
    title: str,
    intro: Sequence[str],
    studies: Sequence[Study],
    table: Callable[[Study], Table],
    draw: Callable[[Study, Figure], None],
    size: Callable[[Study], tuple[float, float, float]] = lambda _: (7.2, 3.0, 5.4),
    note: Callable[[Study], str] = lambda _: "",
) -> Section:
    """A table and a figure per study.

    ``size`` gives width and height of the figure in inches, and its height in narrow windows.
    """
    charts = []
    for s in studies:
        width, height, narrow = size(s)
        shape, drawn = (width, height), partial(draw, s)
        charts.append(
            Chart(slug(name, s.title), s.title, shape, drawn, note(s), narrow_height=narrow)
        )
    return Section(name, title, intro, [table(s) for s in studies], unique(charts))
