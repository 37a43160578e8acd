"""Accuracy under differential privacy: table, figure and verdict for budgets ε."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedran.bench.report.figures.chart import FINAL, INK, error_line, legend_below, short
from fedran.bench.report.section import Section
from fedran.bench.report.studies.study import Study, study_section
from fedran.bench.report.tables.table import (
    Block,
    Cell,
    Table,
    mean_and_spread,
    mib,
    number_columns,
    results_of,
    seeds_note,
    seeds_per_group,
    text_columns,
)
from fedran.bench.results.grouping import Group, cases
from fedran.bench.results.result import Result
from fedran.data.catalogue import dataset_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INTRO = (
    "Clients add noise to their sums, so that nobody who sees the sum or the classifier can tell "
    "much about a single row. ε is the privacy budget: a smaller ε means more noise and a stronger "
    "guarantee, at δ = 1e-5. The noise is calibrated for the number of honest clients, who keep "
    "their part of it to themselves: with fewer of them each adds more."
)


def privacy_studies(results: Sequence[Result]) -> list[Study]:
    """Settings in which a method ran with budgets ε: ``lines[honest clients][ε]``."""
    studies = []
    for case, found in cases(results).items():
        setting = case.setting
        lines: dict[str, dict[float, Group]] = {}
        for g in found:
            if "epsilon" in g.params:
                honest = g.params.get("honest") or setting.clients
                name = f"{honest} of {setting.clients} clients honest"
                lines.setdefault(name, {})[float(g.params["epsilon"])] = g
        if lines:
            without = [g for g in found if "epsilon" not in g.params]
            ordered = {name: dict(sorted(line.items())) for name, line in lines.items()}
            studies.append(Study(case, ordered, without))
    return studies


def privacy_verdict(results: Sequence[Result]) -> Iterator[str]:
    """The accuracies with the largest and the smallest budget, and without noise."""
    for study in privacy_studies(results):
        line = next(iter(study.lines.values()))
        values = ", ".join(f"{line[e].A_T.mean:.1f} % with ε = {e:g}" for e in reversed(line))
        text = f"{dataset_title(study.case.setting.dataset)}, after the last task: {values}"
        plain = ", ".join(f"{g.A_T.mean:.1f} % ({g.name})" for g in study.others)
        yield f"{text}{'; without privacy ' if plain else ''}{plain}."


def privacy_section(results: Sequence[Result]) -> Section:
    """A table and a figure of the accuracy after the last task against ε, per setting."""
    return study_section(
        "privacy",
        "Differential privacy",
        [INTRO],
        privacy_studies(results),
        _table,
        _draw,
        size=lambda _: (6.6, 3.2, 3.6),
        note=lambda _: "Up and to the left is better: more accurate with a smaller budget.",
    )


def _table(study: Study) -> Table:
    blocks: list[Block] = [
        [
            _row(f"{epsilon:g}", name, g)
            for name, line in study.lines.items()
            if (g := line.get(epsilon))
        ]
        for epsilon in sorted(study.values, reverse=True)
    ]
    blocks += [[_row("no noise", g.name, g)] for g in study.others]
    columns = [*text_columns("ε", "noise calibrated for, or method")]
    columns += number_columns("A_avg", "A_T", "largest upload, MiB")
    note = seeds_note(seeds_per_group(study.members))
    return Table(study.title, columns, blocks, note, results_of(study.members))


def _row(epsilon: str, name: str, g: Group) -> list[Cell]:
    return [
        Cell(epsilon),
        Cell(name),
        mean_and_spread(g.A_avg),
        mean_and_spread(g.A_T),
        Cell(mib(g.largest_upload)),
    ]


def _draw(study: Study, figure: Figure) -> None:
    ax = figure.subplots()
    for i, (name, line) in enumerate(study.lines.items()):
        error_line(ax, list(line), [g.A_T for g in line.values()], i, name)
    for g in study.others:
        ax.axhline(g.A_T.mean, ls=(0, (4, 2)), color=INK, lw=1.0, label=short(g.name))
    ax.set_xscale("log")
    every = sorted(study.values)
    ax.set_xticks(every, [f"{e:g}" for e in every])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("privacy budget ε")
    ax.set_ylabel(FINAL)
    legend_below(figure, [ax])
