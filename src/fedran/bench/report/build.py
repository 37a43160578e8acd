"""From a folder of results to a page and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedran.bench.report.figures.chart import render
from fedran.bench.report.page import html_page
from fedran.bench.report.sections import missing, sections
from fedran.bench.results.result import Result, read_results
from fedran.methods.registry import METHODS

PAGE = "index.html"


@dataclass(frozen=True)
class Report:
    """A page, and each figure by its name as SVG and PNG."""

    page: str
    figures: dict[str, tuple[str, bytes]]

    def write(self, folder: Path) -> Path:
        """Write ``index.html`` and ``figures/NAME.svg, NAME.png``; the page's path."""
        below = folder / "figures"
        below.mkdir(parents=True, exist_ok=True)
        for name, (svg, png) in self.figures.items():
            (below / f"{name}.svg").write_text(svg, encoding="utf-8", newline="\n")
            (below / f"{name}.png").write_bytes(png)
        (folder / PAGE).write_text(self.page, encoding="utf-8", newline="\n")
        return folder / PAGE


def make_report(results: Sequence[Result]) -> Report:
    """The page needs nothing beside it: the figures are in it."""
    found = sections(results)
    figures = {c.slug: render(c) for s in found for c in s.charts}
    drawings = {name: svg for name, (svg, _) in figures.items()}
    return Report(html_page(results, found, missing(results), drawings), figures)


def write_report(results_dir: Path, out_dir: Path) -> Path:
    """A report of all results below a folder; the same results give the same bytes."""
    return make_report(load_results(Path(results_dir))).write(Path(out_dir))


def load_results(folder: Path) -> list[Result]:
    """All results below a folder, methods in the registry's order; ValueError where none are."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    results = read_results(sorted(folder.rglob("*.jsonl")))
    if not results:
        raise ValueError(f"{folder}: no results (*.jsonl) below it; make some with fedran run")
    for r in results:
        _check(r)
    places = {key: i for i, key in enumerate(METHODS)}
    # Of equal runs the last counts in tables of accuracy: not the one made for its seconds.
    return sorted(
        results,
        key=lambda r: (places.get(r.key, len(places)), r.study != "runtime"),
    )


def _check(r: Result) -> None:
    """What every table relies on; a line can be valid JSON and still hold half a run."""
    tasks = len(r.acc)
    shapes = [
        tasks > 0,
        len(r.tasks) == tasks,
        len(r.test_rows) == tasks,
        [len(row) for row in r.acc] == list(range(1, tasks + 1)),
        len(r.class_right) == tasks,
        all(t.bytes_up and t.bytes_down and t.seconds.client for t in r.tasks),
        "fedran" in r.versions,
    ]
    if not all(shapes):
        raise ValueError(f"the result {r.label!r} of {r.config!r} is not a whole run")
