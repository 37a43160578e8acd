"""From a folder of results to HTML pages and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedran.bench.report.figures.chart import NARROW, render
from fedran.bench.report.leakage import Measured
from fedran.bench.report.page import html_page
from fedran.bench.report.pages import make_pages
from fedran.bench.report.paper import TASKS, paper_dataset
from fedran.bench.results.grouping import Setting
from fedran.bench.results.result import Result, read_results
from fedran.methods.registry import METHODS


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
