"""What the report says, in order: each section's text, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedran.bench.report.figures.ablation import component_charts, label_charts, rank_charts
from fedran.bench.report.figures.chart import Chart
from fedran.bench.report.figures.front import front_charts
from fedran.bench.report.figures.motivation import motivation_charts
from fedran.bench.report.figures.rounds import round_charts
from fedran.bench.report.figures.tasks import task_charts
from fedran.bench.report.tables import accuracy as tables_accuracy
from fedran.bench.report.tables import bytes as tables_bytes
from fedran.bench.report.tables import drift as tables_drift
from fedran.bench.report.tables import memory as tables_memory
from fedran.bench.report.tables import time as tables_time
from fedran.bench.report.tables import training as tables_training
from fedran.bench.report.tables.ablation import component_tables, label_tables, rank_tables
from fedran.bench.report.tables.accuracy import accuracy_tables
from fedran.bench.report.tables.bytes import communication_tables
from fedran.bench.report.tables.drift import drift_tables
from fedran.bench.report.tables.memory import forgetting_details, forgetting_tables
from fedran.bench.report.tables.provenance import provenance_table
from fedran.bench.report.tables.speedup import speedup_tables
from fedran.bench.report.tables.table import Table
from fedran.bench.report.tables.time import runtime_tables
from fedran.bench.report.tables.training import training_tables
from fedran.bench.results.grouping import Setting, measured
from fedran.bench.results.metrics import is_head, on_images
from fedran.bench.results.result import Result

Results = Sequence[Result]

FOOTNOTES = {
    "A_t": "accuracy in percent over all test rows of the classes seen up to task t.",
    "A_avg": "the mean of A_t over all tasks.",
    "A_T": "A_t after the last task.",
    "β": "concentration of the Dirichlet distribution that deals each class's rows to the "
    "clients; smaller is more skewed.",
    "printed": "copied from the paper, which used another backbone; never measured here.",
    "computed": "follows from measured figures by the arithmetic that stands beside it.",
    "yardstick": "what sending plain data would cost; shown, not ranked.",
}

DATASETS = {
    "vtab50-efficientnet_lite0": "Our VTAB-50 has 1,800 training and 3,000 test images of 50 "
    "classes from five domains: not the paper's split, so its printed figures are context only.",
    "har-dsa19": "HAR is the UCI Daily and Sports Activities data: 8 people are the clients, the "
    "last quarter of each person's segments is the test.",
}
"""What must be known of a dataset to read its figures."""


@dataclass(frozen=True)
class Section:
    """A heading, a sentence or two, tables and figures."""

    slug: str
    title: str
    intro: str
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    details: list[Table] = field(default_factory=list)
    """Tables for the page only, folded away together."""


def sections(results: Results) -> list[Section]:
    """The sections for which the results hold what is needed."""
    found = [make(results) for make in _SECTIONS]
    return [s for s in found if s.tables or s.charts]


def missing(results: Results) -> list[str]:
    """What is not in these results, and the configuration that makes it."""
    return [
        f"{what}: fedran run {config}" for what, config, there in EXPECTED if not there(results)
    ]


def _any(there: Callable[[Result], bool]) -> Callable[[Results], bool]:
    """Whether one of the results, apart from the ablations, fulfils a condition."""
    return lambda results: any(there(r) for r in measured(results))


def _accuracy(results: Results) -> Section:
    present = {r.dataset for r in results}
    notes = [note for name, note in DATASETS.items() if name in present]
    intro = " ".join([tables_accuracy.READ, *notes])
    return Section("accuracy", "Accuracy", intro, accuracy_tables(results))


def _training(results: Results) -> Section:
    tables = training_tables(results)
    return Section("training", "Training settings", tables_training.READ, tables)


def _communication(results: Results) -> Section:
    tables = communication_tables(results)
    return Section("communication", "Communication", tables_bytes.READ, tables)


def _runtime(results: Results) -> Section:
    tables = speedup_tables(results) + runtime_tables(results)
    return Section("runtime", "Runtime", tables_time.READ, tables)


def _tasks(results: Results) -> Section:
    intro = "A_t after each task, mean over seeds. Dashed: references and yardsticks."
    return Section("tasks", "Accuracy task by task", intro, [], task_charts(results))


def _motivation(results: Results) -> Section:
    tables, charts = drift_tables(results), motivation_charts(results)
    return Section("motivation", "Motivation", tables_drift.READ, tables, charts)


def _labels(results: Results) -> Section:
    intro = (
        "Accuracy when only a share of the rows is labelled. Labelled only leaves the others out; "
        "proxy labels are given by each client to its own rows. Gained: points over labelled only "
        "at the same rate."
    )
    return Section("labels", "Few labels", intro, label_tables(results), label_charts(results))


def _rank(results: Results) -> Section:
    intro = (
        "What rank and width M buy, and what they cost. Gram error: relative, in the Frobenius "
        "norm, against the exact Gram of all rows; largest over tasks, mean over seeds."
    )
    return Section("rank", "Rank and width", intro, rank_tables(results), rank_charts(results))


def _components(results: Results) -> Section:
    intro = (
        "Components added one after the other, as in the paper's ablation, at several ridge "
        "parameters λ; the paper states λ = 0.001. In exact arithmetic a linear projection cannot "
        "help there. In float32, a projection wider than the features has directions that hold "
        "nothing but rounding, and dividing them by so small a λ destroys the classifier; the "
        "paper's own head drops them. Low rank is our upload: truncated, few bits, the rest kept."
    )
    tables, charts = component_tables(results), component_charts(results)
    return Section("components", "Components", intro, tables, charts)


def _rounds(results: Results) -> Section:
    intro = (
        "Upload of the mean client, added up over rounds. An analytic method takes one round a "
        "task. Measured, but for the line that is labelled as printed."
    )
    return Section("rounds", "Communication over rounds", intro, [], round_charts(results))


def _front(results: Results) -> Section:
    intro = (
        "Accuracy against the largest upload. The line joins the methods that no other beats in "
        "both. Hollow: references and yardsticks, which are not on the line."
    )
    return Section("front", "Accuracy against bytes", intro, [], front_charts(results))


def _forgetting(results: Results) -> Section:
    return Section(
        "forgetting",
        "Forgetting",
        tables_memory.READ,
        forgetting_tables(results),
        details=forgetting_details(results),
    )


def _provenance(results: Results) -> Section:
    intro = "How to make each row again."
    return Section("provenance", "Provenance", intro, [provenance_table(results)])


_SECTIONS: tuple[Callable[[Results], Section], ...] = (
    _accuracy,
    _training,
    _communication,
    _runtime,
    _tasks,
    _motivation,
    _labels,
    _rank,
    _components,
    _rounds,
    _front,
    _forgetting,
    _provenance,
)
EXPECTED: tuple[tuple[str, str, Callable[[Results], object]], ...] = (
    (
        "Accuracy on CIFAR-100",
        "configs/paper/accuracy.toml",
        _any(lambda r: r.dataset.startswith("cifar100")),
    ),
    ("Few labels", "configs/paper/labels.toml", label_tables),
    ("Rank and width", "configs/paper/rank.toml", rank_tables),
    ("Components", "configs/paper/components.toml", component_tables),
    ("100 clients", "configs/clients100.toml", _any(lambda r: Setting.of(r).clients == 100)),
    ("Activity recognition", "configs/har.toml", _any(lambda r: r.dataset.startswith("har"))),
    ("VTAB", "configs/paper/vtab.toml", _any(lambda r: r.dataset.startswith("vtab"))),
    (
        "Communication beside yardsticks",
        "configs/paper/communication.toml",
        _any(lambda r: r.key.startswith("send-")),
    ),
    ("Trained methods", "configs/paper/trained.toml", _any(is_head)),
    ("Networks from scratch", "configs/paper/scratch.toml", _any(on_images)),
    ("Speed-up", "configs/paper/speedup.toml", _any(lambda r: r.study == "speedup")),
)
