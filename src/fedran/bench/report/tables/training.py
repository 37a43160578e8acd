"""Training settings of the trained methods: network, start, schedule, seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedran.bench.report.paper import EPOCHS, ROUNDS
from fedran.bench.report.section import Section
from fedran.bench.report.tables.table import (
    NOTHING,
    Block,
    Cell,
    Table,
    number_columns,
    results_of,
    seconds,
    text_columns,
)
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_setting,
    comparisons,
    groups,
    machine_of,
    row_order,
)
from fedran.bench.results.metrics import (
    client_seconds,
    is_head,
    is_prompted,
    is_trained,
    mean_or_none,
    network,
    rounds_per_task,
    server_seconds,
    start,
)
from fedran.bench.results.result import Result

SHARED = {
    "momentum": "momentum",
    "weight_decay": "weight decay",
    "batch": "batch",
    "averaging": "averaging",
    "participation": "participation",
}
"""Settings that usually agree, with their headings. The note states those that agree."""
_NOT_LISTED = {*SHARED, "epochs", "lr", "network", "weights", "n_rounds", "device"}


def training_section(results: Sequence[Result]) -> Section:
    """Settings of the trained methods."""
    intro = (
        "Settings of the trained methods. In every round each client trains for the given epochs "
        "on its rows of the task, and the server averages the models. Seconds are those of one "
        "task, mean over clients, tasks, seeds and β. They are only indicative where runs shared "
        "their machine."
    )
    tables = training_tables(results)
    return Section("training", "Training settings", [intro], tables, folded=True)


def training_tables(results: Iterable[Result]) -> list[Table]:
    """One table per setting, one row per trained method and machine."""
    trained = [r for r in comparisons(results) if is_trained(r)]
    settings = by_setting(groups(trained, by_machine=True))
    return [_table(setting, found) for setting, found in settings.items()]


def reduced(result: Result) -> bool:
    """Whether it trained for fewer rounds or epochs than the paper's trained methods.

    The paper states no schedule for methods on a ViT.
    """
    if is_prompted(result):
        return False
    epochs = result.params.get("epochs")
    fewer = isinstance(epochs, int | float) and epochs < EPOCHS
    return rounds_per_task(result) < ROUNDS or fewer


def other_settings(result: Result) -> str:
    """The settings without a column; a flavour only where the label does not name it.

    >>> from types import SimpleNamespace as R
    >>> settings = {"lr": 0.1, "strength": 100.0, "flavour": "as_is"}
    >>> other_settings(R(label="FedEWC", family="trained", params=settings))
    'flavour=as_is, strength=100'
    """
    hidden = set(_NOT_LISTED)
    if str(result.params.get("flavour", "")).replace("_", " ") in result.label:
        hidden.add("flavour")
    if is_head(result):
        hidden.add("augment")  # features are not augmented
    listed = [
        f"{name}={_setting(value)}"
        for name, value in sorted(result.params.items())
        if name not in hidden and value is not None and value != ""
    ]
    return ", ".join(listed) or NOTHING


def _table(setting: Setting, found: Sequence[Group]) -> Table:
    ordered = sorted(found, key=row_order)
    rows: dict[str, dict[str, list[Group]]] = {}
    for g in ordered:
        rows.setdefault(g.name, {}).setdefault(machine_of(g.first), []).append(g)
    varying = [name for name in SHARED if len(_values(name, found)) > 1]
    columns = [
        *text_columns("method", "network", "start"),
        *number_columns("rounds per task", "epochs", "lr"),
        *number_columns(*(SHARED[name] for name in varying)),
        *number_columns("client", "server", group="seconds per task"),
        *text_columns("other settings", "machine"),
    ]
    blocks: list[Block] = [
        [_row(of, varying) for of in machines.values()] for machines in rows.values()
    ]
    names, short = list(rows), {g.name for g in found if reduced(g.first)}
    listed = "; ".join(name for name in names if name in short)
    which = "every row" if short == set(names) else listed or "no row"
    equal = [
        f"{SHARED[name]} {value}"
        for name in SHARED
        if name not in varying and (value := _values(name, found)[0]) != NOTHING
    ]
    note = (
        f"The paper trains for {ROUNDS} rounds per task and {EPOCHS} epochs per round. Rows with "
        f"fewer rounds or epochs (a reduced schedule): {which}."
    )
    if any(is_prompted(g.first) for g in found):
        note += " It states no schedule for methods on a ViT."
    note += f" The same in all rows: {', '.join(equal)}." if equal else ""
    return Table(setting.title, columns, blocks, note, results_of(found))


def _row(of: Sequence[Group], varying: Sequence[str]) -> list[Cell]:
    """One method on one machine, over all its betas and seeds."""
    first, runs = of[0].first, results_of(of)
    return [
        Cell(of[0].name),
        Cell(network(first) or NOTHING),
        Cell(start(first)),
        Cell(str(rounds_per_task(first))),
        *(Cell(_setting(first.params.get(name))) for name in ("epochs", "lr", *varying)),
        *(
            Cell(seconds(mean_or_none([f(r) for r in runs])))
            for f in (client_seconds, server_seconds)
        ),
        Cell(other_settings(first)),
        Cell(machine_of(first)),
    ]


def _values(name: str, found: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(_setting(g.params.get(name)) for g in found))


def _setting(value: object) -> str:
    """A setting as text: 0.0005, True, a word, or a dash where it is not set."""
    if value is None or value == "":
        return NOTHING
    return f"{value:g}" if isinstance(value, float) else str(value)
