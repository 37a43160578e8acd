"""The pages of the report and their sections: an overview, datasets, and further studies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from fedran.bench.report.drift import drift_section
from fedran.bench.report.figures.accuracy_bytes import accuracy_bytes_charts
from fedran.bench.report.figures.chart import slug
from fedran.bench.report.figures.curves import task_charts
from fedran.bench.report.leakage import (
    LEAKAGE_ABOUT,
    LEAKAGE_TITLE,
    Measured,
    leakage_sections,
    leakage_verdict,
)
from fedran.bench.report.section import Section
from fedran.bench.report.studies.components import components_section, components_verdict
from fedran.bench.report.studies.labels import labels_section, labels_verdict
from fedran.bench.report.studies.privacy import privacy_section, privacy_verdict
from fedran.bench.report.studies.rank import rank_section, rank_verdict
from fedran.bench.report.tables.accuracy import accuracy_tables, comparison_table
from fedran.bench.report.tables.communication import communication_section
from fedran.bench.report.tables.forgetting import forgetting_section
from fedran.bench.report.tables.provenance import provenance_section
from fedran.bench.report.tables.runtime import runtime_section, speed_verdict
from fedran.bench.report.tables.training import training_section
from fedran.bench.report.tables.vit import cost_tables, printed_vit_tables
from fedran.bench.report.verdict import LINES, main_case, overall_verdict, verdict
from fedran.bench.results.grouping import Case, Group, Setting, comparisons, counted, groups
from fedran.bench.results.metrics import is_fine_tuned, is_head, is_prompted, on_images
from fedran.bench.results.result import DEFAULT_STUDY, STUDIES, Result
from fedran.data.catalogue import dataset_title

COMPARISONS = frozenset({"accuracy", "communication", "training"})
"""Studies that are shown on the pages of the datasets."""
STUDY_PAGES = {
    "labels": ("Few labels", labels_section, labels_verdict),
    "rank": ("Rank and width", rank_section, rank_verdict),
    "components": ("Components of the feature map", components_section, components_verdict),
    "privacy": ("Differential privacy", privacy_section, privacy_verdict),
    "runtime": ("Runtime and speed-up", runtime_section, speed_verdict),
}
"""Studies whose page is no comparison of methods: its title, its section and its verdict."""
SAME_PAGE = {"speedup": "runtime"}
"""Studies that are shown on the page of another one."""
DATASETS = {
    "cifar100-efficientnet_lite0": (
        "cifar100",
        "Small photographs of 100 classes, as features of a frozen EfficientNet-Lite0.",
    ),
    "cifar100-vit_ti16": (
        "cifar100-vit",
        "Small photographs of 100 classes, as features of a ViT-Ti/16 (a Vision Transformer).",
    ),
    "vtab50-efficientnet_lite0": (
        "vtab50",
        "1,800 training and 3,000 test images of 50 classes from five domains, as features of a "
        "frozen EfficientNet-Lite0. The paper uses another split.",
    ),
    "vtab50-vit_ti16": (
        "vtab50-vit",
        "1,800 training and 3,000 test images of 50 classes from five domains, as features of a "
        "ViT-Ti/16 (a Vision Transformer). The paper uses another split.",
    ),
    "har-dsa19": (
        "har",
        "Motion sensors of 8 people (UCI, Daily and Sports Activities). Each person is a client. "
        "The last quarter of the segments of each person is the test set.",
    ),
    "digits": ("digits", "The small set of handwritten digits of scikit-learn."),
}
"""File name and description of datasets."""
WHAT = (
    "Several clients learn one classifier without sharing their data. Classes arrive task by task. "
    "In each task every client uploads a message, and a server makes a classifier for all classes "
    "so far. Good methods are accurate and upload few bytes."
)
OURS = "FedRAN and FedRAN-mixture, the two messages of this package, train nothing."


@dataclass(frozen=True)
class Page:
    """A title, what the page is about, the verdict, and sections."""

    slug: str
    title: str
    about: str
    verdict: list[str]
    sections: list[Section]
    where: str = ""
    """The setting that the verdict is about."""


def experiment_name(results: Sequence[Result], folder: str) -> str:
    """The name of the only configuration, or of the folder."""
    names = {PurePath(r.config).stem for r in results}
    return names.pop() if len(names) == 1 and "" not in names else folder


def as_comparison(results: Sequence[Result]) -> list[Result]:
    """Results of any study as if they had been made to compare methods."""
    return [replace(r, study=DEFAULT_STUDY) for r in results]


def make_pages(
    results: Sequence[Result], name: str, leakage: Sequence[Measured] = ()
) -> list[Page]:
    """The overview first, then datasets and studies in the order of the results, then leakage."""
    pages = []
    for dataset in dict.fromkeys(r.dataset for r in results):
        shown = [r for r in results if r.dataset == dataset and r.study in COMPARISONS]
        if shown:
            file, about = DATASETS.get(dataset, (slug(dataset), ""))
            pages.append(_comparison_page(file, dataset_title(dataset), about, shown))
    studies = (SAME_PAGE.get(s, s) for s in dict.fromkeys(r.study for r in results))
    for study in dict.fromkeys(s for s in studies if s not in COMPARISONS):
        own = [r for r in results if SAME_PAGE.get(r.study, r.study) == study]
        about = STUDIES[study]
        if study in STUDY_PAGES:
            title, make_section, make_verdict = STUDY_PAGES[study]
            # The page has the title of the section.
            section = replace(make_section(own), title="", folded=False)
            sections = _with_content([section, provenance_section(own)])
            pages.append(Page(study, title, about, list(make_verdict(own))[:LINES], sections))
        else:
            title = study.replace("_", " ").capitalize()
            page = _comparison_page(study, title, about, as_comparison(own))
            # The figures of the same setting on another page have other names.
            sections = [
                replace(s, charts=[replace(c, slug=f"{study}-{c.slug}") for c in s.charts])
                for s in page.sections
            ]
            pages.append(replace(page, sections=sections))
    if leakage:
        pages.append(leakage_page(leakage))
    pages = _distinct([page for page in pages if page.sections])
    return [overview_page(results, name), *pages]


def _comparison_page(file: str, title: str, about: str, results: Sequence[Result]) -> Page:
    first = main_case(results)
    assert first is not None, "every setting with results has a main case"
    sections = comparison_sections(results)
    return Page(file, title, about, verdict(first[1]), sections, _where(*first))


def comparison_sections(results: Sequence[Result]) -> list[Section]:
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
    details = (
        *(_vit, communication_section, runtime_section, forgetting_section),
        *(drift_section, training_section, provenance_section),
    )
    return _with_content([*parts, *(make(results) for make in details)])


def _with_content(parts: Sequence[Section]) -> list[Section]:
    return [s for s in parts if s.tables or s.charts]


def method_notes(shown: Sequence[Result]) -> list[str]:
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


def _setting(title: str, results: Sequence[Result]) -> Section:
    """One setting: accuracy against bytes, accuracy after each task, all accuracies."""
    charts = accuracy_bytes_charts(results) + task_charts(results)
    shown = comparisons(results)
    notes = method_notes(shown)
    if any(not g.competes for g in groups(shown)):
        notes.insert(0, "Methods that need all rows in one place come last and are not ranked.")
    intro, tables = [" ".join(notes)] if notes else [], accuracy_tables(results)
    return Section(slug("setting", title), title, intro, tables, charts)


def _vit(results: Sequence[Result]) -> Section:
    intro = (
        "FedRAN against methods that train prompts or LoRA matrices of a frozen ViT, on the same "
        "streams. FedRAN uses the features of the dataset, here those of the same ViT. The paper's "
        "backbone is a ViT-B/16; its figures are not ranked with ours. Methods run as their paper "
        "means them. Rows marked (as published) do what the published code does, with its errors. "
        "Cells without a run say so."
    )
    tables = cost_tables(results) + printed_vit_tables(results)
    return Section("vit", "Prompt and LoRA methods on the same ViT", [intro], tables, folded=True)


def leakage_page(measured: Sequence[Measured]) -> Page:
    """What attacks found in messages."""
    lines, sections = leakage_verdict(measured), leakage_sections(measured)
    return Page("leakage", LEAKAGE_TITLE, LEAKAGE_ABOUT, lines, sections)


def _distinct(pages: Sequence[Page]) -> list[Page]:
    """Pages with different file names, none of which is that of the overview."""
    taken = {"index"}
    kept = []
    for page in pages:
        file, n = page.slug, 2
        while file in taken:
            file, n = f"{page.slug}-{n}", n + 1
        taken.add(file)
        kept.append(replace(page, slug=file))
    return kept


def overview_page(results: Sequence[Result], name: str) -> Page:
    """The first page: the verdict on the first setting and on all comparisons."""
    shown = [r for r in results if r.study in COMPARISONS] or as_comparison(results)
    first = main_case(shown)
    assert first is not None, "there are results, and all of them compare methods here"
    drawn = [r for r in shown if Setting.of(r) == first[0].setting]
    figure = [c for c in accuracy_bytes_charts(drawn) if not c.collapsed]
    notes = method_notes(drawn)
    intro = [" ".join(notes)] if notes else []
    tables = [comparison_table(shown)]
    section = Section("bytes", "Accuracy against bytes", intro, tables, figure)
    title = f"{name}: accuracy and bytes of {counted(len({r.key for r in results}), 'method')}"
    lines = overall_verdict(shown)
    what = f"{WHAT} {OURS}" if any(r.key == "fedran" for r in shown) else WHAT
    return Page("index", title, what, lines, [section], _where(*first))


def _where(case: Case, found: Sequence[Group]) -> str:
    """The setting of a verdict in words, for readers who do not know the terms."""
    setting, beta = case
    title = dataset_title(setting.dataset)
    classes = len(found[0].first.classes)
    uneven = "uneven split" if beta is not None and beta < 1 else "split"
    skew = "" if beta is None else f", {uneven} (β = {beta:g}; a smaller β is more uneven)"
    tasks, clients = counted(setting.tasks, "task"), counted(setting.clients, "client")
    return f"{title}: {classes} classes in {tasks}, {clients}{skew}"
