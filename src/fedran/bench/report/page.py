"""The report as one HTML page: no script, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources

import fedran
from fedran.bench.report.figures.chart import Chart, inline
from fedran.bench.report.html_table import html_table, text
from fedran.bench.report.sections import FOOTNOTES, Section
from fedran.bench.results.result import Result

TITLE = "Federated continual classification: results"
# Belt and braces: even a string that got past the escaping could not load or run anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(
    results: Sequence[Result],
    sections: Sequence[Section],
    absent: Sequence[str],
    drawings: Mapping[str, str],
) -> str:
    """The whole page; ``drawings`` holds the SVG of each chart by its slug."""
    css = resources.files("fedran.bench.report").joinpath("report.css").read_text(encoding="utf-8")
    parts = [_section(s, drawings) for s in sections]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{TITLE}</title>\n<style>\n{css}</style></head>\n<body>\n"
        f"<header><h1>{TITLE}</h1>\n{_lead(results)}</header>\n{_contents(sections)}"
        f"<main>\n{''.join(parts)}{_terms()}{_absent(absent)}</main>\n"
        f"<footer>Made by fedran {text(fedran.__version__)} with <code>fedran report</code>."
        "</footer>\n</body></html>\n"
    )


def _lead(results: Sequence[Result]) -> str:
    days = sorted({r.date for r in results})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    methods, datasets = len({r.key for r in results}), len({r.dataset for r in results})
    return (
        f'<p class="lead">{_count(len(results), "run")} of {_count(methods, "method")} on '
        f"{_count(datasets, 'dataset')}, {text(when)}. Everything is measured, but for what is "
        'set like <span class="printed">this</span>: it is printed in the paper, or '
        "computed where its heading says so.</p>\n"
    )


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _contents(sections: Sequence[Section]) -> str:
    items = "".join(f'<li><a href="#{s.slug}">{text(s.title)}</a></li>' for s in sections)
    return f'<nav aria-label="Contents"><ol>{items}</ol></nav>\n'


def _section(section: Section, drawings: Mapping[str, str]) -> str:
    figures = "".join(_figure(c, drawings[c.slug]) for c in section.charts)
    tables = "".join(html_table(t) for t in section.tables)
    return (
        f'<section id="{section.slug}"><h2>{text(section.title)}</h2>\n'
        f"<p>{text(section.intro)}</p>\n{figures}{tables}{_details(section)}</section>\n"
    )


def _details(section: Section) -> str:
    if not section.details:
        return ""
    tables = "".join(html_table(t) for t in section.details)
    return f'<details class="more"><summary>In detail</summary>{tables}</details>\n'


def _figure(chart: Chart, svg: str) -> str:
    caption = text(chart.caption)
    drawing = f'<div tabindex="0">{inline(svg, chart.slug)}</div>'
    if chart.collapsed:
        return f"<details><summary>{caption}</summary><figure>{drawing}</figure></details>\n"
    return f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>\n"


def _terms() -> str:
    items = "".join(f"<dt>{text(term)}</dt><dd>{text(say)}</dd>" for term, say in FOOTNOTES.items())
    return f'<section id="terms"><h2>Terms</h2><dl>{items}</dl></section>\n'


def _absent(absent: Sequence[str]) -> str:
    if not absent:
        return ""
    return f'<p class="note" id="missing">Not in these results: {text("; ".join(absent))}.</p>\n'
