"""Drift, what it costs, and bytes over rounds: why the extractor is frozen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedran.bench.report.figures.chart import (
    ACCENT,
    COLOURS,
    INK,
    Chart,
    Line,
    legend_below,
    legend_columns,
    legend_rows,
    line_styles,
    log_ticks,
    short,
    slug,
    unique,
)
from fedran.bench.report.figures.rounds import uploads
from fedran.bench.report.tables.drift import (
    drifting,
    has_drift,
    over_seeds,
    reference_accuracy,
)
from fedran.bench.report.tables.table import MIB
from fedran.bench.results.grouping import Group, Setting, place_title
from fedran.bench.results.metrics import is_trained, network
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VIT_B16 = 85_798_656
"""Parameters of ViT-B/16 at 224 x 224 without its head: 12 blocks of 7,087,872, patches
590,592, positions 197 x 768, class token 768, last norm 1,536."""
VIT_WIDTH = 768
COLUMNS = 3


def motivation_charts(results: Sequence[Result]) -> list[Chart]:
    """One figure a setting, at the most skewed beta at which an extractor drifted."""
    styles, seen, charts = line_styles(results), set[Setting](), []
    for (setting, beta), found in drifting(results).items():
        if setting in seen:
            continue
        seen.add(setting)
        panels = 3 if _pairs(found) else 2
        width, names = 3.3 * panels, [g.name for g in found if has_drift(g)]
        columns = legend_columns(width, names, COLUMNS)
        size = (width, 2.9 + legend_rows(len(names) + 4, columns))
        name = slug("motivation", setting.dataset, setting.frame)
        caption = f"{place_title(setting, beta)}. {_said(found)}"
        charts.append(Chart(name, caption, size, partial(_draw, found, styles, columns)))
    return unique(charts)


def _said(found: list[Group]) -> str:
    middle = (
        " Middle: accuracy on these rows against drift, a ring after task 2, then task by task."
    )
    return (
        "Left: drift on the reference rows; FedRAN's extractor is frozen."
        f"{middle if _pairs(found) else ''} Right: bytes sent by the mean client so far. Measured, "
        "means over seeds, but for the dotted line: it is computed from the parameters of "
        f"ViT-B/16 ({VIT_B16:,} and a head), 4 bytes each, all sent in every round."
    )


def vit_upload(classes: int) -> int:
    """Bytes of ViT-B/16 with a linear head, float32: what one round would send.

    >>> round(vit_upload(100) / 2**20, 1)
    327.6
    """
    return 4 * (VIT_B16 + (VIT_WIDTH + 1) * classes)


def _ours(found: list[Group]) -> Group | None:
    return next((g for g in found if g.key == "fedran"), None)


def _pairs(found: list[Group]) -> dict[str, tuple[list[float], list[float]]]:
    """Drift and accuracy on the reference rows, of all that drifted and of FedRAN."""
    pairs = {}
    for g in found:
        right = reference_accuracy(g)
        if has_drift(g):
            drift = over_seeds(r.drift for r in g.results)
        elif g is _ours(found):
            drift = [0.0] * len(right)
        else:
            continue
        length = min(len(drift), len(right))
        if length:
            pairs[g.name] = drift[:length], right[:length]
    return pairs


def _draw(found: list[Group], styles: dict[str, Line], columns: int, figure: Figure) -> None:
    pairs = _pairs(found)
    axes = list(figure.subplots(1, 3 if pairs else 2))
    _drift(axes[0], found, styles)
    if pairs:
        _against(axes[1], pairs, styles)
    _rounds(axes[-1], found)
    legend_below(figure, [axes[0], axes[-1]], columns)


def _drift(ax: Axes, found: list[Group], styles: dict[str, Line]) -> None:
    tasks = found[0].setting.tasks
    for g in filter(has_drift, found):
        s, drift = styles[g.name], over_seeds(r.drift for r in g.results)
        x = range(2, 2 + len(drift))
        ax.plot(x, drift, s.marker, ls="-", color=s.colour, label=short(g.name))
    ours = _ours(found)
    if ours is not None:
        x = range(2, tasks + 1)
        ax.plot(x, [0.0] * len(x), "o-", color=ACCENT, label=short(ours.name), zorder=3)
    ax.set_xticks(range(2, tasks + 1, max(1, tasks // 10)))
    ax.set_xlabel("after task")
    ax.set_ylabel("drift on the reference rows")


def _against(
    ax: Axes, pairs: dict[str, tuple[list[float], list[float]]], styles: dict[str, Line]
) -> None:
    for name, (drift, right) in pairs.items():
        s = styles[name]
        ax.plot(drift, right, "-", lw=1.0, color=s.colour)
        ax.plot(drift[1:], right[1:], s.marker, ls="", color=s.colour)
        ax.plot(drift[:1], right[:1], "o", mfc="none", ms=6, color=s.colour)
    ax.set_ylim(0, max(5.0, *(v for _, right in pairs.values() for v in right)) * 1.06)
    ax.set_xlabel("drift on the reference rows")
    ax.set_ylabel("accuracy on the reference rows, %")


def _rounds(ax: Axes, found: list[Group]) -> None:
    lines = _networks(found)
    shades = (COLOURS[9], INK)
    for (name, g), shade, marker in zip(lines.items(), shades, "sD", strict=False):
        ax.plot(*_sent(g), marker, ls="-", color=shade, label=f"{name}, measured")
    last = max(_sent(g)[0][-1] for g in lines.values())
    every = vit_upload(len(found[0].first.classes)) / MIB
    ax.plot([1, last], [every, every * last], ":", color=INK, label="ViT-B/16, computed")
    ours = _ours(found)
    if ours is not None:
        ax.plot(*_sent(ours), "o", ls="-", color=ACCENT, zorder=3)
    ax.set_xscale("log")
    ax.set_yscale("log")
    log_ticks(ax.xaxis, ax.dataLim.intervalx)
    log_ticks(ax.yaxis, ax.dataLim.intervaly)
    ax.set_xlabel("rounds so far")
    ax.set_ylabel("sent by the mean client, MiB")


def _networks(found: list[Group]) -> dict[str, Group]:
    """The smallest and the largest network that was trained, each with one method's runs."""
    first: dict[str, Group] = {}
    trained = [g for g in found if is_trained(g.first)]
    # Plain averaging sends the model and nothing else.
    for g in sorted(trained, key=lambda g: g.key != "finetune"):
        first.setdefault(short(network(g.first) or g.name), g)
    ranked = sorted(first.items(), key=lambda item: _a_round(item[1]))
    return dict(ranked[:1] + ranked[-1:])


def _a_round(g: Group) -> float:
    rounds, sent = uploads(g.first)
    return sent[-1] / rounds[-1]


def _sent(g: Group) -> tuple[list[int], list[float]]:
    """Rounds and MiB so far: after the first round, as if all sent the same, and each task."""
    rounds = uploads(g.first)[0]
    sent = [float(v) / MIB for v in np.mean([uploads(r)[1] for r in g.results], axis=0)]
    if rounds[0] == 1:
        return rounds, sent
    return [1, *rounds], [sent[0] / rounds[0], *sent]
