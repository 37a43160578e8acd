"""The tables of a report as plain data. Numbers become text only here."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedran_bench.report.paper import Printed, printed_for
from fedran_bench.report.verdict import NAMED, frozen_and_tuned, leaders, quoted, strongest
from fedran_bench.results.grouping import (
    Group,
    Setting,
    Stat,
    by_setting,
    forgetting,
    formula_upload,
    groups,
    is_fine_tuned,
    is_ours,
    max_download,
    row_order,
    task_seconds,
    training,
)
from fedran_bench.results.result import Result, dataset_title

MIB = 2**20
NOTHING = "-"
COMPARED = {"fedran-points": "FedRAN-points", "fedran": "FedRAN", "fedran-paper": "FedRAN-paper"}
"""Columns of the table of all comparisons, before the best other method."""
REMARKS = {
    "head": "(head): a linear head trained on the same frozen features as FedRAN.",
    "network": "(from scratch): a network trained from random weights on the images.",
    "prompts": "Prompt and LoRA methods train a few tensors of the same frozen ViT.",
}
"""What the marks behind the names of methods mean."""


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and its rank among the methods."""

    text: str
    mark: Literal["", "best", "second"] = ""


@dataclass(frozen=True)
class Column:
    """A heading. Only brief columns are shown in the terminal and in Markdown."""

    text: str
    numeric: bool = True
    brief: bool = False
    printed: bool = False
    """Copied from the paper, not measured."""


@dataclass(frozen=True)
class Table:
    """Title, columns, rows, and the note that explains them."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    known: frozenset[str] = frozenset()
    """First cells of the rows that a short table keeps; empty if it keeps all."""

    def brief(self, known: bool = False) -> Table:
        """The table with its brief columns only, and if wanted with the known rows only."""
        shown = [i for i, c in enumerate(self.columns) if c.brief]
        kept = [
            row
            for row in self.rows
            if not (known and self.known)
            or row[0].text in self.known
            or any(cell.mark == "best" for cell in row)
        ]
        rows = [[row[i] for i in shown] for row in kept]
        return replace(self, columns=[self.columns[i] for i in shown], rows=rows)


def method_table(found: Sequence[Group], title: str) -> Table:
    """One row per method: accuracies, bytes, seconds and forgetting, beside the paper's figures.

    Groups of several settings have a column that names the setting. Columns without any value are
    left out.
    """
    settings = sorted(by_setting(found), key=lambda s: -s.label_rate)
    found = sorted(found, key=lambda g: (settings.index(g.setting), row_order(g)))
    marks = {s: _marks([g for g in found if g.setting == s]) for s in settings}
    several = len(settings) > 1
    columns = [
        Column("method", numeric=False, brief=True),
        Column("setting", numeric=False, brief=several),
        Column("A_avg, %", brief=True),
        Column("A_T, %", brief=True),
        Column("upload, MiB", brief=True),
        Column("formula, MiB"),
        Column("download, MiB"),
        Column("seconds"),
        Column("forgetting"),
        Column("drift"),
        Column("seeds", brief=True),
        Column("printed A_avg / A_T", printed=True),
        Column("printed MiB", printed=True),
        Column("printed seconds", printed=True),
    ]
    rows = []
    for g in found:
        paper = None if training(g.first) == "head" else printed_for(g.setting)
        first, last = marks[g.setting][g.name]
        formula = g.stat(formula_upload)
        drift = g.stat(lambda r: max(r.drift, default=None))
        rows.append(
            [
                Cell(quoted(g)),
                Cell(_label(g.setting, settings) if several else NOTHING),
                Cell(_spread(g.A_avg), first),
                Cell(_spread(g.A_T), last),
                Cell(mib(g.upload)),
                Cell(mib(formula.mean if formula else None)),
                Cell(mib(max(map(max_download, g.results)))),
                Cell(seconds(g.stat(task_seconds))),
                Cell(_spread(g.stat(forgetting), 1)),
                Cell(f"{drift.mean:.3g}" if drift else NOTHING),
                Cell(str(len(g.results))),
                *map(Cell, _printed(paper, g.key)),
            ]
        )
    kept = [i for i in range(len(columns)) if any(row[i].text != NOTHING for row in rows)]
    return Table(
        title,
        [columns[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        _note(found, {columns[i].text for i in kept}),
        frozenset(quoted(g) for g in found if g.key in NAMED or g in leaders(found).values()),
    )


def comparison_table(results: Iterable[Result]) -> Table:
    """Our messages, the paper's, and the best other method at every setting."""
    parts = frozen_and_tuned(results)
    keys = [key for key in COMPARED if any(g.key == key for *_, found in parts for g in found)]
    rows = []
    for setting, tuned, found in parts:
        ours = [strongest(g for g in found if g.key == key) for key in keys]
        if keys and not any(ours):
            continue
        best = strongest(g for g in found if g.competes and not is_ours(g))
        stage = ", network fine-tuned in task 0" if tuned else ""
        row = [Cell(f"{dataset_title(setting.dataset)}: {setting.frame}{stage}")]
        for key, g in zip(keys, ours, strict=True):
            least = f"; {g.params.get('min_group')}" if g and key == "fedran-points" else ""
            row.append(Cell(f"{g.A_T.mean:.2f} ({mib(g.upload)}{least})" if g else NOTHING))
        shown = f"{best.name}: {best.A_T.mean:.2f} ({mib(best.upload)})" if best else NOTHING
        rows.append([*row, Cell(shown)])
    columns = [
        Column("setting", numeric=False, brief=True),
        *(Column(COMPARED[key], brief=True) for key in keys),
        Column("best other method", numeric=False, brief=True),
    ]
    note = (
        "Accuracy in percent after the last task, mean over seeds, and in parentheses the largest "
        "upload of any client in any task in MiB. Where a method ran with several settings, the "
        "most accurate is shown."
    )
    if "fedran-points" in keys:
        note += " Of points, the last number says how many rows each group has at least."
    return Table("All comparisons", columns, rows, note)


def command_table(results: Iterable[Result]) -> Table:
    """How to repeat the results: one row per command and machine."""
    batches: dict[tuple[str, str], list[Result]] = {}
    for r in (r for g in groups(results) for r in g.results):
        beside = f", {r.side_by_side} runs side by side" if r.side_by_side > 1 else ""
        batches.setdefault((command(r), f"{r.machine or 'not recorded'}{beside}"), []).append(r)
    rows = [
        [
            Cell(what),
            Cell(date_range(r.date for r in runs)),
            Cell(str(len(runs))),
            Cell(_unique(str(r.seeds.get("order", NOTHING)) for r in runs)),
            Cell(machine),
            Cell(_unique(" ".join(pair) for r in runs for pair in r.versions.items())),
        ]
        for (what, machine), runs in batches.items()
    ]
    headings = ("command", "date", "runs", "seeds", "machine", "versions")
    columns = [Column(text, numeric=text == "runs") for text in headings]
    note = (
        "Options such as --device and --jobs follow from the machine. What follows a plus sign in "
        "a version is a hash of the code."
    )
    return Table("Commands", columns, rows, note)


def command(result: Result) -> str:
    """The command that produced a result, without options for the machine."""
    if result.arguments:
        return f"fedran bench run {shlex.join(result.arguments)}"
    return (
        f"fedran bench run {result.config}" if result.config else "a command that is not recorded"
    )


def date_range(days: Iterable[str]) -> str:
    """The only day, or the first and the last one."""
    found = sorted(set(days))
    return " to ".join(dict.fromkeys(found[:1] + found[-1:]))


def mib(size: float | None) -> str:
    """Bytes in MiB with about three significant digits, and at most four decimals.

    >>> mib(140_787_712), mib(1_100_000), mib(2_000), mib(800)
    ('134.27', '1.05', '0.0019', '0.0008')
    """
    if size is None:
        return NOTHING
    value = size / MIB
    if value >= 1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3f}" if value >= 0.01 else f"{value:.4f}"


def seconds(stat: Stat | None) -> str:
    """Mean seconds with about three significant digits.

    >>> seconds(Stat(3.541, None)), seconds(Stat(0.3, None)), seconds(Stat(0.0021, None))
    ('3.54', '0.300', '0.0021')
    """
    if stat is None:
        return NOTHING
    return f"{stat.mean:.{2 if stat.mean >= 1 else 3 if stat.mean >= 0.1 else 4}f}"


def _spread(stat: Stat | None, digits: int = 2) -> str:
    """Mean ± standard deviation; the mean alone where there is one seed."""
    if stat is None:
        return NOTHING
    spread = "" if stat.spread is None else f" ± {stat.spread:.{digits}f}"
    return f"{stat.mean:.{digits}f}{spread}"


def _marks(found: Sequence[Group]) -> dict[str, list[Literal["", "best", "second"]]]:
    """The marks of A_avg and A_T of each method: best and second best among the ranked ones.

    Values are compared as printed, so that equal texts get equal marks.
    """
    marks: dict[str, list[Literal["", "best", "second"]]] = {g.name: [] for g in found}
    for values in (
        {g.name: round(g.A_avg.mean, 2) for g in found},
        {g.name: round(g.A_T.mean, 2) for g in found},
    ):
        best = sorted({values[g.name] for g in found if g.competes}, reverse=True)[:2]
        for g in found:
            place = best.index(values[g.name]) if g.competes and values[g.name] in best else 2
            marks[g.name].append(("best", "second", "")[place])
    return marks


def _label(setting: Setting, others: Sequence[Setting]) -> str:
    """What distinguishes a setting from the others, in words."""
    parts = {s: s.frame.split(", ") for s in others}
    shared = set.intersection(*(set(p) for p in parts.values()))
    return (
        ", ".join(p for p in parts[setting] if p not in shared)
        or f"{100 * setting.label_rate:g} % labelled"
    )


def _printed(paper: Printed | None, key: str) -> tuple[str, str, str]:
    """The paper's accuracy, communication and time of a method."""
    if paper is None:
        return NOTHING, NOTHING, NOTHING
    pair, size, time = paper.accuracy(key), paper.cost("mib", key), paper.cost("seconds", key)
    return (
        f"{pair[0]:.2f} / {pair[1]:.2f}" if pair else NOTHING,
        f"{size:.2f}" if size is not None else NOTHING,
        f"{time:.2f}" if time is not None else NOTHING,
    )


def _note(found: Sequence[Group], headings: set[str]) -> str:
    """What the columns and the marks mean; only what is in the table."""
    results = [r for g in found for r in g.results]
    parts = []
    if max(Counter(len(g.results) for g in found)) > 1:
        parts.append(
            "Mean ± standard deviation over the seeds, which change class order and split."
        )
    parts.append(
        "Best in bold, second best underlined. Upload and download: the most bytes of any client "
        "in a task."
    )
    if "formula, MiB" in headings:
        parts.append("Formula: the upload as the method's paper counts it.")
    shared = ", only indicative where runs shared a machine"
    parts.append(
        "Seconds: a client and the server in a task, without the backbone"
        f"{shared if any(r.side_by_side > 1 for r in results) else ''}."
    )
    if "forgetting" in headings:
        parts.append(
            "Forgetting: the best accuracy on a task before the end minus that at the end, in "
            "points."
        )
    if "drift" in headings:
        parts.append("Drift: how far training moved the features of the same rows.")
    if any(c.startswith("printed") for c in headings):
        paper = next(p for g in found if (p := printed_for(g.setting)))
        parts.append(
            f"Printed: copied from the paper, which used {paper.backbone}. Not measured here, and "
            "not ranked."
        )
    if any(not g.competes for g in found):
        parts.append("Methods that need all rows in one place come last and are not ranked.")
    trained = {training(r) for r in results}
    parts += [remark for what, remark in REMARKS.items() if what in trained]
    if any(map(is_fine_tuned, results)):
        parts.append("(fine-tuned in task 0): adapters trained first; their bytes and time count.")
    return " ".join(parts)


def _unique(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
