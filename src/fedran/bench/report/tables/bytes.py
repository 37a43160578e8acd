"""Communication: what was measured, what the formula says, what the paper printed."""

from __future__ import annotations

from collections.abc import Iterable

from fedran.bench.report.paper import MIB, Printed, paper_row, printed
from fedran.bench.report.tables.table import (
    NOTHING,
    Cell,
    Column,
    Table,
    collapse_but_first,
    mib,
    number,
    numbers,
    times,
    words,
)
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_place,
    comparisons,
    groups,
    mean_of,
    place_title,
)
from fedran.bench.results.metrics import formula_upload, max_download, total_download, total_upload
from fedran.bench.results.result import Result

READ = (
    "What one client sends in one task, at most, in MiB (2^20 bytes; what the paper calls MB is "
    "this too). Measured is the length of the encoded messages, largest over clients, tasks and "
    "seeds; the total is over all clients and tasks, mean over seeds. The formula is the largest "
    "upload as the method's own paper counts it."
)


def largest_upload(g: Group) -> int:
    """The largest upload of any client, task and seed, bytes."""
    return max(r.max_upload for r in g.results)


def printed_for(setting: Setting) -> Printed | None:
    """The paper's setting that this one can be read beside: all labels, Dirichlet shares."""
    if setting.label_rate < 1 or setting.partitioner not in {"dirichlet", "capped"}:
        return None
    return printed(setting.dataset, setting.tasks, setting.clients)


def communication_tables(results: Iterable[Result]) -> list[Table]:
    """FedRAN's two ratios, then one table for each setting and beta."""
    places = by_place(groups(comparisons(results)))
    tables = [_table(setting, beta, found) for (setting, beta), found in places.items()]
    ratios = _ratios(places)
    folded = collapse_but_first(tables, [setting for setting, _ in places])
    return ([ratios] if ratios else []) + folded


def _first(found: list[Group], key: str) -> Group | None:
    return next((g for g in found if g.key == key), None)


def _ratios(places: dict[tuple[Setting, float | None], list[Group]]) -> Table | None:
    blocks: dict[Setting, list[list[Cell]]] = {}
    for (setting, beta), found in places.items():
        ours, theirs = _first(found, "fedran"), _first(found, "fedran-paper")
        paper = printed_for(setting)
        told = paper.mib("FedRAN") if paper else None
        if ours is not None and (theirs is not None or told is not None):
            sent = largest_upload(theirs) if theirs else None
            cells = _two_ratios(largest_upload(ours), told, sent)
            head = [Cell(setting.title), Cell(NOTHING if beta is None else f"{beta:g}")]
            blocks.setdefault(setting, []).append(head + cells)
    if not blocks:
        return None
    columns = [
        *words("setting", "β"),
        *numbers("FedRAN, measured"),
        Column("paper, printed", muted=True),
        *numbers("printed is larger by", "FedRAN-paper, measured", "that is larger by"),
    ]
    note = (
        "Largest uploads. The printed figure counts 8 bytes a number, the nominal rank and "
        "all classes. FedRAN-paper is the paper's algorithm as run here: float32, at most as many "
        "columns as the client has rows. The second ratio is the fair one."
    )
    return Table("FedRAN against the paper's FedRAN", columns, list(blocks.values()), note)


def _two_ratios(size: int, told: float | None, sent: int | None) -> list[Cell]:
    return [
        Cell(mib(size)),
        number(told, muted=True),
        Cell(times(told * MIB / size if told and size else None)),
        Cell(mib(sent)),
        Cell(times(sent / size if sent and size else None)),
    ]


def _table(setting: Setting, beta: float | None, found: list[Group]) -> Table:
    ours, paper = _first(found, "fedran"), printed_for(setting)
    columns = [
        *words("method"),
        *numbers(
            "largest upload", "formula", "total up", "largest down", "total down", "ratio to FedRAN"
        ),
        *([Column("upload, printed", muted=True)] if paper else []),
        Column("a client sends", numeric=False, wide=True),
    ]
    rows = [_row(g, ours, paper) for g in sorted(found, key=largest_upload)]
    return Table(place_title(setting, beta), columns, [[r] for r in rows])


def _row(g: Group, ours: Group | None, paper: Printed | None) -> list[Cell]:
    formula = [f for r in g.results if (f := formula_upload(r)) is not None]
    size = largest_upload(g)
    base = largest_upload(ours) if ours else 0
    told = paper.mib(paper_row(g)) if paper else None
    return [
        Cell(g.name),
        Cell(mib(size)),
        Cell(mib(max(formula)) if formula else NOTHING),
        Cell(mib(mean_of(g.stat(total_upload)))),
        Cell(mib(max(max_download(r) for r in g.results))),
        Cell(mib(mean_of(g.stat(total_download)))),
        Cell(times(size / base) if base else NOTHING),
        *([number(told, muted=True)] if paper else []),
        Cell(g.first.sends),
    ]
