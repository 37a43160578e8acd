"""The sections of the report in their order: text, tables and figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedran.bench.report.figures.ablation import component_charts, label_charts, rank_charts
from fedran.bench.report.figures.accuracy_bytes import accuracy_bytes_charts
from fedran.bench.report.figures.chart import Chart
from fedran.bench.report.figures.curves import round_charts, task_charts
from fedran.bench.report.figures.drift import drift_charts
from fedran.bench.report.tables.ablation import component_tables, label_tables, rank_tables
from fedran.bench.report.tables.accuracy import accuracy_tables
from fedran.bench.report.tables.communication import communication_tables
from fedran.bench.report.tables.drift import drift_tables
from fedran.bench.report.tables.forgetting import forgetting_details, forgetting_tables
from fedran.bench.report.tables.provenance import command_table, run_table
from fedran.bench.report.tables.runtime import runtime_tables, speedup_tables
from fedran.bench.report.tables.table import Table
from fedran.bench.report.tables.training import training_tables
from fedran.bench.report.tables.vit import cost_tables, printed_vit_tables
from fedran.bench.results.grouping import Setting, comparisons, groups, without_ablations
from fedran.bench.results.metrics import is_fine_tuned, is_head, is_prompted, on_images
from fedran.bench.results.result import Result

Results = Sequence[Result]
Condition = Callable[[Results], object]


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, figures and tables."""

    slug: str
    title: str
    intro: Sequence[str]
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    details: list[Table] = field(default_factory=list)
    """Tables for the HTML page only, folded together."""

    @property
    def text(self) -> str:
        """All text of paragraphs and tables, without the cells."""
        shown = [*self.tables, *self.details]
        headings = [f"{c.group} {c.text}" for t in shown for c in t.columns]
        return "\n".join([*self.intro, *(f"{t.title} {t.note}" for t in shown), *headings])


def sections(results: Results) -> list[Section]:
    """The sections for which there are results."""
    found = [make(results) for make in _SECTIONS]
    return [s for s in found if s.tables or s.charts]


def terms(text: str) -> dict[str, str]:
    """The terms that occur in a text, with their meaning."""
    return {
        term: meaning
        for term, meaning in TERMS.items()
        if re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text)
    }


def missing(results: Results) -> list[str]:
    """The experiments without results, each with the command that produces them."""
    return [
        f"{what}: fedran run {config}" for what, config, found in EXPECTED if not found(results)
    ]


def _accuracy_bytes(results: Results) -> Section:
    intro = (
        "Accuracy after the last task against the largest upload of any client, task and seed. "
        "Methods in the shaded area are beaten by a smaller and more accurate message. The tables "
        "below hold all values."
    )
    charts = accuracy_bytes_charts(results)
    return Section("bytes", "Accuracy against bytes", [intro], charts=charts)


def _accuracy(results: Results) -> Section:
    shown = comparisons(results)
    intro = [
        "Test accuracy in percent. In each column the best method is bold and the second best is "
        "underlined. Equal figures get the same mark."
    ]
    if any(not g.competes for g in groups(shown)):
        intro.append("References and yardsticks come last and are not ranked.")
    if any(map(is_head, shown)):
        intro.append(
            "Methods marked (head) train a linear head on the same frozen features as FedRAN."
        )
    if any(map(on_images, shown)):
        intro.append(
            "Methods marked (from scratch) train a network from random weights on the images of "
            "the same rows."
        )
    if any(map(is_prompted, shown)):
        intro.append(
            "Prompt and LoRA methods train a few tensors of the frozen ViT whose features the "
            "analytic methods use."
        )
    if any(map(is_fine_tuned, shown)):
        intro.append(
            "Methods marked (fine-tuned in task 0) use a ViT whose adapters the clients train in "
            "task 0. Bytes and seconds of that stage count."
        )
    datasets = {r.dataset for r in shown}
    paragraphs = [" ".join(intro), *(note for name, note in DATASETS.items() if name in datasets)]
    return Section(
        "accuracy", "Accuracy", paragraphs, accuracy_tables(results), task_charts(results)
    )


def _vit(results: Results) -> Section:
    intro = (
        "FedRAN against methods that train prompts or LoRA matrices of the same ViT. The paper's "
        "backbone is a ViT-B/16, which is not available here: its figures stand beside those of "
        "another backbone and are not ranked. Cells without a run say so."
    )
    tables = cost_tables(results) + printed_vit_tables(results)
    return Section("vit", "The paper's ViT comparison", [intro], tables)


def _communication(results: Results) -> Section:
    intro = [
        "Bytes that one client sends and receives in one task, in MiB (2^20 bytes). The largest "
        "upload is the length of the longest encoded message over all clients, tasks and seeds. "
        "Totals add up all clients and tasks, and are means over seeds. The formula is the "
        "largest upload as the paper of the method counts it.",
        "The figures of bytes over rounds add up the uploads of the mean client. An analytic "
        "method needs one round per task.",
    ]
    tables = communication_tables(results)
    return Section("communication", "Communication", intro, tables, round_charts(results))


def _runtime(results: Results) -> Section:
    intro = [
        "Seconds per task, mean over tasks and seeds. Client is the mean over clients. Time is "
        "client plus server, as in the paper. It leaves out the forward pass through the "
        "backbone, which is estimated as the number of rows times the measured seconds per row. "
        "A network that is trained on images has its forward pass in its Time. Peak memory is "
        "that of the whole process, including the data.",
        "Times from different machines cannot be compared. Runs that shared their machine with "
        "other runs are left out.",
    ]
    tables = speedup_tables(results) + runtime_tables(results)
    return Section("runtime", "Runtime", intro, tables)


def _forgetting(results: Results) -> Section:
    intro = (
        "Loss of accuracy on earlier tasks. Forgetting is the best accuracy on the classes of a "
        "task before the end minus the accuracy at the end, mean over all tasks but the last; "
        "smaller is better. Backward transfer is the accuracy at the end minus the accuracy right "
        "after the task; larger is better. Every task adds classes to choose from, so both get "
        "worse even for a joint solve. Drift is the distance by which a trained extractor moved "
        "the features, largest over tasks and mean over seeds."
    )
    if any(r.budgets for r in results):
        intro += " Budgets are limits that the configuration sets for bytes, seconds or drift."
    details = forgetting_details(results)
    return Section("forgetting", "Forgetting", [intro], forgetting_tables(results), details=details)


def _drift(results: Results) -> Section:
    intro = (
        "Why FedRAN freezes its feature extractor. The reference rows are the rows of client 1 in "
        "task 2. Drift is the mean distance of their features from where they were after task 2. "
        "A frozen extractor has no drift. Heads on frozen features are listed too: they lose "
        "accuracy without any drift."
    )
    return Section("drift", "Drift", [intro], drift_tables(results), drift_charts(results))


def _training(results: Results) -> Section:
    intro = (
        "Settings of the trained methods. In every round each client trains for the given epochs "
        "on its rows of the task, and the server averages the models. Seconds are those of one "
        "task, mean over clients, tasks, seeds and β. They are only indicative where runs shared "
        "their machine."
    )
    return Section("training", "Training settings", [intro], training_tables(results))


def _labels(results: Results) -> Section:
    intro = (
        "Accuracy when only a share of the rows is labelled. Labelled only: unlabelled rows are "
        "left out. Pseudo-labels: each client labels its own unlabelled rows, by the nearest class "
        "mean (prototype, the rule of the paper) or by a ridge classifier with a minimal margin "
        "(margin). The gain is in percentage points over labelled only at the same share of "
        "labelled rows."
    )
    return Section("labels", "Few labels", [intro], label_tables(results), label_charts(results))


def _rank(results: Results) -> Section:
    intro = (
        "Accuracy and cost for different ranks of the summary and widths M of the random "
        "features. The Gram error is the relative error of the server's Gram matrix in the "
        "Frobenius norm, against the exact Gram matrix of all rows: largest over tasks, mean over "
        "seeds."
    )
    return Section("rank", "Rank and width", [intro], rank_tables(results), rank_charts(results))


def _components(results: Results) -> Section:
    intro = [
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
    tables, charts = component_tables(results), component_charts(results)
    return Section("components", "Components", intro, tables, charts)


def _provenance(results: Results) -> Section:
    intro = ["The commands that produced the results above."]
    details = [run_table(results)]
    return Section("provenance", "How to repeat", intro, [command_table(results)], details=details)


_SECTIONS: tuple[Callable[[Results], Section], ...] = (
    _accuracy_bytes,
    _accuracy,
    _vit,
    _communication,
    _runtime,
    _forgetting,
    _drift,
    _training,
    _labels,
    _rank,
    _components,
    _provenance,
)


def _any(condition: Callable[[Result], object]) -> Condition:
    """Whether one of the results, apart from the ablations, fulfils a condition."""
    return lambda results: any(condition(r) for r in without_ablations(results))


TERMS = {
    "A_avg": "the accuracy after each task, in percent, mean over all tasks. The accuracy after a "
    "task counts the test rows of all classes seen so far.",
    "A_T": "the accuracy after the last task, in percent.",
    "β": "concentration of the Dirichlet distribution that divides the rows of each class among "
    "the clients. A smaller β gives a more skewed split.",
    "References": "methods that are not federated, because they need all rows in one place.",
    "yardsticks": "rows that show what sending the plain data would cost and give.",
    "printed": "copied from the paper, which used another backbone. Not measured here.",
    "computed": "derived from measured figures by the calculation in the note of the table.",
}

DATASETS = {
    "vtab50-efficientnet_lite0": "VTAB-50 here has 1,800 training and 3,000 test images of 50 "
    "classes from five domains. The paper uses another split, so its figures are context only.",
    "har-dsa19": "HAR is the UCI data set Daily and Sports Activities. Its 8 people are the "
    "clients. The last quarter of the segments of each person is the test set.",
}
"""Facts about a dataset that a reader needs to understand its figures."""

EXPECTED: tuple[tuple[str, str, Condition], ...] = (
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
        "Communication and yardsticks",
        "configs/paper/communication.toml",
        _any(lambda r: r.key.startswith("send-")),
    ),
    ("Trained methods", "configs/paper/trained.toml", _any(is_head)),
    ("Networks from scratch", "configs/paper/scratch.toml", _any(on_images)),
    ("Prompt and LoRA methods", "configs/paper/vit_prompts.toml", _any(is_prompted)),
    ("Speed-up", "configs/paper/speedup.toml", _any(lambda r: r.study == "speedup")),
)
