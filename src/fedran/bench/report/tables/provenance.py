"""Where every row comes from: command, day, seeds, machine, versions, hashes, run ids."""

from __future__ import annotations

from collections.abc import Iterable

from fedran.bench.report.tables.table import Cell, Column, Table, numbers, words
from fedran.bench.results.grouping import Group, by_place, groups, machine_of, place_title
from fedran.bench.results.result import Result

SHORT = 8


def provenance_table(results: Iterable[Result]) -> Table:
    """One line for each method, setting and beta; ablations too."""
    places = by_place(groups(results))
    blocks = [
        [[Cell(place_title(*place)), *_row(g)] for g in found] for place, found in places.items()
    ]
    columns = [
        *words("setting", "method"),
        Column("command", numeric=False, wide=True),
        *numbers("date"),
        *(
            Column(t, numeric=False, wide=True)
            for t in ("seeds", "run ids", "hashes", "machine", "versions")
        ),
    ]
    note = (
        f"Hashes and run ids are cut to {SHORT} characters. A run id covers method, settings, "
        "seeds, stream, features and version of the code: the same id means the same run. Where a "
        "row was run more than once with the same seeds, the newest counts. Options of a command "
        "follow from machine and company that the result recorded."
    )
    return Table("Every row of this page", columns, blocks, note)


def _row(g: Group) -> list[Cell]:
    runs = g.results
    hashes = {k: _each(r.hashes[k][:SHORT] for r in runs if k in r.hashes) for k in _roles(g)}
    return [
        Cell(g.name),
        Cell(_each(_command(r) for r in runs)),
        Cell(_each(sorted(r.date for r in runs))),
        Cell(_seeds(g)),
        Cell(_each(r.run_id[:SHORT] for r in runs)),
        Cell("; ".join(f"{k} {v}" for k, v in hashes.items())),
        Cell("; ".join(dict.fromkeys(machine_of(r) for r in runs))),
        Cell("; ".join(dict.fromkeys(_versions(r) for r in runs))),
    ]


def _command(r: Result) -> str:
    if not r.config:
        return "not recorded"
    device = " --device cuda" if "NVIDIA" in r.machine else ""
    beside = f" --jobs {r.side_by_side}" if r.side_by_side > 1 else ""
    return f"fedran run {r.config}{device}{beside}"


def _each(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _roles(g: Group) -> list[str]:
    return sorted({k for r in g.results for k in r.hashes})


def _versions(result: Result) -> str:
    return ", ".join(f"{k} {v}" for k, v in result.versions.items())


def _seeds(g: Group) -> str:
    """Roles that share their seeds are named together: ``order, partition 1, 2; mask 0``."""
    roles: dict[str, list[str]] = {}
    for role in dict.fromkeys(role for r in g.results for role in r.seeds):
        values = ", ".join(dict.fromkeys(str(r.seeds.get(role, "-")) for r in g.results))
        roles.setdefault(values, []).append(role)
    return "; ".join(f"{', '.join(names)} {values}" for values, names in roles.items())
