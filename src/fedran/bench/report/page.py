"""The report as one HTML page without scripts or external resources.

The page is written by autoescaping Jinja2 templates in the folder ``templates``. Only the SVG of
the figures is inserted as markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

import fedran
from fedran.bench.report.figures.chart import inline
from fedran.bench.report.sections import Section, missing, terms
from fedran.bench.report.tables.table import Cell, Column, Table, date_range
from fedran.bench.results.result import Result
from fedran.core.errors import MissingExtra, printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TITLE = "Federated continual classification: results"
SHORT = 16
"""Texts of at most this many characters are kept on one line."""


def html_page(
    results: Sequence[Result], parts: Sequence[Section], drawings: Mapping[str, str]
) -> str:
    """Render the whole page; ``drawings`` maps the slug of each chart to its SVG."""
    environment = _environment()
    from markupsafe import Markup

    return environment.get_template("page.html").render(
        title=TITLE,
        css=Markup(environment.get_template("report.css").render()),  # noqa: S704, our own file
        runs=_count(len(results), "run"),
        methods=_count(len({r.key for r in results}), "method"),
        datasets=_count(len({r.dataset for r in results}), "dataset"),
        dates=date_range(results),
        sections=parts,
        drawings={slug: Markup(inline(svg, slug)) for slug, svg in drawings.items()},  # noqa: S704
        terms=terms("\n".join(s.text for s in parts)),
        missing=missing(results),
        version=fedran.__version__,
    )


def html_table(table: Table) -> str:
    """Render one table."""
    return str(_environment().get_template("table.html").module.html_table(table))  # type: ignore[attr-defined]


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


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
    environment.filters.update(plain=_plain, adjacent_groups=_adjacent_groups)
    environment.globals.update(css_class=_css_class)
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
        "wide": column.wide,
        "short": not column.numeric and cell is not None and len(cell.text) <= SHORT,
    }
    return " ".join(name for name, wanted in names.items() if wanted)
