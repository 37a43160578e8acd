"""How the trained methods were trained: network, start, schedule, seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedran.bench.report.paper import EPOCHS, ROUNDS
from fedran.bench.report.tables.table import (
    NOTHING,
    Block,
    Cell,
    Column,
    Table,
    numbers,
    seconds,
    words,
)
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_setting,
    comparisons,
    groups,
    machine_of,
    row_order,
    stat,
)
from fedran.bench.results.metrics import (
    client_seconds,
    is_head,
    is_trained,
    network,
    rounds_per_task,
    server_seconds,
    start,
)
from fedran.bench.results.result import Result

READ = (
    "What the trained methods were trained with. Every client trains for the given epochs in "
    "every round, on its rows of the task; the server averages. The seconds are those of one "
    "task, mean over clients, tasks, seeds and β. Where runs shared their machine they say "
    "little: the runtime section has only those that did not."
)
SHOWN = ("epochs", "lr", "momentum", "weight_decay", "batch", "averaging", "participation")
"""Settings with a column of their own, beside network, start and rounds."""
_ELSEWHERE = {*SHOWN, "network", "weights", "n_rounds", "device"}


def training_tables(results: Iterable[Result]) -> list[Table]:
    """One table for each setting, one row for each trained method and machine."""
    trained = [r for r in comparisons(results) if is_trained(r)]
    return [_table(*of) for of in by_setting(groups(trained, by_machine=True)).items()]


def reduced(result: Result) -> bool:
    """Whether it trained for fewer rounds or epochs than the paper's trained methods."""
    epochs = result.params.get("epochs")
    fewer = isinstance(epochs, int | float) and epochs < EPOCHS
    return rounds_per_task(result) < ROUNDS or fewer


def own_settings(result: Result) -> str:
    """The settings that have no column; a flavour only where the label does not say it.

    >>> from types import SimpleNamespace as R
    >>> settings = {"lr": 0.1, "strength": 100.0, "flavour": "as_is"}
    >>> own_settings(R(label="FedEWC", family="trained", params=settings))
    'flavour=as_is, strength=100'
    """
    spoken = str(result.params.get("flavour", "")).replace("_", " ")
    left = {k: v for k, v in sorted(result.params.items()) if k not in _ELSEWHERE and _is_set(v)}
    if spoken in result.label:
        left.pop("flavour", None)
    if is_head(result):
        left.pop("augment", None)  # features are not augmented
    return ", ".join(f"{k}={_plain(v)}" for k, v in left.items()) or NOTHING


def _table(setting: Setting, found: list[Group]) -> Table:
    rows: dict[str, dict[str, list[Group]]] = {}
    for g in sorted(found, key=row_order):
        rows.setdefault(g.name, {}).setdefault(machine_of(g.first), []).append(g)
    columns = [
        *words("method", "network", "start"),
        *numbers("rounds a task", "epochs", "lr"),
        *numbers("client", "server", group="seconds a task"),
        Column("own settings", numeric=False, wide=True),
        *numbers("momentum", "weight decay", "batch"),
        *words("averaging"),
        *numbers("participation"),
        Column("machine", numeric=False, wide=True),
    ]
    blocks: list[Block] = [[_row(g) for g in on.values()] for on in rows.values()]
    return Table(setting.title, columns, blocks, _note(found))


def _row(of: Sequence[Group]) -> list[Cell]:
    first, runs = of[0].first, [r for g in of for r in g.results]
    settings = [Cell(_plain(first.params.get(name))) for name in SHOWN]
    times = [stat([f(r) for r in runs]) for f in (client_seconds, server_seconds)]
    return [
        Cell(of[0].name),
        Cell(network(first) or NOTHING),
        Cell(start(first)),
        Cell(str(rounds_per_task(first))),
        *settings[:2],
        *(Cell(seconds(s.mean if s else None)) for s in times),
        Cell(own_settings(first)),
        *settings[2:],
        Cell(machine_of(first)),
    ]


def _note(found: Sequence[Group]) -> str:
    names = list(dict.fromkeys(g.name for g in sorted(found, key=row_order)))
    short = {g.name for g in found if reduced(g.first)}
    told = [name for name in names if name in short]
    which = "every row" if len(told) == len(names) else "; ".join(told) or "no row"
    return (
        f"The paper trains for {ROUNDS} rounds a task and {EPOCHS} epochs a round; less is a "
        f"reduced schedule. Reduced here: {which}."
    )


def _plain(value: Any) -> str:
    """A setting as it is read: 0.0005, True, a word."""
    if not _is_set(value):
        return NOTHING
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_set(value: Any) -> bool:
    return value is not None and value != ""
