"""Rank and width: accuracy, bytes and Gram error over the rank r of a summary and its width M."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedran.bench.report.figures.chart import (
    AVERAGE,
    HUES,
    MARKERS,
    error_line,
    legend_below,
    log_ticks,
    panels,
)
from fedran.bench.report.paper import RANK_A_AVG, RANK_MIB, paper_dataset
from fedran.bench.report.section import Section
from fedran.bench.report.studies.study import Study, study_section
from fedran.bench.report.tables.table import (
    MIB,
    Cell,
    Column,
    Table,
    mean_and_spread,
    mib,
    number,
    number_columns,
    results_of,
    seeds_note,
    significant,
)
from fedran.bench.results.grouping import Group, cases, comparisons
from fedran.bench.results.result import Result
from fedran.wire.sizes import human_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("fedran", "fedran-paper")
INTRO = (
    "Accuracy and cost for different ranks of the summary and widths M of the random features. The "
    "Gram error is the relative error of the server's Gram matrix in the Frobenius norm, against "
    "the exact Gram matrix of all rows: largest over tasks, mean over seeds."
)


def rank_section(results: Sequence[Result]) -> Section:
    """A table and a figure per method, setting and beta."""
    studies = rank_studies(results)
    return study_section("rank", "Rank and width", [INTRO], studies, _table, _draw)


def rank_verdict(results: Sequence[Result]) -> Iterator[str]:
    """The accuracies at the smallest and at the largest rank of the largest width."""
    for study in rank_studies(results):
        width, by_rank = max(study.lines.items())
        ends = [
            f"{g.A_avg.mean:.1f} % with {human_bytes(g.largest_upload)} at rank {rank}"
            for rank, g in (min(by_rank.items()), max(by_rank.items()))
        ]
        yield f"{study.method} with {width} random features: {ends[0]}, {ends[1]}."


def rank_studies(results: Sequence[Result]) -> list[Study]:
    """FedRAN and the paper's FedRAN where they were run at several ranks of one width.

    The lines are ``lines[M][rank]``.
    """
    pool = [r for r in results if r.study == "rank"] or comparisons(
        r for r in results if r.key in METHODS
    )
    studies = []
    for case, found in cases(pool).items():
        for key in METHODS:
            members = [
                g
                for g in found
                if g.key == key
                and all(isinstance(g.params.get(k), int) for k in ("rank", "out_features"))
            ]
            for name, variant in _variants(members).items():
                lines: dict[int, dict[int, Group]] = {}
                for g in sorted(variant, key=_width_and_rank):
                    width, rank = _width_and_rank(g)
                    lines.setdefault(width, {})[rank] = g
                if any(len(line) > 1 for line in lines.values()):
                    studies.append(Study(case, lines, method=name))
    return studies


def _width_and_rank(g: Group) -> tuple[int, int]:
    return g.params["out_features"], g.params["rank"]


def _variants(members: Sequence[Group]) -> dict[str, list[Group]]:
    """One variant, unless two groups have the same width and rank."""
    if len({_width_and_rank(g) for g in members}) == len(members):
        labels = {g.first.label for g in members}
        name = labels.pop() if len(labels) == 1 else (members[0].key if members else "")
        return {name: list(members)}
    variants: dict[str, list[Group]] = {}
    for g in members:
        rest = {k: v for k, v in g.params.items() if k not in {"rank", "out_features"}}
        variants.setdefault(f"{g.key} {json.dumps(rest, sort_keys=True)}", []).append(g)
    return variants


def _table(study: Study) -> Table:
    members = [(m, rank, g) for m, line in study.lines.items() for rank, g in line.items()]
    printed = paper_dataset(study.case.setting.dataset) == "CIFAR-100" and study.case.beta == 0.5
    blocks = [
        [_row(m, rank, g, printed) for rank, g in line.items()] for m, line in study.lines.items()
    ]
    columns = [
        *number_columns("M", "rank", "A_avg", "A_T", "largest upload, MiB", "formula, MiB"),
        *number_columns("Gram error"),
        *([Column(h, "printed", muted=True) for h in ("A_avg", "MiB")] if printed else []),
    ]
    note = seeds_note([(f"M = {m}, rank {rank}", len(g.results)) for m, rank, g in members])
    return Table(study.title, columns, blocks, note, results_of(study.members))


def _row(m: int, rank: int, g: Group, printed: bool) -> list[Cell]:
    paper = [number(figures.get((m, rank)), 1, muted=True) for figures in (RANK_A_AVG, RANK_MIB)]
    return [
        Cell(str(m)),
        Cell(str(rank)),
        mean_and_spread(g.A_avg),
        mean_and_spread(g.A_T),
        Cell(mib(g.largest_upload)),
        Cell(mib(g.largest_formula)),
        significant(g.mean(_gram_error)),
        *(paper if printed else []),
    ]


def _gram_error(result: Result) -> float | None:
    return max((t.gram_error for t in result.tasks if t.gram_error is not None), default=None)


def _draw(study: Study, figure: Figure) -> None:
    left, right = panels(figure, 2)
    for i, (m, line) in enumerate(study.lines.items()):
        ranks = [float(rank) for rank in line]
        error_line(left, ranks, [g.A_avg for g in line.values()], i, f"M = {m}")
        sizes = [g.largest_upload / MIB for g in line.values()]
        right.plot(ranks, sizes, MARKERS[i % len(MARKERS)] + "-", color=HUES[i % len(HUES)])
    every = sorted(study.values)
    for ax, title in ((left, AVERAGE), (right, "largest upload, MiB")):
        ax.set_xscale("log", base=2)
        ax.set_xticks(every, [str(rank) for rank in every])
        ax.set_xticks([], minor=True)
        ax.set_xlabel("rank r")
        ax.set_ylabel(title)
    right.set_yscale("log")
    log_ticks(right.yaxis, right.dataLim.intervaly)
    legend_below(figure, [left])
