"""The table of all comparisons: our messages, two references, and the best other method."""

from __future__ import annotations

from collections.abc import Sequence

from fedran.bench.report.tables.table import (
    NOTHING,
    Block,
    Cell,
    Table,
    beta_text,
    mib,
    number_columns,
    results_of,
    text_columns,
)
from fedran.bench.report.verdict import MIXTURE, OURS, Case, strongest
from fedran.bench.results.grouping import Group, comparison_cases, is_ours
from fedran.bench.results.metrics import is_fine_tuned
from fedran.bench.results.result import Result

COMPARED = {
    "fedran": OURS,
    "fedran-mixture": MIXTURE,
    "fedran-paper": "FedRAN-paper",
    "exact": "Exact Gram",
}
"""Columns of the table of all comparisons, before the best other method."""


def comparison_table(results: Sequence[Result]) -> Table:
    """Our messages, two references and the best other method at every setting and beta."""
    blocks: list[Block] = []
    used: list[Group] = []
    for (setting, beta), tuned, members in _frozen_and_tuned(results):
        shown = [strongest(g for g in members if g.key == key) for key in COMPARED]
        best = strongest(g for g in members if g.competes and not is_ours(g))
        stage = ", network fine-tuned in task 0" if tuned else ""
        where = Cell(setting.title + stage, key=setting.key + stage)
        row = [where, Cell(beta_text(beta)), *(Cell(_pair(g)) for g in shown)]
        row += [Cell(f"{best.name}: {_pair(best)}" if best else NOTHING)]
        if not blocks or blocks[-1][0][0] != row[0]:
            blocks.append([])
        blocks[-1] = [*blocks[-1], row]
        used += [g for g in (*shown, best) if g]
    present = {g.key for g in used}
    absent = [i + 2 for i, key in enumerate(COMPARED) if key not in present]
    columns = [
        *text_columns("setting", "β"),
        *number_columns(*COMPARED.values()),
        *text_columns("best other method"),
    ]
    columns = [c for i, c in enumerate(columns) if i not in absent]
    blocks = [
        [[c for i, c in enumerate(row) if i not in absent] for row in block] for block in blocks
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


def _frozen_and_tuned(results: Sequence[Result]) -> list[tuple[Case, bool, list[Group]]]:
    """The methods of each case; for each setting first those on the frozen network."""
    cases = comparison_cases(results)
    settings = list(dict.fromkeys(setting for setting, _ in cases))
    parts = [
        (case, tuned, [g for g in found if is_fine_tuned(g.first) == tuned])
        for case, found in cases.items()
        for tuned in (False, True)
    ]
    parts.sort(key=lambda part: (settings.index(part[0][0]), part[1]))
    return [part for part in parts if part[2]]


def _pair(g: Group | None) -> str:
    return f"{g.A_T.mean:.2f} ({mib(g.largest_upload)})" if g else NOTHING
