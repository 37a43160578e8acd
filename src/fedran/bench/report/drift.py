"""Why the feature extractor is frozen: drift, its cost in accuracy, and bytes over rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedran.bench.report.figures.chart import (
    ACCENT,
    INK,
    MUTED,
    NARROW,
    OTHER,
    Chart,
    Style,
    fit_legend,
    legend_below,
    log_ticks,
    numbered_styles,
    panels,
    short,
    slug,
    unique,
)
from fedran.bench.report.figures.curves import GREY
from fedran.bench.report.section import Section
from fedran.bench.report.tables.table import (
    MIB,
    Cell,
    Table,
    number,
    number_columns,
    one_per_setting,
    results_of,
    significant,
    text_columns,
)
from fedran.bench.results.grouping import (
    Case,
    Group,
    Setting,
    comparison_cases,
    group_of,
    row_order,
)
from fedran.bench.results.metrics import (
    cumulative_upload,
    has_moving_features,
    is_head,
    is_trained,
    network,
)
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VIT_B16 = 85_798_656
"""Parameters of ViT-B/16 at 224 x 224 without its head: 12 blocks of 7,087,872, patches
590,592, positions 197 x 768, class token 768, last norm 1,536."""
VIT_WIDTH = 768
Track = tuple[list[float], list[float]]
"""Drift and accuracy on the reference rows, task by task."""


def drift_section(results: Sequence[Result]) -> Section:
    """Tables and figures of all settings with drift."""
    intro = (
        "Why FedRAN freezes its feature extractor. The reference rows are the rows of client 1 in "
        "task 2. Drift is the mean distance of their features from where they were after task 2. "
        "A frozen extractor has no drift. Heads on frozen features are listed too: they lose "
        "accuracy without any drift."
    )
    tables, charts = drift_tables(results), drift_charts(results)
    return Section("drift", "Drift", [intro], tables, charts, folded=True)


def drift_tables(results: Iterable[Result]) -> list[Table]:
    """One table per setting and beta in which some feature extractor drifted."""
    cases = drifting(results)
    return one_per_setting((case.setting, _table(case, found)) for case, found in cases.items())


def drifting(results: Iterable[Result]) -> dict[Case, list[Group]]:
    """The groups of every setting and beta with drift; the most skewed beta comes first."""
    cases = comparison_cases(results)
    return {case: found for case, found in cases.items() if any(map(has_drift, found))}


def has_drift(g: Group) -> bool:
    """Whether any run of the group recorded drift."""
    return any(r.drift for r in g.results)


def mean_drift(g: Group) -> list[float]:
    """Drift after task 2 and every later task, mean over seeds."""
    return mean_over_seeds(r.drift for r in g.results)


def mean_reference_accuracy(g: Group) -> list[float]:
    """Accuracy on the reference rows in percent, after task 2 and every later task."""
    return [100.0 * v for v in mean_over_seeds(r.reference_acc for r in g.results)]


def mean_over_seeds(rows: Iterable[Sequence[float]]) -> list[float]:
    """Entry-wise mean of the rows that are not empty.

    >>> mean_over_seeds([[0.0, 1.0], [0.0, 2.0], []])
    [0.0, 1.5]
    """
    recorded = [list(row) for row in rows if len(row)]
    length = min(map(len, recorded), default=0)
    return [float(np.mean([row[i] for row in recorded])) for i in range(length)]


def _table(case: Case, found: Sequence[Group]) -> Table:
    columns = [
        *text_columns("method"),
        *number_columns("drift after the last task"),
        *number_columns("task 2", "the last task", group="accuracy on the reference rows after, %"),
    ]
    shown = [g for g in sorted(found, key=row_order) if _is_shown(g)]
    ours = group_of("fedran", shown)  # once: the sizes of its message change no drift
    shown = [g for g in shown if g.key != "fedran" or g is ours]
    blocks = []
    for g in shown:
        drift, accuracy = mean_drift(g), mean_reference_accuracy(g)
        moved = significant(drift[-1] if drift else None)
        ends = [accuracy[0], accuracy[-1]] if accuracy else [None, None]
        if not has_moving_features(g.first):
            moved = Cell("0")
        blocks.append([[Cell(g.name), moved, *(number(v, 1) for v in ends)]])
    note = "Means over seeds."
    return Table(case.title, columns, blocks, note, results_of(shown))


def _is_shown(g: Group) -> bool:
    """Trained methods, and FedRAN for comparison."""
    recorded = any(r.reference_acc for r in g.results)
    return has_drift(g) or (recorded and (is_head(g.first) or g.key == "fedran"))


def drift_charts(results: Sequence[Result]) -> list[Chart]:
    """One figure per setting, at the most skewed beta with drift."""
    seen = set[Setting]()
    charts: list[Chart] = []
    for case, found in drifting(results).items():
        setting = case.setting
        if setting in seen:
            continue
        seen.add(setting)
        tracks = _tracks(found)
        n = 3 if tracks else 2
        styles = numbered_styles(g.name for g in found if has_drift(g))
        names = [*styles, "FedRAN", GREY, "linear head, measured", "ResNet-18, measured", "ViT"]
        middle = (
            " Second: accuracy on the same rows against drift. The ring is the state after task 2; "
            "each further mark is one more task."
        )
        note = (
            "First: drift on the reference rows; FedRAN's extractor is frozen."
            f"{middle if tracks else ''} Last: bytes sent by the mean client so far. All lines "
            "are measured means over seeds, except the dotted one: it is computed from the "
            f"parameters of ViT-B/16 ({VIT_B16:,} and a head), with 4 bytes each, sent in every "
            "round."
        )
        caption = f"Drift: {case.title}"
        draw = partial(_draw, found, tracks, styles)
        name, width = slug("drift", setting.dataset, setting.frame), 3.3 * n
        size = (width, 2.9 + fit_legend(width, names)[1])
        high = 2.3 * n + fit_legend(NARROW, names)[1]
        charts.append(Chart(name, caption, size, draw, note, narrow_height=high))
    return unique(charts)


def vit_upload(classes: int) -> int:
    """Bytes of ViT-B/16 with a linear head in float32: the upload of one round.

    >>> round(vit_upload(100) / 2**20, 1)
    327.6
    """
    return 4 * (VIT_B16 + (VIT_WIDTH + 1) * classes)


def _tracks(found: Sequence[Group]) -> dict[str, Track]:
    """The tracks of all methods that drifted, and of FedRAN."""
    ours, tracks = group_of("fedran", found), {}
    for g in found:
        accuracy = mean_reference_accuracy(g)
        if has_drift(g):
            drift = mean_drift(g)
        elif g is ours:
            drift = [0.0] * len(accuracy)
        else:
            continue
        length = min(len(drift), len(accuracy))
        if length:
            tracks[g.name] = drift[:length], accuracy[:length]
    return tracks


def _draw(
    found: Sequence[Group], tracks: dict[str, Track], styles: dict[str, Style], figure: Figure
) -> None:
    axes = panels(figure, 3 if tracks else 2)
    _draw_drift(axes[0], found, styles)
    if tracks:
        _draw_tracks(axes[1], tracks, styles)
    _draw_uploads(axes[-1], found)
    legend_below(figure, [axes[0], axes[-1]])


def _draw_drift(ax: Axes, found: Sequence[Group], styles: dict[str, Style]) -> None:
    tasks, grey = found[0].setting.tasks, GREY
    for g in filter(has_drift, found):
        drift = mean_drift(g)
        label = short(g.name) if g.name in styles else grey
        grey = "_nolegend_" if label == grey else grey
        ax.plot(range(2, 2 + len(drift)), drift, **styles.get(g.name, OTHER).line, label=label)
    ours = group_of("fedran", found)
    if ours is not None:
        x = range(2, tasks + 1)
        ax.plot(x, [0.0] * len(x), "o-", color=ACCENT, label=short(ours.name), zorder=3)
    ax.set_xticks(range(2, tasks + 1, max(1, tasks // 10)))
    ax.set_xlabel("after task")
    ax.set_ylabel("drift on the reference rows")


def _draw_tracks(ax: Axes, tracks: dict[str, Track], styles: dict[str, Style]) -> None:
    for name, (drift, accuracy) in tracks.items():
        s = styles.get(name, Style(ACCENT, "o") if max(drift) == 0 else OTHER)
        ax.plot(drift, accuracy, "-", lw=1.0, color=s.colour)
        ax.plot(drift[1:], accuracy[1:], s.marker or ".", ls="", color=s.colour)
        ax.plot(drift[:1], accuracy[:1], "o", mfc="none", ms=6, color=s.colour)
    ax.set_ylim(0, max(5.0, *(v for _, accuracy in tracks.values() for v in accuracy)) * 1.06)
    ax.set_xlabel("drift on the reference rows")
    ax.set_ylabel("accuracy on the reference rows, %")


def _draw_uploads(ax: Axes, found: Sequence[Group]) -> None:
    lines = {name: _sent(g) for name, g in _smallest_and_largest_network(found).items()}
    for (name, line), shade, marker in zip(lines.items(), (MUTED, INK), "sD", strict=False):
        ax.plot(*line, marker, ls="-", color=shade, label=f"{name}, measured")
    last = max(rounds[-1] for rounds, _ in lines.values())
    per_round = vit_upload(len(found[0].first.classes)) / MIB
    ax.plot([1, last], [per_round, per_round * last], ":", color=INK, label="ViT-B/16, computed")
    ours = group_of("fedran", found)
    if ours is not None:
        ax.plot(*_sent(ours), "o", ls="-", color=ACCENT, zorder=3)
    ax.set_xscale("log")
    ax.set_yscale("log")
    log_ticks(ax.xaxis, ax.dataLim.intervalx)
    log_ticks(ax.yaxis, ax.dataLim.intervaly)
    ax.set_xlabel("rounds so far")
    ax.set_ylabel("sent by the mean client, MiB")


def _smallest_and_largest_network(found: Sequence[Group]) -> dict[str, Group]:
    """The networks with the smallest and the largest upload per round, each with one method."""
    networks: dict[str, Group] = {}
    trained = [g for g in found if is_trained(g.first)]
    # Plain averaging sends the model and nothing else, so it stands for its network.
    for g in sorted(trained, key=lambda g: g.key != "finetune"):
        networks.setdefault(short(network(g.first) or g.name), g)

    def upload_per_round(item: tuple[str, Group]) -> float:
        rounds, sent = cumulative_upload(item[1].first)
        return sent[-1] / rounds[-1]

    ranked = sorted(networks.items(), key=upload_per_round)
    return dict(ranked[:1] + ranked[-1:])


def _sent(g: Group) -> tuple[list[int], list[float]]:
    """Rounds and MiB so far, after each task and, with equal uploads, after the first round."""
    rounds = cumulative_upload(g.first)[0]
    sent = np.mean([cumulative_upload(r)[1] for r in g.results], axis=0) / MIB
    if rounds[0] == 1:
        return rounds, sent.tolist()
    return [1, *rounds], [sent[0] / rounds[0], *sent]
