"""Bytes per client and task: measured, by the formula of the method's paper, and printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedran.bench.report.paper import paper_row, printed_for
from fedran.bench.report.section import Section
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
from fedran.bench.results.grouping import Case, Group, Setting, comparison_cases, group_of
from fedran.bench.results.metrics import max_download, total_download, total_upload
from fedran.bench.results.result import Result


def communication_section(results: Sequence[Result]) -> Section:
    """Bytes of every method."""
    intro = [
        "Bytes that one client sends and receives in one task, in MiB (2^20 bytes). The largest "
        "upload is the length of the longest encoded message over all clients, tasks and seeds. "
        "Totals add up all clients and tasks, and are means over seeds. The formula is the "
        "largest upload as the paper of the method counts it."
    ]
    tables = communication_tables(results)
    return Section("communication", "Communication", intro, tables, folded=True)


def communication_tables(results: Iterable[Result]) -> list[Table]:
    """FedRAN against the paper's FedRAN, then one table per setting and beta."""
    cases = comparison_cases(results)
    tables = one_per_setting((case.setting, _table(case, found)) for case, found in cases.items())
    return _against_the_paper(cases) + tables


def _against_the_paper(cases: Mapping[Case, Sequence[Group]]) -> list[Table]:
    """How much smaller FedRAN's upload is than the printed and the measured one of the paper."""
    blocks: dict[Setting, list[list[Cell]]] = {}
    used: list[Group] = []
    for (setting, beta), found in cases.items():
        ours, theirs = group_of("fedran", found), group_of("fedran-paper", found)
        paper = printed_for(setting)
        printed = paper.mib("FedRAN") if paper else None
        if ours is None or (theirs is None and printed is None):
            continue
        size = ours.largest_upload
        sent = theirs.largest_upload if theirs else None
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


def _table(case: Case, found: Sequence[Group]) -> Table:
    ours, paper = group_of("fedran", found), printed_for(case.setting)
    base = ours.largest_upload if ours else None
    shown: list[Shown] = [
        (Column("largest upload"), lambda g: Cell(mib(g.largest_upload))),
        (Column("ratio to FedRAN"), lambda g: Cell(times(ratio(g.largest_upload, base)))),
        (Column("formula"), lambda g: Cell(mib(g.largest_formula))),
        (Column("total upload"), lambda g: Cell(mib(g.mean(total_upload)))),
        (Column("largest download"), lambda g: Cell(mib(max(map(max_download, g.results))))),
        (Column("total download"), lambda g: Cell(mib(g.mean(total_download)))),
    ]
    if paper:
        printed = Column("upload, printed", muted=True)
        shown.append((printed, lambda g: number(paper.mib(paper_row(g)), muted=True)))
    shown.append((Column("a client sends", numeric=False), lambda g: Cell(g.first.sends)))
    return method_table(f"{case.title}, in MiB", found, shown, order=lambda g: g.largest_upload)
