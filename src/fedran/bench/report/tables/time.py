"""Runtime: client, forward pass, server, the paper's Time, memory; machines kept apart."""

from __future__ import annotations

from collections.abc import Iterable

from fedran.bench.report.paper import Printed, paper_row
from fedran.bench.report.tables.bytes import printed_for
from fedran.bench.report.tables.table import (
    NOTHING,
    Cell,
    Column,
    Table,
    collapse_but_first,
    number,
    numbers,
    seconds,
    seconds_digits,
    words,
)
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_place,
    groups,
    machine_of,
    mean_of,
    measured,
    place_title,
)
from fedran.bench.results.metrics import (
    client_seconds,
    extraction_seconds,
    peak_memory,
    server_seconds,
    task_seconds,
    whole_seconds,
)
from fedran.bench.results.result import Result

READ = (
    "Seconds of one task, mean over tasks and seeds. Client is the mean over clients; Time is "
    "client + server, as in the paper, without the forward pass. The forward pass is rows times "
    "the backbone's measured seconds a row, where those are known; a network that is trained on "
    "the images has it in its Time. Memory is the peak of the "
    "whole process, data included. Times of different machines do not compare. Runs that shared "
    "their machine with others are left out: their seconds say little."
)


def runtime_tables(results: Iterable[Result]) -> list[Table]:
    """One table for each setting and beta."""
    alone = [r for r in measured(results) if r.side_by_side == 1]
    # Where runs were made for their seconds, the others were not.
    alone = [r for r in alone if r.study in {"runtime", "speedup"}] or alone
    places = by_place(groups(alone, by_machine=True))
    tables = [_table(setting, beta, found) for (setting, beta), found in places.items()]
    return collapse_but_first(tables, [setting for setting, _ in places])


def _table(setting: Setting, beta: float | None, found: list[Group]) -> Table:
    paper = printed_for(setting)
    paper = paper if paper and paper.runtime else None
    columns = [
        *words("method"),
        *numbers(
            "Time", "client", "server", "forward pass", "Time with forward pass", "peak memory, MiB"
        ),
        *([Column("Time, printed (RTX A5000)", muted=True)] if paper else []),
        Column("seeds"),
        Column("machine", numeric=False, wide=True),
    ]
    rows = [[_row(g, paper)] for g in found]
    return Table(place_title(setting, beta), columns, rows)


def _row(g: Group, paper: Printed | None) -> list[Cell]:
    memory = g.stat(peak_memory)
    parts = [g.stat(f) for f in (client_seconds, server_seconds, extraction_seconds, whole_seconds)]
    told = paper.seconds(paper_row(g)) if paper else None
    return [
        Cell(g.name),
        _seconds(g),
        *(Cell(seconds(mean_of(s))) for s in parts),
        Cell(f"{memory.mean / 2**20:.0f}" if memory else NOTHING),
        *([number(told, muted=True)] if paper else []),
        Cell(str(len(g.results))),
        Cell(machine_of(g.first)),
    ]


def _seconds(g: Group) -> Cell:
    time = g.stat(task_seconds)
    assert time is not None
    digits = seconds_digits(time.mean)
    return Cell(
        f"{time.mean:.{digits}f}" + ("" if time.spread is None else f" ± {time.spread:.{digits}f}")
    )
