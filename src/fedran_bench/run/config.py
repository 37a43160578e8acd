"""Configuration files of experiments: their tables, ``--set`` overrides, and sweeps over lists."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from fedran.core.errors import nearest, printable
from fedran.data.rows import LABEL, is_table
from fedran.settings import Settings, at_least, check_table, hints, one_line, positive, share
from fedran.wire.files import read_toml
from fedran_bench.methods.registry import METHODS, make_method, settings
from fedran_bench.results.result import DEFAULT_STUDY, require_study

LARGEST_SWEEP = 100_000


@dataclass(frozen=True)
class StreamSettings(Settings):
    """The table ``[stream]``: how rows are divided into tasks and clients."""

    tasks: Annotated[int | None, at_least(1)] = None
    """Number of tasks. The shuffled classes are divided among them. Without it there are 5 tasks,
    or one per class where there are fewer classes."""
    clients: Annotated[int | None, at_least(1)] = None
    """Number of clients in every task. Required unless the partitioner is ``natural``."""
    partitioner: Literal["dirichlet", "iid", "natural"] = "dirichlet"
    """``dirichlet``: each class is divided by p ~ Dirichlet(beta). ``iid``: equal shares.
    ``natural``: one client per group of the dataset."""
    beta: Annotated[float | None, positive] = None
    """Concentration of the Dirichlet distribution; small values give a skewed split. Required for
    ``dirichlet``."""
    label_rate: Annotated[float, share] = 1.0
    """Probability with which a row keeps its label."""
    arrival: Literal["classes", "domains", "staggered"] = "classes"
    """``classes``: every task has new classes. ``domains``: every task has all classes of one group
    of the dataset, such as a person. ``staggered``: as ``classes``, with clients up to two tasks
    apart."""
    seed: int = 1993
    """Seed of the class order, of the partition and of the choice of labelled rows."""


@dataclass(frozen=True)
class MethodSettings(Settings):
    """A table ``[[method]]``. All other keys are settings of the method itself."""

    key: str
    """The method; ``fedran bench methods`` lists them. ``module:Class`` is your own class, imported
    from the Python path or the current folder."""
    label: Annotated[str | None, one_line] = None
    """Name of the method in tables; without it, the method's own name."""
    only: dict[str, Any] = field(default_factory=dict)
    """Settings of streams, such as ``{ beta = 0.1 }``: the method runs only on these."""
    task0: dict[str, Any] | None = None
    """The table ``[method.task0]``: the clients first fine-tune a network in task 0. For analytic
    methods."""


@dataclass(frozen=True)
class ConfigurationFile(Settings):
    """The whole file."""

    dataset: str | list[str]
    """A name, a path to a feature file (.npz), a table (.csv, .parquet) or a folder of images, or a
    list of those. Paths are looked up in the current folder and below ``FEDRAN_DATA``."""
    method: list[dict[str, Any]]
    """The methods, one table ``[[method]]`` each."""
    name: Annotated[str | None, one_line] = None
    """Title of the experiment; without it, the name of the file."""
    study: str = DEFAULT_STUDY
    """What the runs are for. The report uses it to decide where they are shown."""
    label_column: str = LABEL
    """The column of labels in every table among the datasets. All other columns are features."""
    stream: dict[str, Any] = field(default_factory=dict)
    """The table ``[stream]``."""


@dataclass(frozen=True)
class MethodChoice:
    """One method with one value per setting, and its name in tables."""

    key: str
    params: Mapping[str, Any]
    label: str
    only: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the streams on which it runs. Empty: all streams."""

    def runs_on(self, stream: Mapping[str, Any]) -> bool:
        """Whether it is to run on a stream with these settings."""
        return all(stream.get(k) in _as_list(v) for k, v in self.only.items())


@dataclass(frozen=True)
class Experiment:
    """A validated configuration, with every list expanded."""

    name: str
    study: str
    """What its runs are for, one of ``STUDIES``."""
    source: str
    """The file it was read from, relative to the working folder if it is inside it."""
    arguments: tuple[str, ...] | None
    """What follows ``fedran bench run`` in the command; none where no command was given."""
    datasets: tuple[str, ...]
    streams: tuple[Mapping[str, Any], ...]
    """One mapping of settings per stream."""
    methods: tuple[MethodChoice, ...]
    label_column: str = LABEL
    """The column of labels in tables."""


def load_config(
    path: str | Path | None,
    overrides: Sequence[str] = (),
    methods: Sequence[str] = (),
    datasets: Sequence[str] = (),
) -> Experiment:
    """The experiment of a TOML file, or without one of methods and datasets on a usual stream.

    ``key=value`` overrides are applied. The name of a file's experiment then says what was changed,
    unless an override sets the name too.
    """
    options = [*(("--method", key) for key in methods), *(("--dataset", d) for d in datasets)]
    options += [("--set", text) for text in overrides]
    arguments = tuple(part for option in options for part in option)
    if path is None:
        absent = [o for o, v in (("--method", methods), ("--dataset", datasets)) if not v]
        if absent:
            raise ValueError(f"without CONFIG.toml, {' and '.join(absent)} must be given")
        fields: dict[str, Any] = {
            "name": f"{', '.join(methods)} on {', '.join(map(dataset_name, datasets))}",
            "dataset": list(datasets),
            "stream": {"clients": 5, "beta": 0.5},
            "method": [{"key": key} for key in methods],
        }
        for text in overrides:
            override(fields, text)
        return parse_config(fields, "", arguments)
    if methods or datasets:
        raise ValueError(
            f"{path} lists methods and datasets itself: use --set methods=... and --set "
            "dataset=... instead of --method and --dataset"
        )
    path = Path(path)
    fields = read_toml(path, "a configuration")
    own_name = fields.get("name")
    for text in overrides:
        override(fields, text)
    if overrides and fields.get("name") == own_name:
        changes = "; ".join(text.strip() for text in overrides)
        fields["name"] = f"{own_name or path.stem} ({changes})"
    try:
        source = path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        source = path.name  # results are read on other machines, where a full path says nothing
    try:
        return parse_config(fields, source, (source, *arguments))
    except ValueError as reason:
        raise ValueError(f"{path}: {reason}") from None


def dataset_name(dataset: str) -> str:
    """The name of a dataset in results and tables: a path without folder and suffix.

    >>> dataset_name("digits"), dataset_name("/data/cifar100.npz"), dataset_name("my/photos.v2/")
    ('digits', 'cifar100', 'photos.v2')
    """
    path = Path(dataset)
    return path.stem if path.suffix == ".npz" or is_table(path) else path.name


def parse_config(
    fields: Mapping[str, Any], source: str = "", arguments: tuple[str, ...] | None = None
) -> Experiment:
    """An experiment from plain values. Errors name the setting and, if close, the right one."""
    _method_tables(fields)  # said before anything else that is wrong
    top = check_table(ConfigurationFile, fields, "the configuration")
    study = top.get("study", DEFAULT_STUDY)
    require_study(study)
    stream = check_table(StreamSettings, top.get("stream", {}), "[stream]", "stream.", lists=True)
    usual = {"tasks": None, "seed": 1993, "partitioner": "dirichlet"}
    streams = tuple(_combinations({**usual, **stream}))
    methods = tuple(_methods(top["method"]))
    if not any(choice.runs_on(s) for choice in methods for s in streams):
        only = "; ".join(f"{choice.key}: {dict(choice.only)}" for choice in methods)
        raise ValueError(f"no method runs on this stream. Their tables `only` say: {only}")
    datasets = _as_list(top["dataset"])
    if not datasets:
        raise ValueError("dataset is an empty list; give at least one value")
    if "label_column" in top and not any(is_table(Path(name)) for name in datasets):
        raise ValueError("label_column names a column of a CSV or Parquet file; no dataset is one")
    return Experiment(
        name=top.get("name") or Path(source).stem or "experiment",
        study=study,
        source=source,
        arguments=arguments,
        datasets=tuple(datasets),
        streams=streams,
        methods=methods,
        label_column=top.get("label_column", LABEL),
    )


def _methods(tables: Sequence[Mapping[str, Any]]) -> Iterable[MethodChoice]:
    if not tables:
        raise ValueError("expected at least one [[method]]")
    own = MethodSettings.__dataclass_fields__
    for table in tables:
        if "key" not in table:
            raise ValueError(f"a [[method]] needs a key; one of {', '.join(METHODS)}")
        common = {name: value for name, value in table.items() if name in own}
        checked = check_table(MethodSettings, common, "[[method]]", "method.")
        only, where = checked.get("only", {}), f"only of method {checked['key']!r}"
        check_table(StreamSettings, only, where, "only.", lists=True)
        params = {name: value for name, value in table.items() if name not in own}
        if checked.get("task0") is not None:
            params["task0"] = list(_combinations(checked["task0"]))
        for chosen in _combinations(params):
            method = make_method(checked["key"], chosen)  # validates key, names and values
            yield MethodChoice(checked["key"], chosen, checked.get("label") or method.name, only)


def _combinations(fields: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The cartesian product over all values that are lists."""
    choices = [_as_list(v) for v in fields.values()]
    for name, values in zip(fields, choices, strict=True):
        if not values:
            raise ValueError(f"{name} is an empty list; give at least one value")
    size = math.prod(len(values) for values in choices)
    if size > LARGEST_SWEEP:
        raise ValueError(f"the sweep has {size} combinations; at most {LARGEST_SWEEP}")
    for combination in product(*choices):
        yield dict(zip(fields, combination, strict=True))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _method_tables(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    tables = fields.get("method", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ValueError("methods are written as [[method]] tables, each with a key")
    return tables


def override(fields: dict[str, Any], text: str) -> None:
    """Apply ``key=value``: ``stream.beta=0.5``, ``method.rank=[64,128]``, ``methods=exact,afl``.

    ``method.NAME`` sets NAME for every method that has it, ``method.task0.NAME`` for every method
    with a table ``task0``. ``methods=`` keeps only these of the methods that the file lists. A
    value that is not valid TOML is plain text.
    """
    key, equals, raw = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise ValueError(f"--set expects key=value, got {printable(text)!r}")
    methods = _method_tables(fields)
    if key == "methods":
        listed = list(dict.fromkeys(str(table.get("key")) for table in methods))
        chosen = [part.strip() for part in raw.split(",")]
        for absent in (k for k in chosen if k not in listed):
            raise ValueError(
                f"--set methods: the file lists no method {absent!r}{nearest(absent, listed)}; it "
                f"lists {', '.join(listed)}"
            )
        fields["method"] = [table for table in methods if table.get("key") in chosen]
        return
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = raw
    where, _, name = key.rpartition(".")
    if where in ("", "stream") and name in hints(StreamSettings if where else ConfigurationFile):
        tables = [fields.setdefault(where, {}) if where else fields]
    elif where == "method":
        tables = [table for table in methods if name in _settings_of(table)]
    else:
        tables = [table.get("task0") for table in methods if where == "method.task0"]
    tables = [table for table in tables if isinstance(table, dict)]
    if not tables:
        known = {*hints(ConfigurationFile), *(f"stream.{n}" for n in hints(StreamSettings))}
        known |= {f"method.{n}" for table in methods for n in _settings_of(table)}
        raise ValueError(f"--set {key}: there is no such setting here{nearest(key, sorted(known))}")
    for table in tables:
        table[name] = value


def _settings_of(table: Mapping[str, Any]) -> Mapping[str, Any]:
    return settings(table["key"]) if isinstance(table.get("key"), str) else {}
