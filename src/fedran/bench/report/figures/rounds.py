"""Upload of the mean client, added up over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedran.bench.report.figures.chart import (
    INK,
    Chart,
    Line,
    line_styles,
    log_ticks,
    short,
    slug,
    unique,
)
from fedran.bench.report.paper import TARGET_ROUNDS
from fedran.bench.report.tables.bytes import printed_for
from fedran.bench.report.tables.table import MIB
from fedran.bench.results.grouping import Group, by_setting, comparisons, groups, place_title
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW_ROUNDS = 20


def round_charts(results: Sequence[Result]) -> list[Chart]:
    """One figure a setting, at its most skewed partition."""
    styles = line_styles(results)
    charts = []
    for setting, members in by_setting(groups(comparisons(results))).items():
        betas = [g.beta for g in members if g.beta is not None]
        beta = min(betas) if betas else None
        found = [g for g in members if g.beta == beta]
        name = slug("rounds", setting.dataset, setting.frame)
        size = (7.6, max(3.2, 0.21 * len(found) + 0.9))
        draw = partial(_draw, found, styles)
        charts.append(Chart(name, place_title(setting, beta), size, draw))
    return unique(charts)


def uploads(result: Result) -> tuple[list[int], list[float]]:
    """Rounds and bytes of the mean client so far, after each task."""
    rounds = np.cumsum([t.rounds for t in result.tasks])
    sent = np.cumsum([np.mean(t.bytes_up) for t in result.tasks])
    return [int(r) for r in rounds], [float(b) for b in sent]


def _draw(found: list[Group], styles: dict[str, Line], figure: Figure) -> None:
    ax = figure.subplots()
    for g in sorted(found, key=lambda g: -uploads(g.first)[1][-1]):
        rounds, s = uploads(g.first)[0], styles[g.name]
        sent = np.mean([uploads(r)[1] for r in g.results], axis=0) / MIB
        ax.plot(
            rounds,
            sent,
            s.marker,
            ls=(0, (4, 2)) if s.dashed else "-",
            mfc="none" if s.dashed else s.colour,
            color=s.colour,
            label=short(g.name),
        )
    paper = printed_for(found[0].setting)
    told = paper.mib("TARGET") if paper else None
    if told:
        tasks = found[0].setting.tasks
        x = np.array([1.0, TARGET_ROUNDS * tasks])
        text = "TARGET, printed by the paper, not\nmeasured: 100 rounds x state_dict"
        ax.plot(x, x * told / TARGET_ROUNDS, ":", color=INK, label=text)
    ax.set_yscale("log")
    log_ticks(ax.yaxis, ax.dataLim.intervaly)
    if ax.dataLim.x1 > FEW_ROUNDS:
        ax.set_xscale("log")
        log_ticks(ax.xaxis, ax.dataLim.intervalx)
    else:
        ax.set_xticks(range(1, int(ax.dataLim.x1) + 1))
    ax.set_xlabel("rounds so far")
    ax.set_ylabel("sent by the mean client so far, MiB")
    figure.legend(loc="outside right upper")
