"""From a folder of results to an HTML page and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedran.bench.report.figures.chart import render
from fedran.bench.report.page import html_page
from fedran.bench.report.paper import TASKS, paper_dataset
from fedran.bench.report.sections import sections
from fedran.bench.results.grouping import Setting
from fedran.bench.results.result import Result, read_results
from fedran.methods.registry import METHODS

PAGE = "index.html"


@dataclass(frozen=True)
class Report:
    """The HTML page, and the SVG and PNG of each figure by its name."""

    page: str
    figures: dict[str, tuple[str, bytes]]

    def write(self, folder: Path) -> Path:
        """Write ``index.html`` and ``figures/NAME.svg, NAME.png``. Return the path of the page."""
        subfolder = folder / "figures"
        subfolder.mkdir(parents=True, exist_ok=True)
        for name, (svg, png) in self.figures.items():
            (subfolder / f"{name}.svg").write_text(svg, encoding="utf-8", newline="\n")
            (subfolder / f"{name}.png").write_bytes(png)
        (folder / PAGE).write_text(self.page, encoding="utf-8", newline="\n")
        return folder / PAGE


def make_report(results: Sequence[Result]) -> Report:
    """Render the page, which contains all figures, and the figures as files."""
    parts = sections(results)
    figures = {c.slug: render(c) for s in parts for c in s.charts}
    drawings = {name: svg for name, (svg, _) in figures.items()}
    for chart in (c for s in parts for c in s.charts):
        if chart.narrow:
            small = replace(chart, slug=f"{chart.slug}-narrow", size=chart.narrow)
            drawings[small.slug] = render(small)[0]
    return Report(html_page(results, parts, drawings), figures)


def load_results(folder: Path) -> list[Result]:
    """All results below a folder by setting, method and size of upload; ValueError if none."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    results = read_results(sorted(folder.rglob("*.jsonl")))
    if not results:
        raise ValueError(f"{folder}: no results (*.jsonl) below it; make some with fedran run")
    for r in results:
        _require_complete(r)
    order = {key: i for i, key in enumerate(METHODS)}
    # Of equal runs the last one counts, and that must not be the one made to measure seconds.
    return sorted(
        results,
        key=lambda r: (
            _setting_order(r),
            order.get(r.key, len(order)),
            r.study != "runtime",
            -r.max_upload,
        ),
    )


def _setting_order(r: Result) -> tuple[int, int, int, str]:
    """The paper's datasets first and in its order, then by clients and tasks."""
    datasets, setting = [*TASKS, None], Setting.of(r)
    known = datasets.index(paper_dataset(r.dataset))
    return known, setting.clients, setting.tasks, r.dataset


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
