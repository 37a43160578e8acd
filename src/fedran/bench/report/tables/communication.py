"""Bytes per client and task: measured, by the formula of the method's paper, and printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedran.bench.report.paper import paper_row, printed_for
from fedran.bench.report.tables.table import (
    MIB,
    Cell,
    Column,
    Shown,
    Table,
    beta_text,
    method_table,
    mib,
    number,
    number_columns,
    one_per_setting,
    ratio,
    results_of,
    setting_cell,
    text_columns,
    times,
)
from fedran.bench.results.grouping import (
    Cases,
    Group,
    Setting,
    comparison_cases,
    setting_title,
)
from fedran.bench.results.metrics import (
    formula_upload,
    is_fine_tuned,
    max_download,
    total_download,
    total_upload,
)
from fedran.bench.results.result import Result


def largest_upload(g: Group) -> int:
    """The largest upload of any client, task and seed, in bytes."""
    return max(r.max_upload for r in g.results)


def largest_formula(g: Group) -> int | None:
    """The largest upload by the formula of the method's paper, in bytes."""
    return max((f for r in g.results if (f := formula_upload(r)) is not None), default=None)


def group_of(key: str, found: Iterable[Group]) -> Group | None:
    """The first group of a method, not counting runs on a network fine-tuned in task 0."""
    return next((g for g in found if g.key == key and not is_fine_tuned(g.first)), None)


def communication_tables(results: Iterable[Result]) -> list[Table]:
    """FedRAN against the paper's FedRAN, then one table per setting and beta."""
    cases = comparison_cases(results)
    tables = one_per_setting((case[0], _table(*case, found)) for case, found in cases.items())
    return _against_the_paper(cases) + tables


def _against_the_paper(cases: Cases) -> list[Table]:
    """How much smaller FedRAN's upload is than the printed and the measured one of the paper."""
    blocks: dict[Setting, list[list[Cell]]] = {}
    used: list[Group] = []
    for (setting, beta), found in cases.items():
        ours, theirs = group_of("fedran", found), group_of("fedran-paper", found)
        paper = printed_for(setting)
        printed = paper.mib("FedRAN") if paper else None
        if ours is None or (theirs is None and printed is None):
            continue
        size = largest_upload(ours)
        sent = largest_upload(theirs) if theirs else None
        used += [ours, theirs] if theirs else [ours]
        blocks.setdefault(setting, []).append(
            [
                setting_cell(setting),
                Cell(beta_text(beta)),
                Cell(mib(size)),
                Cell(mib(sent)),
                Cell(times(ratio(sent, size))),
                number(printed, muted=True),
                Cell(times(ratio(printed, size / MIB)), muted=True),
            ]
        )
    if not blocks:
        return []
    columns = [
        *text_columns("setting", "β"),
        *number_columns("FedRAN", "FedRAN-paper", "ratio", group="measured, MiB"),
        *(Column(h, "printed in the paper, MiB", muted=True) for h in ("FedRAN", "ratio")),
    ]
    note = (
        "Largest uploads. FedRAN-paper is the paper's algorithm as run here: float32, and at most "
        "as many columns as the client has rows. Its ratio to FedRAN is the fair comparison. The "
        "printed figure counts 8 bytes per number, the nominal rank and all classes."
    )
    title = "FedRAN against the paper's FedRAN"
    return [Table(title, columns, list(blocks.values()), note, results_of(used))]


def _table(setting: Setting, beta: float | None, found: Sequence[Group]) -> Table:
    ours, paper = group_of("fedran", found), printed_for(setting)
    base = largest_upload(ours) if ours else None
    shown: list[Shown] = [
        (Column("method", numeric=False), lambda g: Cell(g.name)),
        (Column("largest upload"), lambda g: Cell(mib(largest_upload(g)))),
        (Column("ratio to FedRAN"), lambda g: Cell(times(ratio(largest_upload(g), base)))),
        (Column("formula"), lambda g: Cell(mib(largest_formula(g)))),
        (Column("total upload"), lambda g: Cell(mib(g.mean(total_upload)))),
        (Column("largest download"), lambda g: Cell(mib(max(map(max_download, g.results))))),
        (Column("total download"), lambda g: Cell(mib(g.mean(total_download)))),
    ]
    if paper:
        printed = Column("upload, printed", muted=True)
        shown.append((printed, lambda g: number(paper.mib(paper_row(g)), muted=True)))
    shown.append((Column("a client sends", numeric=False), lambda g: Cell(g.first.sends)))
    title = f"{setting_title(setting, beta)}, in MiB"
    return method_table(title, found, shown, order=largest_upload)
