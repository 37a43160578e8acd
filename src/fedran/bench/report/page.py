"""A page of the report as HTML without scripts or external resources.

It is written by autoescaping Jinja2 templates in the folder ``templates``. Only the SVG of the
figures is inserted as markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

import fedran
from fedran.bench.report.figures.chart import inline
from fedran.bench.report.pages import Page
from fedran.bench.report.section import first_terms
from fedran.bench.report.tables.table import NOTHING, Cell, Column, Table, date_range
from fedran.bench.results.grouping import counted
from fedran.bench.results.result import Result
from fedran.core.errors import MissingExtra, printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

SHORT, TINY = 16, 9
"""Texts of at most this many characters are kept on one line; in tables with many columns TINY."""
MANY = 5
"""Tables with more columns are stacked in windows of medium width."""


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
        dates=date_range(results),
        sections=first_terms(page.sections),
        drawings={slug: Markup(inline(drawings[slug], slug)) for slug in shown},  # noqa: S704
        version=fedran.__version__,
    )


def html_table(table: Table) -> str:
    """Render one table."""
    return str(_environment().get_template("table.html").module.html_table(table))  # type: ignore[attr-defined]


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
