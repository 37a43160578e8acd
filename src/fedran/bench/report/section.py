"""A section of the report: heading, text, tables and figures, and the terms it uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fedran.bench.report.figures.chart import Chart
from fedran.bench.report.tables.table import Table

TERMS = {
    "A_avg": "the accuracy after each task, in percent, mean over all tasks. The accuracy after a "
    "task counts the test rows of all classes seen so far.",
    "A_T": "the accuracy after the last task, in percent.",
    "β": "concentration of the Dirichlet distribution that divides the rows of each class among "
    "the clients. A smaller β gives a more skewed split.",
    "AUC": "how well the strongest attack tells rows of the message from other rows of the same "
    "classes: 0.5 is guessing, 1 is certain.",
    "TPR at 0.1 %": "the share of the rows of the message that the strongest attack finds while it "
    "wrongly names one in 1,000 other rows.",
    "printed": "copied from the paper, which used another backbone. Not measured here.",
    "computed": "derived from measured figures. The note says how.",
}


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, figures and tables."""

    slug: str
    title: str
    intro: Sequence[str]
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    folded: bool = False
    """Folded on the HTML page."""

    @property
    def text(self) -> str:
        """All text of headings, paragraphs, captions and tables, without the cells."""
        headings = [c.label for t in self.shown for c in t.columns]
        tables = [f"{t.title} {t.note}" for t in self.shown]
        captions = [f"{c.caption} {c.note}" for c in self.charts]
        return "\n".join([self.title, *self.intro, *tables, *captions, *headings])

    @property
    def shown(self) -> list[Table]:
        """The tables on the page."""
        return [t for t in self.tables if not t.exported]


def first_terms(parts: Iterable[Section]) -> Iterator[tuple[Section, dict[str, str]]]:
    """Every section with the terms that no section before it has explained."""
    known: set[str] = set()
    for section in parts:
        new = {term: meaning for term, meaning in terms(section.text).items() if term not in known}
        known |= set(new)
        yield section, new


def terms(text: str) -> dict[str, str]:
    """The terms that occur in a text, with their meaning."""
    return {
        term: meaning
        for term, meaning in TERMS.items()
        if re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text)
    }
