"""How much faster and smaller FedRAN is than each trained method: one run on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from fedran.bench.report.paper import ROUNDS, SPEEDUP_MEAN, Printed, paper_row
from fedran.bench.report.tables.bytes import largest_upload, printed_for
from fedran.bench.report.tables.table import (
    NOTHING,
    Cell,
    Column,
    Table,
    collapse_but_first,
    mib,
    numbers,
    seconds,
    times,
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
    row_order,
)
from fedran.bench.results.metrics import (
    is_trained,
    network,
    on_images,
    rounds_per_task,
    seconds_at,
    task_seconds,
    upload_at,
    whole_seconds,
)
from fedran.bench.results.result import Result

Place = tuple[Setting, float | None]
UPLOAD = "largest upload"
BOTH = f"both: {ROUNDS} rounds, forward pass"


def speedup_tables(results: Iterable[Result]) -> list[Table]:
    """One table for each setting and beta, configuration file and machine that has both sides."""
    files: dict[tuple[str, str], list[Result]] = {}
    for r in measured(results):
        if r.side_by_side == 1 and r.study == "speedup":
            files.setdefault((r.config, machine_of(r)), []).append(r)
    tables, settings = [], []
    for (_, where), runs in files.items():
        for place, found in by_place(groups(runs)).items():
            ours = next((g for g in found if g.key == "fedran"), None)
            theirs = [g for g in sorted(found, key=row_order) if is_trained(g.first)]
            if ours is not None and theirs:
                tables.append(_table(place, _Base.of(ours), theirs, where))
                settings.append(place[0])
    return collapse_but_first(tables, settings)


@dataclass(frozen=True)
class _Base:
    """FedRAN, which the others are divided by."""

    group: Group
    time: float
    whole: float | None
    upload: int

    @classmethod
    def of(cls, g: Group) -> _Base:
        return cls(g, _mean(g, task_seconds) or 0.0, _mean(g, whole_seconds), largest_upload(g))


def _mean(g: Group, measure: Callable[[Result], float | None]) -> float | None:
    return mean_of(g.stat(measure))


def _over(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs is not None and ours else None


def _table(place: Place, base: _Base, theirs: list[Group], where: str) -> Table:
    paper = printed_for(place[0])
    paper = paper if paper and paper.runtime else None
    computed = f"at {ROUNDS} rounds, computed"
    told = [[Column("printed", group, muted=True)] if paper else [] for group in ("Time", UPLOAD)]
    columns = [
        *words("method", "network"),
        *numbers("rounds a task"),
        *numbers("s", "FedRAN is faster by", group="Time"),
        *numbers("with forward pass", computed, BOTH, group="Time"),
        *told[0],
        *numbers("MiB", "FedRAN's is smaller by", computed, group=UPLOAD),
        *told[1],
    ]
    rows = [_row(g, base, paper) for g in (base.group, *theirs)]
    title = f"FedRAN against each trained method, one run on one machine: {place_title(*place)}"
    return Table(title, columns, [[r] for r in rows], _note(base, theirs, paper, where))


def _row(g: Group, base: _Base, paper: Printed | None) -> list[Cell]:
    time, size = _mean(g, task_seconds), largest_upload(g)
    long, heavy = _at_full_rounds(g)
    speed, bytes_ = _printed(g, paper)
    computed = is_trained(g.first) and rounds_per_task(g.first) != ROUNDS
    return [
        Cell(g.name),
        Cell(network(g.first) or NOTHING),
        Cell(str(rounds_per_task(g.first))),
        Cell(seconds(time)),
        Cell(times(_over(time, base.time))),
        Cell(times(_over(_mean(g, whole_seconds), base.whole))),
        Cell(times(_over(long, base.time)), muted=computed),
        Cell(times(_over(_mean(g, _long_and_whole), base.whole)), muted=computed),
        *speed,
        Cell(mib(size)),
        Cell(times(_over(size, base.upload))),
        Cell(times(_over(heavy, base.upload)), muted=computed),
        *bytes_,
    ]


def _printed(g: Group, paper: Printed | None) -> tuple[list[Cell], list[Cell]]:
    """The paper's two ratios, method over FedRAN, where it has such a table."""
    if paper is None:
        return [], []
    method = paper_row(g)
    speed = _over(paper.seconds(method), paper.seconds("FedRAN"))
    size = _over(paper.mib(method), paper.mib("FedRAN"))
    return [Cell(times(speed), muted=True)], [Cell(times(size), muted=True)]


def _at_full_rounds(g: Group) -> tuple[float | None, float]:
    """Time and largest upload at the paper's rounds; an analytic method has one round anyway."""
    if not is_trained(g.first):
        return _mean(g, task_seconds), float(largest_upload(g))
    sizes = [upload_at(r, ROUNDS) for r in g.results]
    return _mean(g, lambda r: seconds_at(r, ROUNDS)), max(sizes)


def _long_and_whole(result: Result) -> float | None:
    """Time at the paper's rounds with the forward pass, which features need once."""
    whole = whole_seconds(result)
    if whole is None or not is_trained(result):
        return whole
    return whole - task_seconds(result) + seconds_at(result, ROUNDS)


def _note(base: _Base, theirs: list[Group], paper: Printed | None, where: str) -> str:
    parts = [
        f"Machine: {where}; nothing ran beside. Time is client + server of one task. With forward "
        "pass: the backbone's seconds count for all who use its features, FedRAN and the heads; "
        "a network on images has its own in its Time.",
        f"Computed: the clients' seconds and the bytes times {ROUNDS} over the rounds that were "
        f"run, the server's seconds as measured; who ran {ROUNDS} rounds is measured.",
        _means(base, [g for g in theirs if on_images(g.first)]),
        _papers(paper),
    ]
    return " ".join(p for p in parts if p)


def _means(base: _Base, images: list[Group]) -> str:
    if not images or not base.time:
        return ""
    now = np.mean([_mean(g, task_seconds) or 0.0 for g in images]) / base.time
    then = np.mean([_at_full_rounds(g)[0] or 0.0 for g in images])
    both = f", {times(float(then) / base.whole)} with its forward pass" if base.whole else ""
    return (
        f"The mean Time of the rows that train on images is {times(float(now))} FedRAN's, at "
        f"{ROUNDS} rounds {times(float(then) / base.time)}{both} (computed)."
    )


def _papers(paper: Printed | None) -> str:
    if paper is None:
        return ""
    ratio = times(_over(paper.mib("TARGET"), paper.mib("FedRAN")))
    mean = SPEEDUP_MEAN[paper.dataset]
    return (
        f"The paper prints {mean:g}x as the mean speed-up over its trained methods on "
        f"{paper.dataset}, and {ratio} the bytes for TARGET; the printed columns are method over "
        "FedRAN in its tables (RTX A5000, ResNet-18)."
    )
