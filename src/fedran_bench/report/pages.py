"""From a folder of results to pages: one per dataset, and a first page for several datasets.

The pages have no scripts or external resources. An autoescaping Jinja2 template writes them. Only
the SVG of the figures is inserted as markup.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import fedran
from fedran.core.errors import MissingExtra, printable
from fedran_bench.methods.registry import METHODS
from fedran_bench.report.figures import Chart, charts, inline, render
from fedran_bench.report.paper import TASKS, paper_dataset
from fedran_bench.report.tables import (
    Table,
    command_table,
    comparison_table,
    date_range,
    method_table,
)
from fedran_bench.report.verdict import main_setting, overall_verdict, verdict, where
from fedran_bench.results.grouping import Setting, by_setting, comparisons, counted, groups
from fedran_bench.results.result import ABLATIONS, STUDIES, Result, dataset_title, read_results

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

WHAT = (
    "Several clients learn one classifier without sharing their data. Classes arrive task by task. "
    "In each task every client uploads a message, and a server makes a classifier for all classes "
    "so far. Good methods are accurate and upload few bytes."
)
TERMS = {
    "A_avg": "mean over all tasks of the accuracy on the classes seen so far, after each task.",
    "A_T": "accuracy after the last task.",
    "β": "skew of the split among the clients (Dirichlet). A smaller β is more uneven.",
}


@dataclass(frozen=True)
class Section:
    """One setting, or one study that varies a setting of a method."""

    title: str
    about: str
    verdict: list[str]
    tables: list[Table]
    charts: list[Chart] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)
    """Tables behind a summary line: other betas, commands."""


@dataclass(frozen=True)
class Page:
    """A title, what the page is about, and its sections."""

    slug: str
    title: str
    about: str
    sections: list[Section]


def load_results(folder: Path) -> list[Result]:
    """All results below a folder by setting, method and size of upload; ValueError if none."""
    if not folder.is_dir():
        if folder.is_file():
            raise ValueError(f"{folder}: expected a folder of results; try {folder.parent}")
        raise ValueError(f"{folder}: no such folder")
    results = read_results(sorted(folder.rglob("*.jsonl")))
    if not results:
        raise ValueError(
            f"{folder}: no results (*.jsonl) below it; make some with fedran bench run"
        )
    order = {key: i for i, key in enumerate(METHODS)}
    runs = Counter(r.dataset for r in results) + Counter(Setting.of(r).any_beta for r in results)

    def place(r: Result) -> tuple[int | str | bool, ...]:
        """The paper's datasets first and in its order, then by the number of runs.

        Of equal runs the last one counts, and that must not be the one made to measure seconds.
        """
        setting, known = Setting.of(r).any_beta, [*TASKS, None].index(paper_dataset(r.dataset))
        dataset = known, -runs[r.dataset], r.dataset, -runs[setting], setting.clients
        return *dataset, order.get(r.key, len(order)), r.study != "runtime", -r.max_upload

    return sorted(results, key=place)


def experiment_name(results: Sequence[Result], folder: str) -> str:
    """The name of the only configuration, or of the folder."""
    names = {PurePath(r.config).stem for r in results}
    return names.pop() if len(names) == 1 and "" not in names else folder


def make_pages(results: Sequence[Result], name: str) -> list[Page]:
    """One page per dataset. If there are several datasets, a page that compares all comes first."""
    pages: list[Page] = []
    for i, dataset in enumerate(dict.fromkeys(r.dataset for r in results)):
        own = [r for r in results if r.dataset == dataset]
        file = slug(dataset)
        if not file or file in {"index", *(page.slug for page in pages)}:
            file = f"{file}-{i}"
        sections = _settings(own, file) + _studies(own)
        pages.append(Page(file, dataset_title(dataset), WHAT, sections))
    methods = counted(len({r.key for r in results}), "method")
    title = f"{name}: accuracy and bytes of {methods}"
    if len(pages) == 1:
        return [replace(pages[0], slug="index", title=title)]
    return [Page("index", title, WHAT, [overview(results)]), *pages]


def overview(results: Sequence[Result]) -> Section:
    """The verdict on the first setting and on all comparisons, and the table of all of them."""
    compared = comparisons(results)
    setting, found = main_setting(groups(compared or results))
    tables = [comparison_table(results)] if compared else []
    lines = overall_verdict(compared or results)
    return Section("Overview", where(setting, found), lines, tables, charts(setting, found, "all"))


def _settings(results: Sequence[Result], file: str) -> list[Section]:
    """The comparisons of methods: the main beta with figures, other betas folded."""
    sections = []
    settings = by_setting(groups(comparisons(results)))
    for shared in dict.fromkeys(s.any_beta for s in settings):
        own = [g for s, members in settings.items() if s.any_beta == shared for g in members]
        main, found = main_setting(own)
        others = [(s, m) for s, m in settings.items() if s.any_beta == shared and s != main]
        folded = [method_table(m, f"All methods: {s.frame}") for s, m in others]
        sections.append(
            Section(
                shared.frame,
                where(main, found),
                verdict(found),
                [method_table(found, f"All methods: {main.frame}")],
                charts(main, found, slug(file, main.frame)),
                [*folded, command_table(r for g in own for r in g.results)],
            )
        )
    return sections


def _studies(results: Sequence[Result]) -> list[Section]:
    """The studies that vary one setting of a method: one table each."""
    sections = []
    for study in dict.fromkeys(r.study for r in results if r.study in ABLATIONS):
        own = [r for r in results if r.study == study]
        found = groups(own)
        table = replace(method_table(found, "All runs"), known=frozenset())
        about = f"{STUDIES[study]} {found[0].setting.frame}."
        commands = [command_table(own)]
        sections.append(Section(f"Study: {study}", about, [], [table], folded=commands))
    return sections


@dataclass(frozen=True)
class Report:
    """The HTML of each page by its file name, and the SVG of each figure by its name."""

    pages: dict[str, str]
    figures: dict[str, str]

    def write(self, folder: Path) -> Path:
        """Write all pages and ``figures/NAME.svg``. Return the path of the first page."""
        subfolder = folder / "figures"
        subfolder.mkdir(parents=True, exist_ok=True)
        for name, svg in self.figures.items():
            (subfolder / f"{name}.svg").write_text(svg, encoding="utf-8", newline="\n")
        for file, text in self.pages.items():
            (folder / file).write_text(text, encoding="utf-8", newline="\n")
        return folder / next(iter(self.pages))


def make_report(results: Sequence[Result], name: str = "results") -> Report:
    """Render the pages, which contain their figures, and the figures as files."""
    pages = make_pages(results, name)
    template = _environment().get_template("page.html")
    figures = {c.slug: render(c) for page in pages for s in page.sections for c in s.charts}
    sizes = {
        "runs": counted(len(results), "run"),
        "methods": counted(len({r.key for r in results}), "method"),
        "dates": date_range(r.date for r in results),
        "version": fedran.__version__,
    }
    texts = {}
    for page in pages:
        own = [c.slug for s in page.sections for c in s.charts]
        texts[f"{page.slug}.html"] = template.render(
            page=page,
            pages=pages,
            name=name,
            terms=TERMS,
            drawings={key: _markup(inline(figures[key], key)) for key in own},
            **sizes,
        )
    return Report(texts, figures)


def slug(*parts: object) -> str:
    """A file name from any words.

    >>> slug("tasks", "CIFAR-100 <b>", 0.1)
    'tasks-cifar-100-b-0.1'
    """
    plain = re.sub(r"[^a-z0-9.]+", "-", "-".join(str(p) for p in parts).lower())
    return re.sub(r"\.{2,}", ".", plain).strip("-.")[:120]


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MissingExtra("the report needs Jinja2", "bench") from None
    environment = Environment(
        loader=PackageLoader("fedran_bench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain"] = _plain
    return environment


def _plain(foreign: str, limit: int = 4000) -> Markup:
    """Escape a string as one printable line; the accuracies A_avg and A_T get subscripts."""
    from markupsafe import escape

    safe = str(escape(printable(foreign, limit)))
    return _markup(re.sub(r"\bA_(avg|T)\b", r"A<sub>\1</sub>", safe))


def _markup(safe: str) -> Markup:
    from markupsafe import Markup

    return Markup(safe)  # noqa: S704, escaped or drawn here
