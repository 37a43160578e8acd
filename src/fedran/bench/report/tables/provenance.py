"""How to repeat the measurements: commands, dates, seeds, machines, versions, hashes, run ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedran.bench.report.section import Section
from fedran.bench.report.tables.table import (
    Cell,
    Table,
    date_range,
    full_command,
    number_columns,
    setting_cell,
    text_columns,
)
from fedran.bench.results.grouping import Group, cases, groups, machine_of
from fedran.bench.results.result import Result

SHORT = 8
"""Characters shown of hashes and run ids."""


def provenance_section(results: Sequence[Result]) -> Section:
    """Commands; every run is only exported."""
    intro = ["The commands that produced the results above."]
    tables = [command_table(results), run_table(results)]
    return Section("provenance", "How to repeat", intro, tables, folded=True)


def command_table(results: Iterable[Result]) -> Table:
    """One row per command and machine."""
    batches: dict[tuple[str, str], list[Result]] = {}
    for g in groups(results, by_machine=True):
        for r in g.results:
            batches.setdefault((full_command(r), machine_of(r)), []).append(r)
    blocks = [
        [
            [
                Cell(what),
                Cell(date_range(r.date for r in runs)),
                Cell(str(len(runs))),
                Cell(_seeds(runs)),
                Cell(where),
                Cell(_unique(" ".join(pair) for r in runs for pair in r.versions.items())),
            ]
        ]
        for (what, where), runs in batches.items()
    ]
    columns = [
        *text_columns("command", "date"),
        *number_columns("runs"),
        *text_columns("seeds", "machine", "versions"),
    ]
    note = "The options of a command follow from the machine that the results name."
    if any(r.config and r.arguments is None for runs in batches.values() for r in runs):
        note += " Older results do not record what --set changed; then only the file is shown."
    if any("+" in r.versions["fedran"] for runs in batches.values() for r in runs):
        note += " The part after the plus sign of a version is a hash of the code."
    return Table("Commands", columns, blocks, note)


def run_table(results: Iterable[Result]) -> Table:
    """One row per method, setting and beta, with the ids of the runs behind it."""
    blocks = [
        [[setting_cell(case), *_run_row(g)] for g in found]
        for case, found in cases(results).items()
    ]
    columns = [
        *text_columns("setting", "method", "command", "date"),
        *text_columns("seeds", "run ids", "hashes", "machine"),
    ]
    note = (
        f"Hashes and run ids show their first {SHORT} characters. A run id covers method, "
        "settings, seeds, stream, features and version of the code: the same id means the same "
        "run. If a run was repeated with the same seeds, the newest counts."
    )
    return Table("Every run", columns, blocks, note, exported=True)


def _run_row(g: Group) -> list[Cell]:
    runs = g.results
    hashes = {
        kind: _unique(r.hashes[kind][:SHORT] for r in runs if kind in r.hashes)
        for kind in sorted({kind for r in runs for kind in r.hashes})
    }
    return [
        Cell(g.name),
        Cell(_unique(full_command(r) for r in runs)),
        Cell(date_range(r.date for r in runs)),
        Cell(_seeds(runs)),
        Cell(_unique(r.run_id[:SHORT] for r in runs)),
        Cell("; ".join(f"{kind} {values}" for kind, values in hashes.items())),
        Cell(_unique((machine_of(r) for r in runs), "; ")),
    ]


def _unique(texts: Iterable[str], separator: str = ", ") -> str:
    return separator.join(dict.fromkeys(texts))


def _seeds(runs: Iterable[Result]) -> str:
    """Seeds by role; roles with equal seeds share an entry: ``order, partition 1, 2; mask 0``."""
    results = list(runs)
    roles: dict[str, list[str]] = {}
    for role in dict.fromkeys(role for r in results for role in r.seeds):
        values = _unique(str(r.seeds.get(role, "-")) for r in results)
        roles.setdefault(values, []).append(role)
    return "; ".join(f"{', '.join(names)} {values}" for values, names in roles.items())
