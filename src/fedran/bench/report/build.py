"""From a folder of results to HTML pages and figures.

The pages have no scripts or external resources. They are written by autoescaping Jinja2 templates
in the folder ``templates``. Only the SVG of the figures is inserted as markup.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import fedran
from fedran.bench.report.figures.chart import NARROW, inline, render
from fedran.bench.report.leakage import Measured
from fedran.bench.report.pages import Page, make_pages
from fedran.bench.report.paper import TASKS, paper_dataset
from fedran.bench.report.section import first_terms
from fedran.bench.report.tables.table import NOTHING, Cell, Column, date_range
from fedran.bench.results.grouping import Setting, counted
from fedran.bench.results.result import Result, read_results
from fedran.core.errors import MissingExtra, printable
from fedran.methods.registry import METHODS

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

SHORT, TINY = 16, 9
"""Texts of at most this many characters are kept on one line; in tables with many columns TINY."""
MANY = 5
"""Tables with more columns are stacked in windows of medium width."""


def load_results(folder: Path) -> list[Result]:
    """All results below a folder by setting, method and size of upload; ValueError if none."""
    if not folder.is_dir():
        if folder.is_file():
            raise ValueError(f"{folder}: expected a folder of results; try {folder.parent}")
        raise ValueError(f"{folder}: no such folder")
    results = read_results(sorted(folder.rglob("*.jsonl")))
    if not results:
        raise ValueError(f"{folder}: no results (*.jsonl) below it; make some with fedran run")
    for r in results:
        _require_complete(r)
    order = {key: i for i, key in enumerate(METHODS)}
    datasets, settings = Counter(r.dataset for r in results), Counter(map(Setting.of, results))

    def place(r: Result) -> tuple[int, int, str, int, int]:
        """The paper's datasets first and in its order, then by the number of runs."""
        known = [*TASKS, None].index(paper_dataset(r.dataset))
        setting = Setting.of(r)
        return known, -datasets[r.dataset], r.dataset, -settings[setting], setting.clients

    # Of equal runs the last one counts, and that must not be the one made to measure seconds.
    return sorted(
        results,
        key=lambda r: (place(r), order.get(r.key, len(order)), r.study != "runtime", -r.max_upload),
    )


def _require_complete(r: Result) -> None:
    """Refuse a line of valid JSON that lacks parts of a run on which the tables rely."""
    tasks = len(r.acc)
    complete = (
        tasks > 0
        and len(r.tasks) == len(r.test_rows) == len(r.class_right) == tasks
        and [len(row) for row in r.acc] == list(range(1, tasks + 1))
        and all(t.bytes_up and t.bytes_down and t.seconds.client for t in r.tasks)
        and "fedran" in r.versions
    )
    if not complete:
        raise ValueError(f"the result {r.label!r} of {r.config!r} is not a complete run")


@dataclass(frozen=True)
class Report:
    """The HTML of each page by its file name, and the SVG and PNG of each figure by its name."""

    pages: dict[str, str]
    figures: dict[str, tuple[str, bytes]]

    def write(self, folder: Path) -> Path:
        """Write all pages and ``figures/NAME.svg, NAME.png``. Return the path of the first page."""
        subfolder = folder / "figures"
        subfolder.mkdir(parents=True, exist_ok=True)
        for name, (svg, png) in self.figures.items():
            (subfolder / f"{name}.svg").write_text(svg, encoding="utf-8", newline="\n")
            (subfolder / f"{name}.png").write_bytes(png)
        for file, text in self.pages.items():
            (folder / file).write_text(text, encoding="utf-8", newline="\n")
        return folder / next(iter(self.pages))


def make_report(
    results: Sequence[Result], name: str = "results", leakage: Sequence[Measured] = ()
) -> Report:
    """Render the pages, which contain their figures, and the figures as files."""
    pages = make_pages(results, name, leakage)
    figures: dict[str, tuple[str, bytes]] = {}
    drawings: dict[str, str] = {}
    for chart in (c for page in pages for s in page.sections for c in s.charts):
        if chart.slug in figures:
            continue  # the first figure is on two pages
        figures[chart.slug] = render(chart)
        drawings[chart.slug] = figures[chart.slug][0]
        if chart.narrow_height:
            size = (NARROW, chart.narrow_height)
            small = replace(chart, slug=f"{chart.slug}-narrow", size=size)
            drawings[small.slug] = render(small, png=False)[0]
    return Report(
        {f"{p.slug}.html": html_page(p, pages, results, name, drawings) for p in pages}, figures
    )


def html_page(
    page: Page,
    pages: Sequence[Page],
    results: Sequence[Result],
    name: str,
    drawings: Mapping[str, str],
) -> str:
    """Render one page; ``drawings`` maps the slug of each chart to its SVG."""
    environment = _environment()
    from markupsafe import Markup

    shown = [c.slug for s in page.sections for c in s.charts]
    shown += [f"{slug}-narrow" for slug in shown if f"{slug}-narrow" in drawings]
    return environment.get_template("page.html").render(
        page=page,
        pages=pages,
        name=name,
        css=Markup(environment.get_template("report.css").render()),  # noqa: S704, our own file
        runs=counted(len(results), "run"),
        methods=counted(len({r.key for r in results}), "method"),
        datasets=counted(len({r.dataset for r in results}), "dataset"),
        dates=date_range(r.date for r in results),
        sections=first_terms(page.sections),
        drawings={slug: Markup(inline(drawings[slug], slug)) for slug in shown},  # noqa: S704
        version=fedran.__version__,
    )


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MissingExtra("the report needs Jinja2", "report") from None
    environment = Environment(
        loader=PackageLoader("fedran.bench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(plain=_plain, printable=printable, adjacent_groups=_adjacent_groups)
    environment.globals.update(css_class=_css_class, MANY=MANY)
    return environment


def _plain(foreign: str, limit: int = 4000) -> Markup:
    """Escape a string as one printable line; the accuracies A_avg, A_T and A_t get subscripts."""
    from markupsafe import Markup, escape

    safe = str(escape(printable(foreign, limit)))
    return Markup(re.sub(r"\bA_(avg|T|t)\b", r"A<sub>\1</sub>", safe))  # noqa: S704, escaped


def _adjacent_groups(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    return [(group, list(members)) for group, members in groupby(columns, key=lambda c: c.group)]


def _css_class(column: Column, cell: Cell | None = None) -> str:
    names = {
        "num": column.numeric,
        "printed": column.muted or (cell is not None and cell.muted),
        "none": cell is not None and cell.text in ("", NOTHING),
        "short": not column.numeric and cell is not None and len(cell.text) <= SHORT,
        "tiny": not column.numeric and cell is not None and len(cell.text) <= TINY,
    }
    return " ".join(name for name, wanted in names.items() if wanted)
