"""Accuracy: all comparisons at a glance, every method of a setting, and the paper's figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedran.bench.report.paper import (
    BETAS,
    ROUNDS,
    VIT,
    Printed,
    paper_row,
    printed_for,
    vit_backbone,
)
from fedran.bench.report.tables.table import (
    NOT_RUN,
    NOTHING,
    Block,
    Cell,
    Column,
    Table,
    beta_text,
    mean_and_spread,
    mib,
    number,
    number_columns,
    results_of,
    seconds,
    seeds_note,
    seeds_per_group,
    setting_cell,
    text_columns,
)
from fedran.bench.report.tables.training import reduced
from fedran.bench.report.verdict import MIXTURE, OURS, strongest
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_setting,
    comparisons,
    frozen_and_tuned,
    groups,
    is_ours,
    marks,
    row_order,
)
from fedran.bench.results.metrics import network, task_seconds
from fedran.bench.results.result import Result

HEADINGS = ("A_avg", "A_T")
_ABSENT = [Cell(NOTHING)] * len(HEADINGS)
COMPARED = {
    "fedran": OURS,
    "fedran-mixture": MIXTURE,
    "fedran-paper": "FedRAN-paper",
    "exact": "Exact Gram",
}
"""Columns of the table of all comparisons, before the best other method."""


def comparison_table(results: Sequence[Result]) -> Table:
    """Our messages, two references and the best other method at every setting and beta."""
    parts = frozen_and_tuned(results)
    present = {g.key for _, _, members in parts for g in members}
    keys = [key for key in COMPARED if key in present]
    blocks: list[Block] = []
    used: list[Group] = []
    for (setting, beta), tuned, members in parts:
        shown = [strongest(g for g in members if g.key == key) for key in keys]
        best = strongest(g for g in members if g.competes and not is_ours(g))
        where = setting_cell(setting, ", network fine-tuned in task 0" if tuned else "")
        row = [where, Cell(beta_text(beta)), *(Cell(_pair(g)) for g in shown)]
        row += [Cell(f"{best.name}: {_pair(best)}" if best else NOTHING)]
        if not blocks or blocks[-1][0][0] != row[0]:
            blocks.append([])
        blocks[-1] = [*blocks[-1], row]
        used += [g for g in (*shown, best) if g]
    columns = [
        *text_columns("setting", "β"),
        *number_columns(*(COMPARED[key] for key in keys)),
        *text_columns("best other method"),
    ]
    note = (
        "Accuracy in percent after the last task, mean over seeds, and in parentheses the largest "
        "upload of any client in any task in MiB. Where a method ran with several settings, the "
        "most accurate is shown."
    )
    about = {
        "fedran-paper": "FedRAN-paper is our implementation of the algorithm as published.",
        "exact": "Exact Gram sends the Gram matrix of FedRAN's random features uncompressed.",
    }
    note = " ".join([note, *(text for key, text in about.items() if key in present)])
    return Table("All comparisons", columns, blocks, note, results_of(used))


def _pair(g: Group | None) -> str:
    return f"{g.A_T.mean:.2f} ({mib(g.largest_upload)})" if g else NOTHING


def accuracy_tables(results: Iterable[Result]) -> list[Table]:
    """One table per setting, followed by the paper's figures where it has the same setting."""
    tables = []
    for setting, members in by_setting(groups(comparisons(results))).items():
        tables.append(_measured(setting, members))
        paper = printed_for(setting)
        betas = [b for b in BETAS if b in {g.beta for g in members}]
        beside = paper is not None and paper.accuracy is VIT and vit_backbone(setting.dataset)
        if paper and betas and not beside:  # the table of the ViT has these figures
            tables.append(_printed(paper, betas, members))
    return tables


def _measured(setting: Setting, members: Sequence[Group]) -> Table:
    betas = sorted({g.beta for g in members}, key=lambda b: (b is None, b or 0.0))
    cells: dict[tuple[str, float | None], list[Cell]] = {}
    for beta in betas:
        found = [g for g in members if g.beta == beta]
        competes = [g.competes for g in found]
        average = marks([g.A_avg.mean for g in found], competes)
        last = marks([g.A_T.mean for g in found], competes)
        for i, g in enumerate(found):
            cells[g.name, beta] = [
                mean_and_spread(g.A_avg, mark=average[i]),
                mean_and_spread(g.A_T, mark=last[i]),
            ]
    named: dict[str, list[Group]] = {}
    for g in sorted(members, key=row_order):
        named.setdefault(g.name, []).append(g)
    blocks: list[Block] = [
        [
            [
                Cell(name),
                *(c for beta in betas for c in cells.get((name, beta), _ABSENT)),
                Cell(mib(max(g.largest_upload for g in own))),
                Cell(seconds(float(np.mean([task_seconds(r) for r in results_of(own)])))),
            ]
        ]
        for name, own in named.items()
    ]
    columns = [
        *text_columns("method"),
        *(c for b in betas for c in number_columns(*HEADINGS, group=_beta_heading(b))),
        *number_columns("largest upload, MiB", "seconds per task"),
    ]
    over = "client, task, seed and β" if len(betas) > 1 else "client, task and seed"
    note = (
        f"{seeds_note(seeds_per_group(members))} In each column of accuracies the best method is "
        "bold and the second best is underlined. The largest upload is that of any "
        f"{over}. The seconds are those of a client and the server, without the backbone"
    )
    shared = any(r.side_by_side > 1 for r in results_of(members))
    note += "; some runs shared their machine, so they are only indicative." if shared else "."
    return Table(f"All methods: {setting.title}", columns, blocks, note, results_of(members))


def _beta_heading(beta: float | None) -> str:
    return "" if beta is None else f"β = {beta:g}"


def _printed(paper: Printed, betas: Sequence[float], members: Sequence[Group]) -> Table:
    """The paper's figures, beside ours for networks that were trained as long as there."""
    same = [g for g in members if network(g.first) == paper.backbone]
    # Of two flavours the first counts, the corrected one.
    ours = {(paper_row(g), g.beta): g for g in reversed(same) if not reduced(g.first)}
    trained, measured = {paper_row(g) for g in same}, {beta for _, beta in ours}
    columns = [Column("method", numeric=False, muted=True)]
    for beta in betas:
        columns += [Column(h, _beta_heading(beta), muted=True) for h in HEADINGS]
        if beta in measured:
            columns += number_columns(*(f"here {h}" for h in HEADINGS), group=_beta_heading(beta))
    blocks: list[Block] = []
    for method in [m for m, printed in paper.accuracy.items() if paper.dataset in printed]:
        row = [Cell(method, muted=True)]
        for beta in betas:
            row += [number(v, muted=True) for v in paper.pair(method, beta) or (None, None)]
            if beta in measured:
                g = ours.get((method, beta))
                absent = [Cell(NOT_RUN, muted=True)] * 2 if method in trained else _ABSENT
                row += [mean_and_spread(g.A_avg), mean_and_spread(g.A_T)] if g else absent
        blocks.append([row])
    note = "Copied from the paper, not measured here. "
    if ours:
        note += (
            f"Columns marked here: our runs of the same network, a {paper.backbone} trained from "
            f"scratch for {ROUNDS} rounds per task. {seeds_note(seeds_per_group(ours.values()))} "
        )
    note += "Other backbones differ, so these figures are context and are not ranked."
    title = f"Printed in the paper: {paper.dataset} with {paper.backbone}"
    return Table(title, columns, blocks, note, results_of(ours.values()), collapsed=True)
