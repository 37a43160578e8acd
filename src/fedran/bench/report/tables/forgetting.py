"""Loss of accuracy on earlier tasks: forgetting, backward transfer, drift, and budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedran.bench.report.section import Section
from fedran.bench.report.tables.table import (
    NOTHING,
    Cell,
    Column,
    Shown,
    Table,
    mean_and_spread,
    method_table,
    number,
    number_columns,
    one_per_setting,
    results_of,
    seeds_note,
    seeds_per_group,
    significant,
    text_columns,
)
from fedran.bench.results.grouping import Case, Group, comparison_cases, row_order
from fedran.bench.results.metrics import (
    backward_transfer,
    budgets_met,
    class_changes,
    forgetting,
    has_moving_features,
    mean_or_none,
)
from fedran.bench.results.result import Result

WORST = 10
"""Number of most forgotten classes that are listed."""


def forgetting_section(results: Sequence[Result]) -> Section:
    """Means per method; every task and the most forgotten classes are only exported."""
    intro = (
        "Loss of accuracy on earlier tasks. Forgetting is the best accuracy on the classes of a "
        "task before the end minus the accuracy at the end, mean over all tasks but the last; "
        "smaller is better. Backward transfer is the accuracy at the end minus the accuracy right "
        "after the task; larger is better. Every task adds classes to choose from, so both get "
        "worse even for a joint solve. Drift is the distance by which a trained extractor moved "
        "the features, largest over tasks and mean over seeds."
    )
    if any(r.budgets for r in results):
        intro += " Budgets are limits that the configuration sets for bytes, seconds or drift."
    tables = forgetting_tables(results) + forgetting_details(results)
    return Section("forgetting", "Forgetting", [intro], tables, folded=True)


def forgetting_tables(results: Iterable[Result]) -> list[Table]:
    """Means over tasks, drift and budgets for each setting and beta."""
    return one_per_setting((c.setting, _means(c, found)) for c, found in _cases(results).items())


def forgetting_details(results: Iterable[Result]) -> list[Table]:
    """Every task and the most forgotten classes, for each setting and beta."""
    return [
        table
        for case, found in _cases(results).items()
        for table in (_per_task(case, found), _worst_classes(case, found))
    ]


def _cases(results: Iterable[Result]) -> dict[Case, list[Group]]:
    cases = comparison_cases(results).items()
    return {case: sorted(found, key=row_order) for case, found in cases if case.setting.tasks > 1}


def _means(case: Case, found: Sequence[Group]) -> Table:
    def mean(measure: Callable[[Result], list[float]]) -> Callable[[Group], Cell]:
        return lambda g: mean_and_spread(g.stat(lambda r: mean_or_none(measure(r))))

    shown: list[Shown] = [
        (Column("forgetting"), mean(forgetting)),
        (Column("backward transfer"), mean(backward_transfer)),
        (Column("drift"), _drift),
    ]
    if any(r.budgets for r in results_of(found)):
        shown.append((Column("budgets", numeric=False), lambda g: Cell(_budgets(g))))
    title = f"{case.title}, in percentage points"
    return method_table(title, found, shown, seeds_note(seeds_per_group(found)))


def _drift(g: Group) -> Cell:
    drift = g.stat(lambda r: max(r.drift) if r.drift else None)
    if drift is None:
        return Cell(NOTHING if has_moving_features(g.first) else "0 (frozen)")
    return significant(drift.mean)


def _budgets(g: Group) -> str:
    met: dict[str, list[bool]] = {}
    for r in g.results:
        for name, kept in budgets_met(r).items():
            met.setdefault(name, []).append(kept)
    if not met:
        return "none set"
    return ", ".join(
        f"{name} {'met' if all(kept) else f'missed by {kept.count(False)} of {len(kept)} runs'}"
        for name, kept in met.items()
    )


def _per_task(case: Case, found: Sequence[Group]) -> Table:
    headings = [f"task {t + 1}" for t in range(case.setting.tasks - 1)]
    rows = [
        [
            Cell(g.name),
            *(
                number(float(v), 1)
                for measure in (forgetting, backward_transfer)
                for v in np.mean([measure(r) for r in g.results], axis=0)
            ),
        ]
        for g in found
    ]
    columns = [
        *text_columns("method"),
        *number_columns(*headings, group="forgetting"),
        *number_columns(*headings, group="backward transfer"),
    ]
    title = f"Per task: {case.title}"
    note = "Percentage points, mean over seeds."
    return Table(title, columns, [[r] for r in rows], note, results_of(found), exported=True)


def _worst_classes(case: Case, found: Sequence[Group]) -> Table:
    smallest_seeds = [min(g.results, key=lambda r: sorted(r.seeds.items())) for g in found]
    rows = [[Cell(g.name), *_most_forgotten(r)] for g, r in zip(found, smallest_seeds, strict=True)]
    columns = [*text_columns("method"), *number_columns(*(f"{i + 1}." for i in range(WORST)))]
    note = (
        "Each cell: forgetting, backward transfer, and in brackets the class and its task. Only "
        "the smallest seed is shown, because the order of the classes depends on the seed."
    )
    title = f"The {WORST} most forgotten classes: {case.title}"
    return Table(title, columns, [[r] for r in rows], note, smallest_seeds, exported=True)


def _most_forgotten(result: Result) -> list[Cell]:
    lost = [(-v[0], c, v[1]) for c, v in enumerate(class_changes(result)) if v is not None]
    cells = []
    for gain, c, change in sorted(lost)[:WORST]:
        task = next(t for t, row in enumerate(result.class_right, 1) if c < len(row))
        cells.append(Cell(f"{-gain:.1f}, {change:+.1f} ({result.classes[c]}, t{task})"))
    return cells + [Cell(NOTHING)] * (WORST - len(cells))
