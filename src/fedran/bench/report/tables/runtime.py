"""Seconds and memory per task, and how FedRAN compares with each trained method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from fedran.bench.report.paper import ROUNDS, SPEEDUP_MEAN, Printed, paper_row, printed_for
from fedran.bench.report.tables.communication import group_of, largest_upload
from fedran.bench.report.tables.table import (
    MIB,
    NOTHING,
    Cell,
    Column,
    Table,
    mean_and_spread,
    mib,
    number,
    number_columns,
    one_per_setting,
    ratio,
    results_of,
    seconds,
    seconds_digits,
    text_columns,
    times,
)
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_setting_and_beta,
    groups,
    machine_of,
    row_order,
    setting_title,
    without_ablations,
)
from fedran.bench.results.metrics import (
    client_seconds,
    extraction_seconds,
    is_trained,
    network,
    on_images,
    peak_memory,
    rounds_per_task,
    seconds_at_rounds,
    seconds_with_forward_pass,
    server_seconds,
    task_seconds,
    upload_at_rounds,
)
from fedran.bench.results.result import Result

Measure = Callable[[Result], float | None]
UPLOAD = "largest upload"
BOTH = f"both: {ROUNDS} rounds, forward pass"


def runtime_tables(results: Iterable[Result]) -> list[Table]:
    """One table per setting and beta, one row per method and machine.

    Only runs that had their machine to themselves count. If some of them were made to measure
    seconds, only those count.
    """
    alone = [r for r in without_ablations(results) if r.side_by_side == 1]
    alone = [r for r in alone if r.study in {"runtime", "speedup"}] or alone
    cases = by_setting_and_beta(groups(alone, by_machine=True))
    return one_per_setting((c[0], _seconds_table(*c, found)) for c, found in cases.items())


def _seconds_table(setting: Setting, beta: float | None, found: Sequence[Group]) -> Table:
    paper = _with_runtime(setting)
    columns = [
        *text_columns("method"),
        *number_columns("Time", "client", "server", "forward pass", "Time with forward pass"),
        *number_columns("peak memory, MiB"),
        *([Column("Time, printed (RTX A5000)", muted=True)] if paper else []),
        *number_columns("seeds"),
        *text_columns("machine"),
    ]
    parts = (client_seconds, server_seconds, extraction_seconds, seconds_with_forward_pass)
    rows = []
    for g in sorted(found, key=row_order):
        memory, digits = g.mean(peak_memory), seconds_digits(g.mean(task_seconds) or 0.0)
        rows.append(
            [
                Cell(g.name),
                mean_and_spread(g.stat(task_seconds), digits),
                *(Cell(seconds(g.mean(part))) for part in parts),
                number(memory / MIB if memory else None, 0),
                *([number(paper.seconds(paper_row(g)), muted=True)] if paper else []),
                Cell(str(len(g.results))),
                Cell(machine_of(g.first)),
            ]
        )
    title = f"{setting_title(setting, beta)}, in seconds"
    return Table(title, columns, [[r] for r in rows], results=results_of(found))


def speedup_tables(results: Iterable[Result]) -> list[Table]:
    """One table per setting, beta, configuration and machine with FedRAN and a trained method."""
    batches: dict[tuple[str, str], list[Result]] = {}
    for r in without_ablations(results):
        if r.side_by_side == 1 and r.study == "speedup":
            batches.setdefault((r.config, machine_of(r)), []).append(r)
    tables = []
    for runs in batches.values():
        for (setting, beta), found in by_setting_and_beta(groups(runs)).items():
            ours = group_of("fedran", found)
            theirs = [g for g in sorted(found, key=row_order) if is_trained(g.first)]
            if ours is not None and theirs:
                tables.append(_speedup_table(setting, beta, ours, theirs))
    return tables


def _speedup_table(
    setting: Setting, beta: float | None, ours: Group, theirs: Sequence[Group]
) -> Table:
    paper = _with_runtime(setting)
    computed = f"at {ROUNDS} rounds, computed"
    printed = {
        group: [Column("printed", group, muted=True)] if paper else [] for group in ("Time", UPLOAD)
    }
    columns = [
        *text_columns("method", "network"),
        *number_columns("rounds per task"),
        *number_columns("s", "ratio to FedRAN", group="Time"),
        *number_columns("with forward pass", computed, BOTH, group="Time"),
        *printed["Time"],
        *number_columns("MiB", "ratio to FedRAN", computed, group=UPLOAD),
        *printed[UPLOAD],
    ]
    rows = [_speedup_row(g, ours, paper) for g in (ours, *theirs)]
    title = f"FedRAN against each trained method on one machine: {setting_title(setting, beta)}"
    note = _speedup_note(ours, theirs, paper)
    return Table(title, columns, [[r] for r in rows], note, results_of([ours, *theirs]))


def _speedup_row(g: Group, ours: Group, paper: Printed | None) -> list[Cell]:
    """Ratios of a method to FedRAN: as measured, and at the number of rounds of the paper."""
    long_time, long_upload = _at_full_rounds(g)
    computed = is_trained(g.first) and rounds_per_task(g.first) != ROUNDS

    def faster(measure: Measure) -> Cell:
        return Cell(times(ratio(g.mean(measure), ours.mean(measure))))

    def printed(figure: Callable[[str | None], float | None] | None) -> list[Cell]:
        if figure is None:
            return []
        return [Cell(times(ratio(figure(paper_row(g)), figure("FedRAN"))), muted=True)]

    return [
        Cell(g.name),
        Cell(network(g.first) or NOTHING),
        Cell(str(rounds_per_task(g.first))),
        Cell(seconds(g.mean(task_seconds))),
        faster(task_seconds),
        faster(seconds_with_forward_pass),
        Cell(times(ratio(long_time, ours.mean(task_seconds))), muted=computed),
        replace(faster(_full_seconds_with_forward_pass), muted=computed),
        *printed(paper.seconds if paper else None),
        Cell(mib(largest_upload(g))),
        Cell(times(ratio(largest_upload(g), largest_upload(ours)))),
        Cell(times(ratio(long_upload, largest_upload(ours))), muted=computed),
        *printed(paper.mib if paper else None),
    ]


def _speedup_note(ours: Group, theirs: Sequence[Group], paper: Printed | None) -> str:
    parts = [
        f"Machine: {machine_of(ours.first)}; nothing else ran on it. Time is client plus server of "
        "one task. With forward pass: the seconds of the backbone are added for all methods that "
        "use its features (FedRAN and the heads). The Time of a network on images includes its "
        "own forward pass.",
        f"Computed: client seconds and bytes are multiplied by {ROUNDS} and divided by the number "
        f"of rounds that were run; server seconds stay as measured. Rows with {ROUNDS} rounds are "
        "measured.",
    ]
    images = [g for g in theirs if on_images(g.first)]
    base, whole = ours.mean(task_seconds), ours.mean(seconds_with_forward_pass)
    if images and base:
        now = np.mean([g.mean(task_seconds) or 0.0 for g in images]) / base
        full = float(np.mean([_at_full_rounds(g)[0] or 0.0 for g in images]))
        both = f", {times(full / whole)} with its forward pass" if whole else ""
        parts.append(
            f"The mean Time of the rows that train on images is {times(float(now))} FedRAN's, at "
            f"{ROUNDS} rounds {times(full / base)}{both} (computed)."
        )
    if paper is not None:
        upload = times(ratio(paper.mib("TARGET"), paper.mib("FedRAN")))
        parts.append(
            f"The paper prints {SPEEDUP_MEAN[paper.dataset]:g}x as the mean speed-up over its "
            f"trained methods on {paper.dataset}, and {upload} the bytes for TARGET. The printed "
            "columns divide the figure of a method by FedRAN's (RTX A5000, ResNet-18)."
        )
    return " ".join(parts)


def _at_full_rounds(g: Group) -> tuple[float | None, float]:
    """Time and largest upload at the paper's rounds; an analytic method always has one round."""
    if not is_trained(g.first):
        return g.mean(task_seconds), float(largest_upload(g))
    sizes = [upload_at_rounds(r, ROUNDS) for r in g.results]
    return g.mean(lambda r: seconds_at_rounds(r, ROUNDS)), max(sizes)


def _full_seconds_with_forward_pass(result: Result) -> float | None:
    """Time at the paper's rounds, with the forward pass that features need once."""
    whole = seconds_with_forward_pass(result)
    if whole is None or not is_trained(result):
        return whole
    return whole - task_seconds(result) + seconds_at_rounds(result, ROUNDS)


def _with_runtime(setting: Setting) -> Printed | None:
    paper = printed_for(setting)
    return paper if paper and paper.runtime else None
