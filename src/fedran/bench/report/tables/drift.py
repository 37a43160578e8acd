"""Drift of trained feature extractors, and the accuracy on the same reference rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedran.bench.report.tables.communication import group_of
from fedran.bench.report.tables.table import (
    Cell,
    Table,
    number,
    number_columns,
    one_per_setting,
    results_of,
    significant,
    text_columns,
)
from fedran.bench.results.grouping import (
    Cases,
    Group,
    Setting,
    comparison_cases,
    row_order,
    setting_title,
)
from fedran.bench.results.metrics import has_moving_features, is_head
from fedran.bench.results.result import Result


def drift_tables(results: Iterable[Result]) -> list[Table]:
    """One table per setting and beta in which some feature extractor drifted."""
    cases = drifting(results)
    return one_per_setting((case[0], _table(*case, found)) for case, found in cases.items())


def drifting(results: Iterable[Result]) -> Cases:
    """The groups of every setting and beta with drift; the most skewed beta comes first."""
    cases = comparison_cases(results)
    return {case: found for case, found in cases.items() if any(map(has_drift, found))}


def has_drift(g: Group) -> bool:
    """Whether any run of the group recorded drift."""
    return any(r.drift for r in g.results)


def mean_drift(g: Group) -> list[float]:
    """Drift after task 2 and every later task, mean over seeds."""
    return mean_over_seeds(r.drift for r in g.results)


def mean_reference_accuracy(g: Group) -> list[float]:
    """Accuracy on the reference rows in percent, after task 2 and every later task."""
    return [100.0 * v for v in mean_over_seeds(r.reference_acc for r in g.results)]


def mean_over_seeds(rows: Iterable[Sequence[float]]) -> list[float]:
    """Entry-wise mean of the rows that are not empty.

    >>> mean_over_seeds([[0.0, 1.0], [0.0, 2.0], []])
    [0.0, 1.5]
    """
    recorded = [list(row) for row in rows if len(row)]
    length = min(map(len, recorded), default=0)
    return [float(np.mean([row[i] for row in recorded])) for i in range(length)]


def _table(setting: Setting, beta: float | None, found: Sequence[Group]) -> Table:
    columns = [
        *text_columns("method"),
        *number_columns("drift after the last task"),
        *number_columns("task 2", "the last task", group="accuracy on the reference rows after, %"),
    ]
    shown = [g for g in sorted(found, key=row_order) if _is_shown(g)]
    ours = group_of("fedran", shown)  # once: the sizes of its message change no drift
    shown = [g for g in shown if g.key != "fedran" or g is ours]
    blocks = []
    for g in shown:
        drift, accuracy = mean_drift(g), mean_reference_accuracy(g)
        moved = significant(drift[-1] if drift else None)
        ends = [accuracy[0], accuracy[-1]] if accuracy else [None, None]
        if not has_moving_features(g.first):
            moved = Cell("0")
        blocks.append([[Cell(g.name), moved, *(number(v, 1) for v in ends)]])
    note = "Means over seeds."
    return Table(setting_title(setting, beta), columns, blocks, note, results_of(shown))


def _is_shown(g: Group) -> bool:
    """Trained methods, and FedRAN for comparison."""
    recorded = any(r.reference_acc for r in g.results)
    return has_drift(g) or (recorded and (is_head(g.first) or g.key == "fedran"))
