"""Drift of trained extractors, and the accuracy on the same reference rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedran.bench.report.tables.table import (
    NOTHING,
    Cell,
    Table,
    collapse_but_first,
    number,
    numbers,
    words,
)
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_place,
    comparisons,
    groups,
    place_title,
    row_order,
)
from fedran.bench.results.metrics import is_head, on_images
from fedran.bench.results.result import Result

READ = (
    "Why the extractor is frozen. The reference rows are those of client 1 in task 2. Drift is "
    "the mean distance of their features from where task 2 left them; a frozen extractor has "
    "none. Heads on frozen features are in the table too: what they lose is lost without drift. "
    "The right panel adds up what the mean client sends: a model in every round, or one message "
    "a task."
)


def drift_tables(results: Iterable[Result]) -> list[Table]:
    """One table for each setting and beta where some extractor drifted."""
    places = drifting(results)
    tables = [_table(*place, found) for place, found in places.items()]
    return collapse_but_first(tables, [setting for setting, _ in places])


def drifting(results: Iterable[Result]) -> dict[tuple[Setting, float | None], list[Group]]:
    """The groups of every setting and beta that has a drift; the most skewed beta comes first."""
    places = by_place(groups(comparisons(results)))
    return {place: found for place, found in places.items() if any(map(has_drift, found))}


def has_drift(g: Group) -> bool:
    """Whether the features of its reference rows moved, in any of its runs."""
    return any(r.drift for r in g.results)


def over_seeds(rows: Iterable[Sequence[float]]) -> list[float]:
    """Mean of each entry over the seeds that have it; nothing of nothing.

    >>> over_seeds([[0.0, 1.0], [0.0, 2.0], []])
    [0.0, 1.5]
    """
    there = [list(row) for row in rows if len(row)]
    length = min(map(len, there), default=0)
    return [float(np.mean([row[i] for row in there])) for i in range(length)]


def reference_accuracy(g: Group) -> list[float]:
    """Percent right of the reference rows, after task 2 and every later one."""
    return [100.0 * v for v in over_seeds(r.reference_acc for r in g.results)]


def _table(setting: Setting, beta: float | None, found: list[Group]) -> Table:
    heads = [f"task {t}" for t in range(2, setting.tasks + 1)]
    columns = [
        *words("method"),
        *numbers(*heads, group="drift after"),
        *numbers(*heads, group="accuracy on the reference rows after, %"),
    ]
    shown = [g for g in sorted(found, key=row_order) if _belongs(g)]
    rows = [[[Cell(g.name), *_drift(g, len(heads)), *_right(g, len(heads))]] for g in shown]
    return Table(place_title(setting, beta), columns, rows, "Means over seeds.")


def _belongs(g: Group) -> bool:
    """Trained methods, and FedRAN for comparison."""
    told = any(r.reference_acc for r in g.results)
    return has_drift(g) or (told and (is_head(g.first) or g.key == "fedran"))


def _drift(g: Group, length: int) -> list[Cell]:
    if not on_images(g.first):
        return [Cell("0")] * length
    return _fill([Cell(f"{v:.3g}") for v in over_seeds(r.drift for r in g.results)], length)


def _right(g: Group, length: int) -> list[Cell]:
    return _fill([number(v, 1) for v in reference_accuracy(g)], length)


def _fill(cells: list[Cell], length: int) -> list[Cell]:
    return (cells + [Cell(NOTHING)] * length)[:length]
