"""Seconds and memory per task, and how FedRAN compares with each trained method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedran.bench.report.paper import ROUNDS, SPEEDUP_MEAN, Printed, paper_row, printed_for
from fedran.bench.report.section import Section
from fedran.bench.report.tables.table import (
    MIB,
    NOTHING,
    Cell,
    Column,
    Shown,
    Table,
    mean_and_spread,
    method_table,
    mib,
    number,
    one_per_setting,
    ratio,
    seconds,
    seconds_digits,
    times,
)
from fedran.bench.report.verdict import OURS, role
from fedran.bench.results.grouping import (
    Case,
    Group,
    Setting,
    cases,
    group_of,
    machine_of,
    row_order,
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
from fedran.data.catalogue import dataset_title

Measure = Callable[[Result], float | None]
UPLOAD = "largest upload"
BOTH = f"both: {ROUNDS} rounds, forward pass"


def runtime_section(results: Sequence[Result]) -> Section:
    """Seconds of every method, and speed-ups."""
    intro = [
        "Seconds per task, mean over tasks and seeds. Client is the mean over clients. Time is "
        "client plus server, as in the paper. It leaves out the forward pass through the "
        "backbone, which is estimated as the number of rows times the measured seconds per row. "
        "A network that is trained on images has its forward pass in its Time. Peak memory is "
        "that of the whole process, including the data.",
        "Times from different machines cannot be compared. Runs that shared their machine with "
        "other runs are left out.",
    ]
    tables = speedup_tables(results) + runtime_tables(results)
    return Section("runtime", "Runtime", intro, tables, folded=True)


def runtime_tables(results: Iterable[Result]) -> list[Table]:
    """One table per setting and beta, one row per method and machine.

    Only runs that had their machine to themselves count. If some of them were made to measure
    seconds, only those count.
    """
    alone = [r for r in without_ablations(results) if r.side_by_side == 1]
    alone = [r for r in alone if r.study in {"runtime", "speedup"}] or alone
    found = cases(alone, by_machine=True)
    return one_per_setting((c.setting, _seconds_table(c, own)) for c, own in found.items())


def _seconds_table(case: Case, found: Sequence[Group]) -> Table:
    paper = _with_runtime(case.setting)

    def time(g: Group) -> Cell:
        return mean_and_spread(g.stat(task_seconds), seconds_digits(g.mean(task_seconds) or 0.0))

    def mean(measure: Measure) -> Callable[[Group], Cell]:
        return lambda g: Cell(seconds(g.mean(measure)))

    def memory(g: Group) -> Cell:
        peak = g.mean(peak_memory)
        return number(peak / MIB if peak else None, 0)

    shown: list[Shown] = [
        (Column("Time"), time),
        (Column("client"), mean(client_seconds)),
        (Column("server"), mean(server_seconds)),
        (Column("forward pass"), mean(extraction_seconds)),
        (Column("Time with forward pass"), mean(seconds_with_forward_pass)),
        (Column("peak memory, MiB"), memory),
    ]
    if paper:
        printed = Column("Time, printed (RTX A5000)", muted=True)
        shown.append((printed, lambda g: number(paper.seconds(paper_row(g)), muted=True)))
    shown += [
        (Column("seeds"), lambda g: Cell(str(len(g.results)))),
        (Column("machine", numeric=False), lambda g: Cell(machine_of(g.first))),
    ]
    return method_table(f"{case.title}, in seconds", found, shown, order=row_order)


def speedup_tables(results: Iterable[Result]) -> list[Table]:
    """One table per setting, beta, configuration and machine with FedRAN and a trained method."""
    batches: dict[tuple[str, str], list[Result]] = {}
    for r in without_ablations(results):
        if r.side_by_side == 1 and r.study == "speedup":
            batches.setdefault((r.config, machine_of(r)), []).append(r)
    tables = []
    for runs in batches.values():
        for case, found in cases(runs).items():
            ours = group_of("fedran", found)
            theirs = [g for g in sorted(found, key=row_order) if is_trained(g.first)]
            if ours is not None and theirs:
                tables.append(_speedup_table(case, ours, theirs))
    return tables


def _speedup_table(case: Case, ours: Group, theirs: Sequence[Group]) -> Table:
    """Ratios of methods to FedRAN: as measured, and at the number of rounds of the paper."""
    paper = _with_runtime(case.setting)
    computed = f"at {ROUNDS} rounds, computed"

    def faster(measure: Measure) -> Callable[[Group], Cell]:
        return lambda g: Cell(times(ratio(g.mean(measure), ours.mean(measure))))

    def as_computed(cell: Callable[[Group], Cell]) -> Callable[[Group], Cell]:
        return lambda g: replace(cell(g), muted=_is_computed(g))

    def printed(group: str, figure: Callable[[str | None], float | None]) -> Shown:
        def beside_ours(g: Group) -> Cell:
            return Cell(times(ratio(figure(paper_row(g)), figure("FedRAN"))), muted=True)

        return Column("printed", group, muted=True), beside_ours

    def full_time(g: Group) -> Cell:
        return Cell(times(ratio(_at_full_rounds(g)[0], ours.mean(task_seconds))))

    def full_upload(g: Group) -> Cell:
        return Cell(times(ratio(_at_full_rounds(g)[1], ours.largest_upload)))

    shown: list[Shown] = [
        (Column("network", numeric=False), lambda g: Cell(network(g.first) or NOTHING)),
        (Column("rounds per task"), lambda g: Cell(str(rounds_per_task(g.first)))),
        (Column("s", "Time"), lambda g: Cell(seconds(g.mean(task_seconds)))),
        (Column("ratio to FedRAN", "Time"), faster(task_seconds)),
        (Column("with forward pass", "Time"), faster(seconds_with_forward_pass)),
        (Column(computed, "Time"), as_computed(full_time)),
        (Column(BOTH, "Time"), as_computed(faster(_full_seconds_with_forward_pass))),
        *([printed("Time", paper.seconds)] if paper else []),
        (Column("MiB", UPLOAD), lambda g: Cell(mib(g.largest_upload))),
        (
            Column("ratio to FedRAN", UPLOAD),
            lambda g: Cell(times(ratio(g.largest_upload, ours.largest_upload))),
        ),
        (Column(computed, UPLOAD), as_computed(full_upload)),
        *([printed(UPLOAD, paper.mib)] if paper else []),
    ]
    title = f"FedRAN against each trained method on one machine: {case.title}"
    return method_table(title, [ours, *theirs], shown, _speedup_note(ours, theirs, paper))


def _is_computed(g: Group) -> bool:
    """Whether the figures at the paper's number of rounds are computed from fewer rounds."""
    return is_trained(g.first) and rounds_per_task(g.first) != ROUNDS


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
        return g.mean(task_seconds), float(g.largest_upload)
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


def speed_verdict(results: Sequence[Result]) -> Iterator[str]:
    """FedRAN's seconds per task beside those of the methods that train."""
    timed = [r for r in results if r.study == "speedup" and r.side_by_side == 1]
    for case, found in cases(timed).items():
        trained = [g for g in found if is_trained(g.first)]
        slow = [g.mean(task_seconds) or 0.0 for g in trained]
        rounds = [g.first.tasks[0].rounds for g in trained]
        for g in found:
            if role(g) == OURS and trained:
                yield (
                    f"{dataset_title(case.setting.dataset)}: FedRAN takes "
                    f"{seconds(g.mean(task_seconds))} s per task, methods that train "
                    f"{seconds(min(slow))} to {seconds(max(slow))} s with {min(rounds)} to "
                    f"{max(rounds)} rounds per task."
                )
