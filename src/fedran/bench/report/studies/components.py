"""Components of the feature map, added one after the other at several ridge parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedran.bench.report.figures.chart import AVERAGE, HUES, INK, is_narrow, legend_below
from fedran.bench.report.paper import COMPONENTS
from fedran.bench.report.section import Section
from fedran.bench.report.studies.study import Study, study_section
from fedran.bench.report.tables.table import (
    Cell,
    Column,
    Table,
    mean_and_spread,
    number,
    number_columns,
    results_of,
    seeds_note,
    text_columns,
)
from fedran.bench.results.grouping import Group, cases, comparisons
from fedran.bench.results.result import Result
from fedran.data.catalogue import dataset_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEATURES = {
    "raw": "raw features",
    "linear": "linear projection",
    "relu": "ReLU",
    "cosine": "cosine, GELU",
    "hellinger": "Hellinger, GELU",
}
LOW_RANK = "low rank"
INTRO = [
    "The components of the feature map are added one after the other, as in the paper's "
    "ablation, at several ridge parameters λ. The paper states λ = 0.001. Low rank is "
    "FedRAN's upload: truncated and quantised.",
    "In exact arithmetic a linear projection cannot help at so small a λ. In float32, a "
    "projection wider than the features has directions that contain only rounding errors. "
    "Dividing them by a very small λ destroys the classifier; the paper's own head drops these "
    "directions. At a large λ a projection helps, because it scales the Gram matrix up and the "
    "same λ regularises less. The printed figures rise with the projection, as ours do at "
    "λ = 1e6, the constant of the published code of STSA.",
]


def components_section(results: Sequence[Result]) -> Section:
    """A table and a figure per setting and beta."""
    studies = component_studies(results)
    return study_section(
        "components", "Components", INTRO, studies, _table, _draw, size=_size, note=_note
    )


def components_verdict(results: Sequence[Result]) -> Iterator[str]:
    """The accuracies of the first and of the best step by our ridge rule."""
    for study in component_studies(results):
        rule = {step: next(iter(row.values())).A_avg.mean for (_, step), row in study.lines.items()}
        first, best = next(iter(rule)), max(rule, key=lambda step: rule[step])
        yield (
            f"{dataset_title(study.case.setting.dataset)}, {study.values[0]}: {rule[first]:.1f} % "
            f"with {first}, at best {rule[best]:.1f} % with {best}."
        )


def component_studies(results: Sequence[Result]) -> list[Study]:
    """Settings in which the exact Gram matrix was computed on several kinds of features.

    The lines are ``lines[step][ridge parameter]``. A step is a component as in
    ``paper.COMPONENTS`` and its description.
    """
    pool = [r for r in results if r.study == "components"] or comparisons(
        r for r in results if "features" in r.params
    )
    studies = []
    for case, found in cases(pool).items():
        bars: dict[tuple[str, str], dict[str, Group]] = {}
        for g in sorted(filter(_component, found), key=_step_order):
            component, lam = _component(g), g.params.get("lam")
            description = FEATURES.get(component, component)
            if component != "raw" and g.params.get("out_features"):
                description += f", M = {g.params['out_features']}"
            if component == LOW_RANK:
                description += f", r = {g.params.get('rank')}"
            ridge = "λ by FedRAN's rule" if lam is None else f"λ = {float(lam):g}"
            bars.setdefault((component, description), {})[ridge] = g
        if len({component for component, _ in bars} - {LOW_RANK}) > 1:
            studies.append(Study(case, bars))
    return studies


def _component(g: Group) -> str:
    """The component that a run adds last; empty for a run that belongs to no step."""
    features = str(g.params.get("features"))
    component = str(g.params.get("kind")) if features == "random" else features
    if g.key == "exact" and component in FEATURES:
        return component
    return LOW_RANK if g.key == "fedran" else ""


def _step_order(g: Group) -> tuple[int, int, float]:
    """By component, then by width, then by ridge parameter."""
    lam = g.params.get("lam")
    width = g.params.get("out_features") or 0
    return [*FEATURES, LOW_RANK].index(_component(g)), width, -1.0 if lam is None else float(lam)


def _table(study: Study) -> Table:
    seeds = [
        (f"{step} at {lam}", len(g.results))
        for (_, step), row in study.lines.items()
        for lam, g in row.items()
    ]
    blocks = []
    for (component, step), row in study.lines.items():
        stats = [row[lam].A_avg if lam in row else None for lam in study.values]
        printed = number(COMPONENTS.get(component), muted=True)
        blocks.append([[Cell(step), *map(mean_and_spread, stats), printed]])
    columns = [
        *text_columns("component"),
        *number_columns(*study.values, group="A_avg"),
        Column("printed (ViT-B/16, CIFAR-100, M = 1250)", muted=True),
    ]
    note = f"{_backbones(study)} {seeds_note(seeds)}"
    return Table(study.title, columns, blocks, note, results_of(study.members))


def _backbones(study: Study) -> str:
    """Which figures come from which backbone."""
    return (
        f"Ours: {dataset_title(study.case.setting.dataset)}, frozen. Printed: ViT-B/16, fine-tuned "
        "in task 0, 10 tasks, β = 1. The backbones differ, so only the steps between components "
        "can be compared."
    )


def _size(study: Study) -> tuple[float, float, float]:
    bars = sum(len(row) + 1 for row in study.lines.values())
    return max(5.5, 1.75 * len(study.lines) + 0.8), 3.2, 1.2 + 0.2 * bars


def _note(study: Study) -> str:
    return _backbones(study) + (" The axis does not start at zero." * (_floor(study) > 0))


def _floor(study: Study) -> float:
    """The lower end of the vertical axis, below all bars and printed figures."""
    bars = [g.A_avg.mean for g in study.members]
    printed = [COMPONENTS[name] for name, _ in study.lines if name in COMPONENTS]
    return max(0.0, 5.0 * math.floor(min([100.0, *bars, *printed]) / 5.0) - 5.0)


def _draw(study: Study, figure: Figure) -> None:
    """Bars, which lie in a narrow figure."""
    ax, lying = figure.subplots(), is_narrow(figure)
    steps, lams = list(study.lines), study.values
    width = 0.8 / len(lams)
    for i, lam in enumerate(lams):
        at = [(k, row[lam]) for k, row in enumerate(study.lines.values()) if lam in row]
        x = np.array([k - 0.4 + width * (i + 0.5) for k, _ in at])
        mean = [g.A_avg.mean for _, g in at]
        draw = ax.barh if lying else ax.bar
        bars = draw(x, mean, width * 0.92, color=HUES[i % len(HUES)], alpha=0.85, label=lam)
        ax.bar_label(bars, [f"{v:.1f}" for v in mean], fontsize=7, padding=1)
    printed = [(k, COMPONENTS[name]) for k, (name, _) in enumerate(steps) if name in COMPONENTS]
    for k, value in printed:
        label = "printed (ViT-B/16)" if k == printed[0][0] else "_nolegend_"
        ends = [[k - 0.42, k + 0.42], [value, value]]
        ax.plot(*(reversed(ends) if lying else ends), ":", color=INK, lw=1.2, label=label)
    names = [text.replace(", ", "\n", 1) for _, text in steps]
    if lying:
        ax.set_xlim(_floor(study), None)
        ax.set_yticks(range(len(steps)), names)
        ax.invert_yaxis()
        ax.set_xlabel(AVERAGE)
    else:
        ax.set_ylim(_floor(study), None)
        ax.set_xticks(range(len(steps)), names)
        ax.set_ylabel(AVERAGE)
    ax.grid(visible=False, axis="y" if lying else "x")
    legend_below(figure, [ax])
