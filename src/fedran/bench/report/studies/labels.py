"""Few labels: accuracy over the share of labelled rows, with and without pseudo-labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedran.bench.report.figures.chart import AVERAGE, FINAL, error_line, legend_below, panels
from fedran.bench.report.paper import LABEL_GAIN, paper_dataset
from fedran.bench.report.section import Section
from fedran.bench.report.studies.study import Study, study_section
from fedran.bench.report.tables.table import (
    NOTHING,
    Cell,
    Table,
    mean_and_spread,
    number_columns,
    results_of,
    seeds_note,
    text_columns,
)
from fedran.bench.results.grouping import Case, Group, groups, identity
from fedran.bench.results.metrics import label_rates, mean_or_none, pseudo_labels
from fedran.bench.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIANTS = {
    "fedran": "labelled only",
    "fedran-prototype": "prototype pseudo-labels",
    "fedran-margin": "margin pseudo-labels",
}
INTRO = (
    "Accuracy when only a share of the rows is labelled. Labelled only: unlabelled rows are left "
    "out. Pseudo-labels: each client labels its own unlabelled rows, by the nearest class mean "
    "(prototype, the rule of the paper) or by a ridge classifier with a minimal margin (margin). "
    "The gain is in percentage points over labelled only at the same share of labelled rows."
)


def labels_section(results: Sequence[Result]) -> Section:
    """A table and a figure per setting and beta."""
    studies = label_studies(results)
    return study_section("labels", "Few labels", [INTRO], studies, _table, _draw)


def labels_verdict(results: Sequence[Result]) -> Iterator[str]:
    """The accuracies with the fewest and with the most labels."""
    for study in label_studies(results):
        for name, line in study.lines.items():
            few, many = min(line), max(line)
            yield (
                f"{name.capitalize()}: {line[few].A_avg.mean:.1f} % accuracy, mean over tasks, "
                f"with {100 * few:g} % of the labels; {line[many].A_avg.mean:.1f} % with "
                f"{100 * many:g} %."
            )


def label_studies(results: Sequence[Result]) -> list[Study]:
    """Variants with missing labels or at several label rates, by setting and beta.

    The lines are ``lines[variant][label rate]``.
    """
    pool = [r for r in results if r.key in VARIANTS and r.study not in {"rank", "components"}]
    cases: dict[Case, dict[str, dict[float, Group]]] = {}
    for g in groups(pool):
        case = Case(replace(g.setting, label_rate=1.0), g.beta)
        line = cases.setdefault(case, {}).setdefault(identity(g.first), {})
        line[g.setting.label_rate] = g
    studies = []
    for case, variants in cases.items():
        lines = [
            dict(sorted(line.items()))
            for line in variants.values()
            if len(line) > 1 or min(line) < 1
        ]
        firsts = [next(iter(line.values())) for line in lines]
        keys = [g.key for g in firsts]
        # Two variants with the same description are distinguished by their names.
        names = [VARIANTS[g.key] if keys.count(g.key) == 1 else g.name for g in firsts]
        if lines:
            named = dict(zip(names, lines, strict=True))
            studies.append(Study(case, named))
    return studies


def _table(study: Study) -> Table:
    baseline = study.lines.get(VARIANTS["fedran"], {})
    blocks = [
        [
            _row(rate, name, line[rate], baseline.get(rate))
            for name, line in study.lines.items()
            if rate in line
        ]
        for rate in sorted(study.values)
    ]
    columns = [
        *text_columns("labelled rows", "variant"),
        *number_columns("A_avg", "A_T", "gain in A_avg"),
        *number_columns("accepted", "correct", group="pseudo-labels"),
        *number_columns("labelled, by client"),
    ]
    seeds = [
        (f"{name} at {100 * rate:g} %", len(g.results))
        for name, line in study.lines.items()
        for rate, g in line.items()
    ]
    note = seeds_note(seeds)
    note += (
        " Accepted: share of the unlabelled rows that get a pseudo-label. Correct: share of the "
        "pseudo-labels that are right. Labelled, by client: the smallest and the largest share of "
        "labelled rows of any client and task."
    )
    printed = LABEL_GAIN.get(paper_dataset(study.case.setting.dataset) or "")
    if printed and study.case.beta == 0.1:
        note += (
            f" The paper prints a gain of +{printed} in A_avg at 20 % labels for its prototype "
            "pseudo-labels."
        )
    return Table(study.title, columns, blocks, note, results_of(study.members))


def _row(rate: float, name: str, g: Group, baseline: Group | None) -> list[Cell]:
    gain = g.A_avg.mean - baseline.A_avg.mean if baseline and baseline is not g else None
    accepted, correct = zip(*(pseudo_labels(r) for r in g.results), strict=True)
    shares = [found for r in g.results if (found := label_rates(r)) is not None]
    low, high = (min(s[0] for s in shares), max(s[1] for s in shares)) if shares else (0.0, 0.0)
    return [
        Cell(f"{100 * rate:g} %"),
        Cell(name),
        mean_and_spread(g.A_avg),
        mean_and_spread(g.A_T),
        Cell(NOTHING if gain is None else f"{gain:+.2f}"),
        _percent(accepted),
        _percent(correct),
        Cell(f"{100 * low:.0f} to {100 * high:.0f} %" if shares else NOTHING),
    ]


def _percent(shares: Sequence[float | None]) -> Cell:
    share = mean_or_none([v for v in shares if v is not None])
    return Cell(NOTHING if share is None else f"{100 * share:.1f} %")


def _draw(study: Study, figure: Figure) -> None:
    axes = panels(figure, 2)
    for i, (name, line) in enumerate(study.lines.items()):
        rates, found = [100 * rate for rate in line], line.values()
        error_line(axes[0], rates, [g.A_avg for g in found], i, name)
        error_line(axes[1], rates, [g.A_T for g in found], i, name)
    for ax, title in zip(axes, (AVERAGE, FINAL), strict=True):
        ax.set_xlabel("labelled rows, %")
        ax.set_ylabel(title)
    legend_below(figure, [axes[0]])
