"""The page on leakage: what attacks found in each kind of message, from lines of ``*.ndjson``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from fedran.bench.report.section import Section
from fedran.bench.report.tables.table import (
    NOTHING,
    Block,
    Cell,
    Table,
    date_range,
    number,
    number_columns,
    text_columns,
)
from fedran.data.catalogue import dataset_title
from fedran.leakage.attacks import FLOORS, GAP, HEADS, MEAN, NEAREST, SCATTER, SPAN
from fedran.wire.sizes import human_bytes

STUDY = "leakage"
"""What ``study`` of such a line says. Other lines are left alone."""
LEAKAGE_TITLE = "What messages reveal"
LEAKAGE_ABOUT = (
    "What attackers find in the message of a site: single rows, and which rows it was made of. AUC "
    "says how well they tell these rows from others: 0.5 is guessing, 1 is certain."
)


@dataclass(frozen=True)
class Measured:
    """What attacks found in one message."""

    dataset: str
    date: str
    command: str
    stream: int
    classes: int
    """Classes of the task."""
    sites: int
    beta: float
    cohort: int
    """Sites that take part."""
    out_features: int
    """Random features of a summary."""
    sketch: int
    """Columns of a secure sum."""
    delta: float
    name: str
    bytes: int
    members: int
    """Rows of the attacked site."""
    reference: int
    """Rows that are not in the message."""
    single: tuple[int, int]
    """Rows recovered of those alone in their class or group, and their number."""
    found: tuple[int, int]
    """Searches in the factor that ended at a single row, and all of them."""
    cosine: float | None
    auc: float
    tpr: float | None
    attacks: dict[str, float]
    """The AUC of every attack on membership."""
    error: float
    site: float | None = None
    """AUC for telling rows of the site from rows of the others in the sum."""

    def strongest(self, *attacks: str) -> float | None:
        """The largest AUC of some attacks; None where none of them applies."""
        return max((self.attacks[a] for a in attacks if a in self.attacks), default=None)


def read_leakage(folder: Path) -> list[Measured]:
    """All lines on leakage below a folder."""
    known = {f.name for f in fields(Measured)}
    found = []
    for path in sorted(folder.rglob("*.ndjson")):
        for i, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
            except ValueError:
                continue  # not ours
            if isinstance(line, dict) and line.get("study") == STUDY:
                try:
                    found.append(Measured(**{k: v for k, v in line.items() if k in known}))
                except TypeError as reason:
                    raise ValueError(f"{path}, line {i}: not a line on leakage: {reason}") from None
    return found


def leakage_verdict(measured: Sequence[Measured]) -> list[str]:
    """The messages of each dataset that reveal most and least."""
    lines = []
    for dataset, own in _by_dataset(measured).items():
        most, least = (choose(own, key=lambda m: m.auc) for choose in (max, min))
        lines.append(
            f'{dataset_title(dataset)}: the message "{most.name}" reveals most '
            f'(AUC {most.auc:.3f}), "{least.name}" least (AUC {least.auc:.3f}).'
        )
    return lines


def leakage_sections(measured: Sequence[Measured]) -> list[Section]:
    """One section per dataset: what was found, and in which part of the message."""
    parts: list[Section] = []
    for dataset, own in _by_dataset(measured).items():
        intro = [] if parts else [_setting(own[0]), _headings(measured)]
        tables = [_findings(dataset, own), _parts(dataset, own)]
        parts.append(Section(f"leakage-{dataset}", dataset_title(dataset), intro, tables))
    return parts


def short_table(measured: Sequence[Measured]) -> Table:
    """Members that are found, with the backbones side by side: for the page about privacy."""
    datasets = _by_dataset(measured)
    lines = {(m.dataset, m.name): m for m in measured}
    blocks: list[Block] = []
    for name in dict.fromkeys(m.name for m in measured):
        row = [Cell(name)]
        for dataset in datasets:
            m = lines.get((dataset, name))
            row += [number(m.auc, 3), _rate(m.tpr), _head(m)] if m else [Cell(NOTHING)] * 3
        blocks.append([row])
    columns = text_columns("message")
    for dataset in datasets:
        backbone = dataset_title(dataset).partition(", ")[2]
        columns += number_columns("AUC", "TPR at 0.1 %", "head alone", group=backbone)
    return Table("", columns, blocks)


def _by_dataset(measured: Iterable[Measured]) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {}
    for m in measured:
        found.setdefault(m.dataset, []).append(m)
    return found


def _setting(m: Measured) -> str:
    return (
        f"Stream {m.stream}: a task of {m.classes} classes, divided among {m.sites} sites with "
        f"β = {m.beta:g}. {m.cohort} of the sites take part. The attacked message is that of the "
        "middle one of them by size, or a sum over all of them. Members are the rows of this site. "
        f"Other rows are {m.reference:,} rows of its classes from the sites that do not take part "
        f"and from the test set. Summaries have M = {m.out_features} random features. The "
        f"secure sum has a sketch of {m.sketch} columns. The noisy sums (DP) are of raw features, "
        f"with δ = {m.delta:g}."
    )


def _headings(measured: Sequence[Measured]) -> str:
    return (
        "Single rows: classes (in mixtures: groups) with one row, and how many of these rows are "
        "recovered. Rows in the factor: searches in the factor of a summary that ended at a single "
        "row. Small classes: mean cosine of the recovered and the true mean feature of classes "
        "with 2 to 4 rows. Head alone: AUC of someone who has only the classifier that is solved "
        f"from this message. The standard error of an AUC is at most "
        f"{max(m.error for m in measured):.3f}. The attacks are lower bounds: a better one may "
        "find more."
    )


def _findings(dataset: str, own: Sequence[Measured]) -> Table:
    rows = [
        [
            Cell(m.name),
            Cell(human_bytes(m.bytes)),
            _tries(m.single),
            _tries(m.found),
            number(m.cosine, 3),
            number(m.auc, 3),
            _rate(m.tpr),
            _head(m),
        ]
        for m in own
    ]
    columns = [
        *text_columns("message"),
        *number_columns("size", "single rows", "rows in the factor", "small classes"),
        *number_columns("AUC", "TPR at 0.1 %", "head alone"),
    ]
    first = own[0]
    note = (
        f"The site has {first.members:,} rows. Summaries have M = {first.out_features} random "
        f"features. Made by {first.command} on {date_range(m.date for m in own)}."
    )
    title = f"What attacks find: {dataset_title(dataset)}"
    return Table(title, columns, [[row] for row in rows], note)


def _parts(dataset: str, own: Sequence[Measured]) -> Table:
    """AUC by the part of the message that an attack uses."""
    rows = [
        [
            Cell(m.name),
            number(m.strongest(SPAN, NEAREST, GAP), 3),
            number(m.strongest(MEAN), 3),
            number(m.strongest(SCATTER, *FLOORS), 3),
            number(m.site, 3),
        ]
        for m in own
    ]
    columns = [
        *text_columns("message"),
        *number_columns("span or groups", "class mean", "scatter", "which site"),
    ]
    note = (
        "The AUC of the strongest attack that uses only this part of the message. Scatter includes "
        "the Mahalanobis distances. Which site: telling rows of the site from rows of the others "
        f"in the sum. Made by {own[0].command} on {date_range(m.date for m in own)}."
    )
    title = f"Which part of a message tells members: {dataset_title(dataset)}"
    return Table(title, columns, [[row] for row in rows], note, collapsed=True)


def _head(m: Measured) -> Cell:
    return number(m.strongest(HEADS), 3)


def _tries(pair: Sequence[int]) -> Cell:
    return Cell(f"{pair[0]} of {pair[1]}" if pair[1] else NOTHING)


def _rate(value: float | None) -> Cell:
    return Cell(NOTHING if value is None else f"{100 * value:.2f} %")
