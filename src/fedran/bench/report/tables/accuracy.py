"""The accuracy table: methods by beta, datasets side by side, the paper's figures beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from fedran.bench.report.paper import BETAS, Pair, paper_row
from fedran.bench.report.tables.bytes import printed_for
from fedran.bench.report.tables.table import (
    NOTHING,
    Block,
    Cell,
    Column,
    Table,
    number,
    numbers,
    seeds_note,
    spread,
    words,
)
from fedran.bench.results.grouping import (
    Group,
    Mark,
    Setting,
    by_setting,
    comparisons,
    groups,
    marks,
    mean_of,
    row_order,
)
from fedran.bench.results.result import Result

MEASURES: tuple[Callable[[Result], float], ...] = (lambda r: r.A_avg, lambda r: r.A_T)
READ = (
    "Average and final accuracy in percent. Best bold, second best underlined, for each β and "
    "column; what reads the same is marked the same. References and yardsticks are shown below "
    "the methods and not ranked. The printed columns are the paper's figures for its own "
    "backbone. They are context: other features, so never ranked with ours. Rows marked (head) "
    "train a linear head on the same frozen features as FedRAN; rows marked (from scratch) train "
    "a network from random weights on the images of the same rows. The training table states "
    "network and rounds."
)


def accuracy_tables(results: Iterable[Result]) -> list[Table]:
    """One table for each tasks, clients, partitioner and label rate.

    The paper's datasets stand side by side, as there; others have tables of their own.
    """
    frames: dict[Setting, dict[Setting, list[Group]]] = {}
    for setting, members in by_setting(groups(comparisons(results))).items():
        alone = "" if printed_for(setting) else setting.dataset
        frames.setdefault(replace(setting, dataset=alone), {})[setting] = members
    return [_table(frame, columns) for frame, columns in frames.items()]


def _table(frame: Setting, settings: dict[Setting, list[Group]]) -> Table:
    members = [g for found in settings.values() for g in found]
    counts = [len(g.results) for g in members]
    sides = [_Side(s, found, len(set(counts)) > 1) for s, found in settings.items()]
    names = list(dict.fromkeys(g.name for g in sorted(members, key=row_order)))
    betas = sorted({g.beta for g in members}, key=lambda b: (b is None, b or 0.0))
    blocks: list[Block] = [_block(name, betas, sides) for name in names]
    only = dict.fromkeys(m for side in sides for m in side.not_run)
    told = [b for b in BETAS if b in betas]
    blocks += [_printed_block(method, told, sides) for method in only if told]
    return Table(
        frame.title if frame.dataset else frame.frame,
        [*words("method", "β"), *(c for side in sides for c in side.columns)],
        blocks,
        seeds_note(counts),
    )


def _block(name: str, betas: list[float | None], sides: list[_Side]) -> Block:
    run = [b for b in betas if any((name, b) in side.members for side in sides)]
    return [[Cell(name), _beta(b), *(c for s in sides for c in s.cells(name, b))] for b in run]


def _printed_block(method: str, betas: list[float], sides: list[_Side]) -> Block:
    head = Cell(f"{method} (printed, not run)", muted=True)
    return [
        [
            head,
            replace(_beta(b), muted=True),
            *(c for s in sides for c in s.printed_only(method, b)),
        ]
        for b in betas
    ]


def _beta(beta: float | None) -> Cell:
    return Cell(NOTHING if beta is None else f"{beta:g}")


class _Side:
    """The columns of one dataset."""

    def __init__(self, setting: Setting, found: list[Group], say_n: bool) -> None:
        self.setting, self.say_n = setting, say_n
        self.members = {(g.name, g.beta): g for g in found}
        self.paper = printed_for(setting)
        self.marks = {
            (g.name, beta, i): mark
            for beta in {g.beta for g in found}
            for i, measure in enumerate(MEASURES)
            for g, mark in _ranked([g for g in found if g.beta == beta], measure)
        }

    @property
    def columns(self) -> list[Column]:
        """A_avg and A_T, measured and, where there is such a setting, printed."""
        own = numbers("A_avg", "A_T", group=self.setting.dataset)
        if self.paper is None:
            return own
        head = f"{self.paper.dataset}, printed ({self.paper.backbone})"
        return own + [Column(t, head, muted=True) for t in ("A_avg", "A_T")]

    @property
    def not_run(self) -> list[str]:
        """The paper's methods that have printed figures here but no result."""
        if self.paper is None:
            return []
        run = {paper_row(g) for g in self.members.values()}
        return [
            m for m, by in self.paper.accuracy.items() if self.paper.dataset in by and m not in run
        ]

    def cells(self, name: str, beta: float | None) -> list[Cell]:
        """The cells of one row."""
        g = self.members.get((name, beta))
        own = [
            spread(g.stat(m), mark=self.marks[name, beta, i], say_n=self.say_n)
            if g
            else Cell(NOTHING)
            for i, m in enumerate(MEASURES)
        ]
        told = self.paper.pair(paper_row(g), beta) if self.paper and g else None
        return own + self._printed(told)

    def printed_only(self, method: str, beta: float) -> list[Cell]:
        """The cells of a row that nobody has run."""
        pair = self.paper.pair(method, beta) if self.paper and method in self.not_run else None
        return [Cell(NOTHING)] * 2 + self._printed(pair)

    def _printed(self, pair: Pair | None) -> list[Cell]:
        if self.paper is None:
            return []
        return [number(v, muted=True) for v in (pair or (None, None))]


def _ranked(found: list[Group], measure: Callable[[Result], float]) -> list[tuple[Group, Mark]]:
    means = [mean_of(g.stat(measure)) for g in found]
    return list(zip(found, marks(means, [g.competes for g in found]), strict=True))
