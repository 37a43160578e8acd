"""The pages of the report: an overview, one page per dataset, and one per further study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from fedran.bench.report.figures.accuracy_bytes import accuracy_bytes_charts
from fedran.bench.report.figures.chart import slug
from fedran.bench.report.leakage import (
    LEAKAGE_ABOUT,
    LEAKAGE_TITLE,
    Measured,
    leakage_sections,
    leakage_verdict,
)
from fedran.bench.report.privacy import privacy_verdict
from fedran.bench.report.sections import (
    Section,
    comparison_sections,
    method_notes,
    study_sections,
)
from fedran.bench.report.tables.comparison import comparison_table
from fedran.bench.report.verdict import main_case, overall_verdict, study_verdict, verdict
from fedran.bench.results.grouping import Group, Setting, counted
from fedran.bench.results.result import DEFAULT_STUDY, STUDIES, Result
from fedran.data.catalogue import dataset_title

COMPARISONS = frozenset({"accuracy", "communication", "training"})
"""Studies that are shown on the pages of the datasets."""
STUDY_TITLES = {
    "labels": "Few labels",
    "rank": "Rank and width",
    "components": "Components of the feature map",
    "privacy": "Differential privacy",
    "runtime": "Runtime and speed-up",
}
"""Titles that differ from the name of the study."""
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
        own = [r for r in results if r.dataset == dataset]
        shown = [r for r in own if r.study in COMPARISONS]
        first = main_case(shown)
        if first is not None:
            file, about = DATASETS.get(dataset, (slug(dataset), ""))
            title = dataset_title(dataset)
            sections = comparison_sections(shown)
            lines = verdict(first[1])
            pages.append(Page(file, title, about, lines, sections, _where(*first)))
    studies = (SAME_PAGE.get(s, s) for s in dict.fromkeys(r.study for r in results))
    for study in dict.fromkeys(s for s in studies if s not in COMPARISONS):
        own = [r for r in results if SAME_PAGE.get(r.study, r.study) == study]
        title = STUDY_TITLES.get(study, study.replace("_", " ").capitalize())
        where = ""
        if study in STUDY_TITLES:
            sections = study_sections(study, own)
        else:  # it has no sections of its own
            own = as_comparison(own)
            sections = _own_figures(study, study_sections(study, own))
            first = main_case(own)
            where = _where(*first) if first else ""
        pages.append(Page(study, title, STUDIES[study], _study_lines(study, own), sections, where))
    if leakage:
        pages.append(leakage_page(leakage))
    pages = _distinct([page for page in pages if page.sections])
    return [overview_page(results, name), *pages]


def leakage_page(measured: Sequence[Measured]) -> Page:
    """What attacks found in messages."""
    lines, sections = leakage_verdict(measured), leakage_sections(measured)
    return Page("leakage", LEAKAGE_TITLE, LEAKAGE_ABOUT, lines, sections)


def _own_figures(study: str, sections: Sequence[Section]) -> list[Section]:
    """Sections whose figures have other names than those of the same setting on another page."""
    return [
        replace(s, charts=[replace(c, slug=f"{study}-{c.slug}") for c in s.charts])
        for s in sections
    ]


def _study_lines(study: str, results: Sequence[Result]) -> list[str]:
    """The verdict of a study; one without sections of its own is a comparison of methods."""
    if study == "privacy":
        return privacy_verdict(results)
    first = None if study in STUDY_TITLES else main_case(results)
    return study_verdict(results) if first is None else verdict(first[1])


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
    drawn = [r for r in shown if Setting.of(r) == first[0][0]]
    figure = [c for c in accuracy_bytes_charts(drawn) if not c.collapsed]
    notes = method_notes(drawn)
    intro = [" ".join(notes)] if notes else []
    tables = [comparison_table(shown)]
    section = Section("bytes", "Accuracy against bytes", intro, tables, figure)
    title = f"{name}: accuracy and bytes of {counted(len({r.key for r in results}), 'method')}"
    lines = overall_verdict(shown)
    what = f"{WHAT} {OURS}" if any(r.key == "fedran" for r in shown) else WHAT
    return Page("index", title, what, lines, [section], _where(*first))


def _where(case: tuple[Setting, float | None], found: Sequence[Group]) -> str:
    """The setting of a verdict in words, for readers who do not know the terms."""
    setting, beta = case
    title = dataset_title(setting.dataset)
    classes = len(found[0].first.classes)
    uneven = "uneven split" if beta is not None and beta < 1 else "split"
    skew = "" if beta is None else f", {uneven} (β = {beta:g}; a smaller β is more uneven)"
    tasks, clients = setting.frame.split(", ")[:2]
    return f"{title}: {classes} classes in {tasks}, {clients}{skew}"
