"""The sections of the report in their order: text, tables and figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fedran.bench.report.figures.ablation import component_charts, label_charts, rank_charts
from fedran.bench.report.figures.accuracy_bytes import accuracy_bytes_charts
from fedran.bench.report.figures.chart import Chart, slug
from fedran.bench.report.figures.curves import task_charts
from fedran.bench.report.figures.drift import drift_charts
from fedran.bench.report.privacy import privacy_charts, privacy_tables
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
from fedran.bench.results.grouping import Setting, comparisons, groups
from fedran.bench.results.metrics import is_fine_tuned, is_head, is_prompted, on_images
from fedran.bench.results.result import Result

Results = Sequence[Result]


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, figures and tables."""

    slug: str
    title: str
    intro: Sequence[str]
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    folded: bool = False
    """Folded on the HTML page."""

    @property
    def text(self) -> str:
        """All text of headings, paragraphs, captions and tables, without the cells."""
        headings = [c.label for t in self.shown for c in t.columns]
        tables = [f"{t.title} {t.note}" for t in self.shown]
        captions = [f"{c.caption} {c.note}" for c in self.charts]
        return "\n".join([self.title, *self.intro, *tables, *captions, *headings])

    @property
    def shown(self) -> list[Table]:
        """The tables on the page."""
        return [t for t in self.tables if not t.exported]


def comparison_sections(results: Results) -> list[Section]:
    """Each setting with figures and its accuracies, then the details of all settings, folded."""
    settings = dict.fromkeys(Setting.of(r) for r in comparisons(results))
    one = len({setting.dataset for setting in settings}) == 1
    parts = [
        _setting(
            setting.frame if one else setting.title,
            [r for r in results if Setting.of(r) == setting],
        )
        for setting in settings
    ]
    details = (_vit, _communication, _runtime, _forgetting, _drift, _training)
    return _with_content([*parts, *(make(results) for make in details), _provenance(results)])


def study_sections(study: str, results: Results) -> list[Section]:
    """The sections of a study with a page of its own; a study without one is a comparison."""
    make = {
        "labels": _labels,
        "rank": _rank,
        "components": _components,
        "privacy": _privacy,
        "runtime": _runtime,
        "speedup": _runtime,
    }.get(study)
    if make is None:
        return comparison_sections(results)
    # The page has the title of the section.
    return _with_content([replace(make(results), title="", folded=False), _provenance(results)])


def _with_content(parts: Iterable[Section]) -> list[Section]:
    return [s for s in parts if s.tables or s.charts]


def first_terms(parts: Iterable[Section]) -> Iterator[tuple[Section, dict[str, str]]]:
    """Every section with the terms that no section before it has explained."""
    known: set[str] = set()
    for section in parts:
        new = {term: meaning for term, meaning in terms(section.text).items() if term not in known}
        known |= set(new)
        yield section, new


def terms(text: str) -> dict[str, str]:
    """The terms that occur in a text, with their meaning."""
    return {
        term: meaning
        for term, meaning in TERMS.items()
        if re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text)
    }


def method_notes(shown: Results) -> list[str]:
    """What the remarks behind the names of methods mean, one sentence each."""
    intro = []
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
    return intro


def _setting(title: str, results: Results) -> Section:
    """One setting: accuracy against bytes, accuracy after each task, all accuracies."""
    charts = accuracy_bytes_charts(results) + task_charts(results)
    shown = comparisons(results)
    notes = method_notes(shown)
    if any(not g.competes for g in groups(shown)):
        notes.insert(0, "Methods that need all rows in one place come last and are not ranked.")
    intro, tables = [" ".join(notes)] if notes else [], accuracy_tables(results)
    return Section(slug("setting", title), title, intro, tables, charts)


def _vit(results: Results) -> Section:
    intro = (
        "FedRAN against methods that train prompts or LoRA matrices of the same ViT. The paper's "
        "backbone is a ViT-B/16; its figures are not ranked with ours. Methods run as their paper "
        "means them. Rows marked (as published) do what the published code does, with its errors. "
        "Cells without a run say so."
    )
    tables = cost_tables(results) + printed_vit_tables(results)
    return Section("vit", "Methods that train on the same ViT", [intro], tables, folded=True)


def _communication(results: Results) -> Section:
    intro = [
        "Bytes that one client sends and receives in one task, in MiB (2^20 bytes). The largest "
        "upload is the length of the longest encoded message over all clients, tasks and seeds. "
        "Totals add up all clients and tasks, and are means over seeds. The formula is the "
        "largest upload as the paper of the method counts it."
    ]
    tables = communication_tables(results)
    return Section("communication", "Communication", intro, tables, folded=True)


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
    return Section("runtime", "Runtime", intro, tables, folded=True)


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
    tables = forgetting_tables(results) + forgetting_details(results)
    return Section("forgetting", "Forgetting", [intro], tables, folded=True)


def _drift(results: Results) -> Section:
    intro = (
        "Why FedRAN freezes its feature extractor. The reference rows are the rows of client 1 in "
        "task 2. Drift is the mean distance of their features from where they were after task 2. "
        "A frozen extractor has no drift. Heads on frozen features are listed too: they lose "
        "accuracy without any drift."
    )
    tables, charts = drift_tables(results), drift_charts(results)
    return Section("drift", "Drift", [intro], tables, charts, folded=True)


def _training(results: Results) -> Section:
    intro = (
        "Settings of the trained methods. In every round each client trains for the given epochs "
        "on its rows of the task, and the server averages the models. Seconds are those of one "
        "task, mean over clients, tasks, seeds and β. They are only indicative where runs shared "
        "their machine."
    )
    tables = training_tables(results)
    return Section("training", "Training settings", [intro], tables, folded=True)


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


def _privacy(results: Results) -> Section:
    intro = (
        "Clients add noise to their sums, so that nobody who sees the sum or the classifier can "
        "tell much about a single row. ε is the privacy budget: a smaller ε means more noise and a "
        "stronger guarantee, at δ = 1e-5. The noise is calibrated for the number of honest "
        "clients, who keep their part of it to themselves: with fewer of them each adds more."
    )
    tables, charts = privacy_tables(results), privacy_charts(results)
    return Section("privacy", "Differential privacy", [intro], tables, charts)


def _provenance(results: Results) -> Section:
    intro = ["The commands that produced the results above."]
    tables = [command_table(results), run_table(results)]
    return Section("provenance", "How to repeat", intro, tables, folded=True)


TERMS = {
    "A_avg": "the accuracy after each task, in percent, mean over all tasks. The accuracy after a "
    "task counts the test rows of all classes seen so far.",
    "A_T": "the accuracy after the last task, in percent.",
    "β": "concentration of the Dirichlet distribution that divides the rows of each class among "
    "the clients. A smaller β gives a more skewed split.",
    "AUC": "how well the strongest attack tells rows of the message from other rows of the same "
    "classes: 0.5 is guessing, 1 is certain.",
    "TPR at 0.1 %": "the share of the rows of the message that the strongest attack finds while it "
    "wrongly names one in 1,000 other rows.",
    "printed": "copied from the paper, which used another backbone. Not measured here.",
    "computed": "derived from measured figures. The note says how.",
}
