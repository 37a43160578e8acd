"""Tables of the three studies: label rate, rank and width, components."""

from __future__ import annotations

from collections.abc import Sequence

from fedran.bench.report.paper import (
    COMPONENTS,
    LABEL_GAIN,
    RANK_A_AVG,
    RANK_MIB,
    paper_dataset,
)
from fedran.bench.report.studies import (
    LABEL_KEYS,
    ComponentStudy,
    LabelStudy,
    RankStudy,
    component_studies,
    label_studies,
    rank_studies,
)
from fedran.bench.report.tables.bytes import largest_upload
from fedran.bench.report.tables.table import (
    NOTHING,
    Cell,
    Column,
    Table,
    mib,
    number,
    numbers,
    seeds_note,
    spread,
    words,
)
from fedran.bench.results.grouping import Group, stat
from fedran.bench.results.metrics import formula_upload, label_rates, mean_or_none, pseudo_labels
from fedran.bench.results.result import Result


def label_tables(results: Sequence[Result]) -> list[Table]:
    """Accuracy at each label rate, and how good the pseudo-labels were."""
    return [_labels(study) for study in label_studies(results)]


def _labels(study: LabelStudy) -> Table:
    rates = sorted({rate for line in study.lines.values() for rate in line})
    base = study.lines.get(LABEL_KEYS["fedran"], {})
    members = [g for line in study.lines.values() for g in line.values()]
    say_n = len({len(g.results) for g in members}) > 1
    blocks = [
        [
            _label_row(rate, name, line[rate], base.get(rate), say_n)
            for name, line in study.lines.items()
            if rate in line
        ]
        for rate in rates
    ]
    columns = [
        *words("labelled", "variant"),
        *numbers("A_avg", "A_T", "A_avg gained", "accepted", "of these right", "by client"),
    ]
    note = seeds_note([len(g.results) for g in members])
    note += " By client: the least and the largest share of labelled rows of any client and task."
    told = LABEL_GAIN.get(paper_dataset(study.dataset) or "")
    if told and study.beta == 0.1:
        note += f" The paper prints +{told} A_avg at 20 % labels for its prototype labels."
    return Table(study.title, columns, blocks, note)


def _label_row(rate: float, name: str, g: Group, base: Group | None, say_n: bool) -> list[Cell]:
    own, before = g.stat(lambda r: r.A_avg), base.stat(lambda r: r.A_avg) if base else None
    gained = own.mean - before.mean if own and before and base is not g else None
    accepted, right = zip(*(pseudo_labels(r) for r in g.results), strict=True)
    return [
        Cell(f"{100 * rate:g} %"),
        Cell(name),
        spread(own, say_n=say_n),
        spread(g.stat(lambda r: r.A_T), say_n=say_n),
        Cell(NOTHING if gained is None else f"{gained:+.2f}"),
        _percent(accepted),
        _percent(right),
        _by_client(g),
    ]


def _by_client(g: Group) -> Cell:
    """The least and the largest label rate of any client and task."""
    found = [rates for r in g.results if (rates := label_rates(r)) is not None]
    if not found:
        return Cell(NOTHING)
    low, high = min(r[0] for r in found), max(r[1] for r in found)
    return Cell(f"{100 * low:.0f} .. {100 * high:.0f} %")


def _percent(shares: Sequence[float | None]) -> Cell:
    share = mean_or_none([v for v in shares if v is not None])
    return Cell(NOTHING if share is None else f"{100 * share:.1f} %")


def rank_tables(results: Sequence[Result]) -> list[Table]:
    """Accuracy, bytes and Gram error over width and rank."""
    return [_rank(study) for study in rank_studies(results)]


def _rank(study: RankStudy) -> Table:
    members = [g for line in study.lines.values() for g in line.values()]
    counts = [len(g.results) for g in members]
    beside = paper_dataset(study.setting.dataset) == "CIFAR-100" and study.beta == 0.5
    say_n = len(set(counts)) > 1
    blocks = [
        [_rank_row(m, rank, g, beside, say_n) for rank, g in line.items()]
        for m, line in study.lines.items()
    ]
    columns = [
        *numbers("M", "rank", "A_avg", "A_T", "largest upload, MiB", "formula, MiB", "Gram error"),
        *([Column(t, "printed", muted=True) for t in ("A_avg", "MiB")] if beside else []),
    ]
    note = seeds_note(counts)
    return Table(study.title, columns, blocks, note)


def _rank_row(m: int, rank: int, g: Group, beside: bool, say_n: bool) -> list[Cell]:
    formula = [f for r in g.results if (f := formula_upload(r)) is not None]
    error = g.stat(_gram_error)
    told = [number(d.get((m, rank)), 1, muted=True) for d in (RANK_A_AVG, RANK_MIB)]
    return [
        Cell(str(m)),
        Cell(str(rank)),
        spread(g.stat(lambda r: r.A_avg), say_n=say_n),
        spread(g.stat(lambda r: r.A_T), say_n=say_n),
        Cell(mib(largest_upload(g))),
        Cell(mib(max(formula)) if formula else NOTHING),
        Cell(NOTHING if error is None else f"{error.mean:.3g}"),
        *(told if beside else []),
    ]


def _gram_error(result: Result) -> float | None:
    errors = [t.gram_error for t in result.tasks if t.gram_error is not None]
    return max(errors) if errors else None


def component_tables(results: Sequence[Result]) -> list[Table]:
    """A_avg as components are added, for each ridge parameter."""
    return [_components(study) for study in component_studies(results)]


def _components(study: ComponentStudy) -> Table:
    lams = study.lams
    counts = [len(g.results) for row in study.bars.values() for g in row.values()]
    say_n = len(set(counts)) > 1
    blocks = [
        [
            [
                Cell(text),
                *(
                    spread(
                        row[lam].stat(lambda r: r.A_avg) if lam in row else stat([]), say_n=say_n
                    )
                    for lam in lams
                ),
                number(COMPONENTS.get(component), muted=True),
            ]
        ]
        for (component, text), row in study.bars.items()
    ]
    columns = [
        *words("component"),
        *numbers(*lams, group="A_avg"),
        Column("printed (ViT-B/16, CIFAR-100, M = 1250)", muted=True),
    ]
    note = seeds_note(counts)
    return Table(study.title, columns, blocks, note)
