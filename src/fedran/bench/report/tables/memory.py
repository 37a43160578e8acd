"""What is kept and what is lost: forgetting, backward transfer, drift, budgets."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedran.bench.report.tables.table import (
    NOTHING,
    Cell,
    Column,
    Table,
    collapse_but_first,
    number,
    numbers,
    seeds_note,
    spread,
    words,
)
from fedran.bench.results.grouping import Group, Setting, by_place, comparisons, groups, place_title
from fedran.bench.results.metrics import (
    backward_transfer,
    budgets_met,
    class_backward_transfer,
    class_forgetting,
    forgetting,
    mean_or_none,
    on_images,
)
from fedran.bench.results.result import Result

WORST = 10
READ = (
    "What is lost of earlier tasks, in points, and whether budgets that were set are kept. "
    "Forgetting: best accuracy on a task's classes before the end minus that at the end, "
    "mean over all tasks but the last; smaller is better. Backward transfer: accuracy at the end "
    "minus that right after the task; larger is better. More classes to choose from lower both, "
    "also for a joint solve. Drift: how far a trained extractor moved the features; largest over "
    "tasks, mean over seeds."
)


def forgetting_tables(results: Iterable[Result]) -> list[Table]:
    """For each setting and beta: means over tasks, drift, budgets."""
    places = _places(results)
    means = [_means(*place, found) for place, found in places.items()]
    return collapse_but_first(means, [setting for setting, _ in places])


def forgetting_details(results: Iterable[Result]) -> list[Table]:
    """For each setting and beta: every task, and the most forgotten classes."""
    return [
        table
        for place, found in _places(results).items()
        for table in (_per_task(*place, found), _worst_classes(*place, found))
    ]


def _places(results: Iterable[Result]) -> dict[tuple[Setting, float | None], list[Group]]:
    found = by_place(groups(comparisons(results)))
    return {place: members for place, members in found.items() if place[0].tasks > 1}


def _means(setting: Setting, beta: float | None, found: list[Group]) -> Table:
    counts = [len(g.results) for g in found]
    say_n = len(set(counts)) > 1
    rows = [
        [
            Cell(g.name),
            spread(g.stat(lambda r: mean_or_none(forgetting(r))), say_n=say_n),
            spread(g.stat(lambda r: mean_or_none(backward_transfer(r))), say_n=say_n),
            _drift(g),
            Cell(_budgets(g)),
        ]
        for g in found
    ]
    columns = [
        *words("method"),
        *numbers("forgetting", "backward transfer", "drift"),
        *words("budgets"),
    ]
    title = place_title(setting, beta)
    return Table(title, columns, [[r] for r in rows], seeds_note(counts))


def _drift(g: Group) -> Cell:
    drift = g.stat(lambda r: max(r.drift) if r.drift else None)
    if drift is None:
        return Cell(NOTHING if on_images(g.first) else "0 (frozen)")
    return Cell(f"{drift.mean:.3g}")


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


def _per_task(setting: Setting, beta: float | None, found: list[Group]) -> Table:
    heads = [f"task {t + 1}" for t in range(setting.tasks - 1)]
    measures = (forgetting, backward_transfer)
    rows = [
        [
            Cell(g.name),
            *(
                number(float(v), 1)
                for measure in measures
                for v in np.mean([measure(r) for r in g.results], axis=0)
            ),
        ]
        for g in found
    ]
    columns = [
        *words("method"),
        *numbers(*heads, group="forgetting"),
        *numbers(*heads, group="backward transfer"),
    ]
    title = f"Each task; {place_title(setting, beta)}"
    return Table(title, columns, [[r] for r in rows], "Points, mean over seeds.", collapsed=True)


def _worst_classes(setting: Setting, beta: float | None, found: list[Group]) -> Table:
    rows = [[Cell(g.name), *_worst(_smallest_seed(g))] for g in found]
    columns = [*words("method"), *(Column(f"{i + 1}.") for i in range(WORST))]
    note = (
        "Points forgotten, backward transfer, the class and its task. Of the smallest seed, since "
        "the order changes with it."
    )
    title = f"The {WORST} most forgotten classes; {place_title(setting, beta)}"
    return Table(title, columns, [[r] for r in rows], note, collapsed=True)


def _smallest_seed(g: Group) -> Result:
    return min(g.results, key=lambda r: sorted(r.seeds.items()))


def _worst(result: Result) -> list[Cell]:
    changes = class_backward_transfer(result)
    lost = [(v, c) for c, v in enumerate(class_forgetting(result)) if v is not None]
    ends = [len(row) for row in result.class_right]
    worst = sorted(lost, key=lambda p: (-p[0], p[1]))[:WORST]
    cells = [
        Cell(f"{v:.1f}, {changes[c]:+.1f} ({result.classes[c]}, t{_task_of(c, ends)})")
        for v, c in worst
    ]
    return cells + [Cell(NOTHING)] * (WORST - len(cells))


def _task_of(c: int, ends: list[int]) -> int:
    return next(t for t, end in enumerate(ends, 1) if c < end)
