"""Tables of the ablations: label rate, rank and width, components of the feature map."""

from __future__ import annotations

from collections.abc import Sequence

from fedran.bench.report.ablations import (
    LABEL_KEYS,
    ComponentStudy,
    LabelStudy,
    RankStudy,
    component_studies,
    label_studies,
    rank_studies,
)
from fedran.bench.report.paper import COMPONENTS, LABEL_GAIN, RANK_A_AVG, RANK_MIB, paper_dataset
from fedran.bench.report.tables.communication import largest_formula, largest_upload
from fedran.bench.report.tables.table import (
    NOTHING,
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
    text_columns,
)
from fedran.bench.results.grouping import Group
from fedran.bench.results.metrics import label_rates, mean_or_none, pseudo_labels
from fedran.bench.results.result import Result


def label_tables(results: Sequence[Result]) -> list[Table]:
    """Accuracy at each label rate, and how good the pseudo-labels are."""
    return [_label_table(study) for study in label_studies(results)]


def _label_table(study: LabelStudy) -> Table:
    rates = sorted({rate for line in study.lines.values() for rate in line})
    baseline = study.lines.get(LABEL_KEYS["fedran"], {})
    blocks = [
        [
            _label_row(rate, name, line[rate], baseline.get(rate))
            for name, line in study.lines.items()
            if rate in line
        ]
        for rate in rates
    ]
    columns = [
        *text_columns("labelled rows", "variant"),
        *number_columns("A_avg", "A_T", "gain in A_avg"),
        *number_columns("accepted", "correct", group="pseudo-labels"),
        *number_columns("labelled, by client"),
    ]
    members = [
        (f"{name} at {100 * rate:g} %", g)
        for name, line in study.lines.items()
        for rate, g in line.items()
    ]
    note = seeds_note([(name, len(g.results)) for name, g in members])
    note += (
        " Accepted: share of the unlabelled rows that get a pseudo-label. Correct: share of the "
        "pseudo-labels that are right. Labelled, by client: the smallest and the largest share of "
        "labelled rows of any client and task."
    )
    printed = LABEL_GAIN.get(paper_dataset(study.dataset) or "")
    if printed and study.beta == 0.1:
        note += (
            f" The paper prints a gain of +{printed} in A_avg at 20 % labels for its prototype "
            "pseudo-labels."
        )
    return Table(study.title, columns, blocks, note, results_of(g for _, g in members))


def _label_row(rate: float, name: str, g: Group, baseline: Group | None) -> list[Cell]:
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


def rank_tables(results: Sequence[Result]) -> list[Table]:
    """Accuracy, bytes and Gram error over width and rank."""
    return [_rank_table(study) for study in rank_studies(results)]


def _rank_table(study: RankStudy) -> Table:
    members = [(m, rank, g) for m, line in study.lines.items() for rank, g in line.items()]
    printed = paper_dataset(study.setting.dataset) == "CIFAR-100" and study.beta == 0.5
    blocks = [
        [_rank_row(m, rank, g, printed) for rank, g in line.items()]
        for m, line in study.lines.items()
    ]
    columns = [
        *number_columns("M", "rank", "A_avg", "A_T", "largest upload, MiB", "formula, MiB"),
        *number_columns("Gram error"),
        *([Column(h, "printed", muted=True) for h in ("A_avg", "MiB")] if printed else []),
    ]
    note = seeds_note([(f"M = {m}, rank {rank}", len(g.results)) for m, rank, g in members])
    return Table(study.title, columns, blocks, note, results_of(g for _, _, g in members))


def _rank_row(m: int, rank: int, g: Group, printed: bool) -> list[Cell]:
    paper = [number(figures.get((m, rank)), 1, muted=True) for figures in (RANK_A_AVG, RANK_MIB)]
    return [
        Cell(str(m)),
        Cell(str(rank)),
        mean_and_spread(g.A_avg),
        mean_and_spread(g.A_T),
        Cell(mib(largest_upload(g))),
        Cell(mib(largest_formula(g))),
        significant(g.mean(_gram_error)),
        *(paper if printed else []),
    ]


def _gram_error(result: Result) -> float | None:
    return max((t.gram_error for t in result.tasks if t.gram_error is not None), default=None)


def component_tables(results: Sequence[Result]) -> list[Table]:
    """A_avg as components are added, for each ridge parameter."""
    return [_component_table(study) for study in component_studies(results)]


def _component_table(study: ComponentStudy) -> Table:
    members = [
        (f"{step} at {lam}", g) for (_, step), row in study.bars.items() for lam, g in row.items()
    ]
    blocks = []
    for (component, step), row in study.bars.items():
        stats = [row[lam].A_avg if lam in row else None for lam in study.lams]
        printed = number(COMPONENTS.get(component), muted=True)
        blocks.append([[Cell(step), *map(mean_and_spread, stats), printed]])
    columns = [
        *text_columns("component"),
        *number_columns(*study.lams, group="A_avg"),
        Column("printed (ViT-B/16, CIFAR-100, M = 1250)", muted=True),
    ]
    note = f"{study.backbones} {seeds_note([(name, len(g.results)) for name, g in members])}"
    return Table(study.title, columns, blocks, note, results_of(g for _, g in members))
