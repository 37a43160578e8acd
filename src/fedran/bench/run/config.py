"""What an experiment file may say, and what a wrong one is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from fedran.bench.results.result import DEFAULT_STUDY, require_study
from fedran.bench.run.overrides import override, require_methods
from fedran.core.errors import nearest, printable
from fedran.data.stream import PARTITIONERS
from fedran.methods.registry import METHODS, make_method
from fedran.wire.files import read_toml

TOP = ("name", "study", "dataset", "stream", "run", "budgets", "method")
STREAM: dict[str, type] = {
    "tasks": int,
    "clients": int,
    "partitioner": str,
    "beta": float,
    "label_rate": float,
    "seed": int,
    "partition_seed": int,
    "mask_seed": int,
    "file": str,
}
RUN: dict[str, type] = {"projection_seed": int, "gram_error": bool, "seconds_per_row": float}
SINGLE = ("gram_error", "seconds_per_row")
BUDGETS: dict[str, type] = {"bytes": float, "seconds": float, "drift": float}
NEEDED: dict[str, tuple[str, ...]] = {
    "tasks": (),
    "clients": ("natural",),
    "beta": ("natural", "iid"),
}
"""Settings of a stream, and the partitioners that do without."""
METHOD_OWN = ("key", "label", "only")
LARGEST_SWEEP = 100_000


@dataclass(frozen=True)
class MethodChoice:
    """One method with its settings (lists already taken apart) and its name in tables."""

    key: str
    params: Mapping[str, Any]
    label: str
    only: Mapping[str, Any] = field(default_factory=dict)
    """Stream settings under which it runs; empty: under all."""

    def runs_on(self, stream: Mapping[str, Any]) -> bool:
        """Whether it is to run on a stream of these settings."""
        return all(stream.get(k) in _listed(v) for k, v in self.only.items())


@dataclass(frozen=True)
class Experiment:
    """A configuration, complete and checked."""

    name: str
    study: str
    """What its runs are for, one of ``STUDIES``."""
    source: str
    """The file it came from, as given."""
    datasets: tuple[str, ...]
    streams: tuple[Mapping[str, Any], ...]
    """One mapping of settings a stream: the lists of [stream] multiplied out."""
    methods: tuple[MethodChoice, ...]
    projection_seeds: tuple[int, ...] = (0,)
    gram_error: bool = False
    seconds_per_row: float | None = None
    """The backbone's forward pass, where the dataset does not know it."""
    budgets: Mapping[str, float] = field(default_factory=dict)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read a TOML file, apply ``key=value`` overrides, check everything."""
    path = Path(path)
    fields = read_toml(path, "a configuration")
    for text in overrides:
        override(fields, text)
    try:
        return parse_config(fields, _as_named(path))
    except ValueError as reason:
        raise ValueError(f"{path}: {reason}") from None


def _as_named(path: Path) -> str:
    """Relative to here where it lies here: results are read on other machines."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.name


def parse_config(fields: Mapping[str, Any], source: str = "") -> Experiment:
    """An experiment from plain values; every error names the key and the nearest right one."""
    _known(fields, TOP, "the configuration")
    for name in ("dataset", "method"):
        if name not in fields:
            raise ValueError(f"expected a key {name!r}, found {', '.join(fields) or 'nothing'}")
    stream = _section(fields, "stream", STREAM)
    options = _section(fields, "run", RUN)
    budgets = _section(fields, "budgets", BUDGETS)
    single = {f"run.{k}": options.get(k) for k in SINGLE} | {
        f"budgets.{k}": v for k, v in budgets.items()
    }
    for name, value in single.items():
        if isinstance(value, list):
            raise ValueError(f"{name} takes one value, not a list")
        if value is not None and not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be finite and at least 0, got {value}")
    streams = tuple(_streams(stream))
    methods = tuple(_methods(fields["method"]))
    for choice in methods:
        if not any(choice.runs_on(s) for s in streams):
            raise ValueError(f"method {choice.key!r} runs on no stream: only = {dict(choice.only)}")
    return Experiment(
        name=_text(fields.get("name", Path(source).stem or "experiment"), "name"),
        study=_study(fields.get("study", DEFAULT_STUDY)),
        source=source,
        datasets=tuple(_text(d, "dataset") for d in _filled(fields["dataset"], "dataset")),
        streams=streams,
        methods=methods,
        projection_seeds=tuple(_filled(options.get("projection_seed", 0), "run.projection_seed")),
        gram_error=options.get("gram_error", False),
        seconds_per_row=options.get("seconds_per_row"),
        budgets={k: float(v) for k, v in budgets.items()},
    )


def _streams(stream: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "file" in stream:
        if len(stream) > 1:
            raise ValueError("stream.file stands alone: the file fixes tasks, clients and seeds")
        return [{"file": f} for f in _listed(stream["file"])]
    partitioner = _listed(stream.get("partitioner", "dirichlet"))
    for name in partitioner:
        if name not in PARTITIONERS:
            raise ValueError(
                f"stream.partitioner must be one of {', '.join(PARTITIONERS)}, "
                f"got {name!r}{nearest(name, PARTITIONERS)}"
            )
    complete = {"tasks": None, "seed": 1993, **stream, "partitioner": partitioner}
    for name, without in NEEDED.items():
        asking = [p for p in partitioner if p not in without]
        if complete.get(name) is None and asking:
            raise ValueError(f"expected stream.{name} for partitioner {asking[0]!r}")
    return list(_multiplied(complete))


def _methods(entries: Any) -> Iterable[MethodChoice]:
    require_methods(entries)
    if not entries:
        raise ValueError("expected at least one [[method]]")
    for entry in entries:
        key = entry.get("key")
        if key is None:
            raise ValueError(f"a [[method]] needs a key; one of {', '.join(METHODS)}")
        label = _text(entry.get("label", ""), "method.label") if "label" in entry else ""
        only = entry.get("only", {})
        if not isinstance(only, dict):
            raise ValueError(f"method.only is a table such as {{ beta = 0.1 }}, got {only!r}")
        _section({f"only of method {key!r}": only}, f"only of method {key!r}", STREAM)
        params = {k: v for k, v in entry.items() if k not in METHOD_OWN}
        for chosen in _multiplied(params):
            method = make_method(str(key), chosen)  # checks key, names and values
            yield MethodChoice(str(key), chosen, label or method.name, only)


def _multiplied(fields: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The cartesian product over all values that are lists."""
    names, choices = list(fields), [_listed(v) for v in fields.values()]
    size = 1
    for name, values in zip(names, choices, strict=True):
        if not values:
            raise ValueError(f"{name} is an empty list; expected a value or a list of values")
        size *= len(values)
    if size > LARGEST_SWEEP:
        raise ValueError(f"the sweep has {size} combinations; at most {LARGEST_SWEEP}")
    for combination in product(*choices):
        yield dict(zip(names, combination, strict=True))


def _section(fields: Mapping[str, Any], name: str, types: Mapping[str, type]) -> dict[str, Any]:
    section = fields.get(name, {})
    if not isinstance(section, dict):
        raise ValueError(f"[{name}] must be a section, got {printable(section)}")
    _known(section, types, f"[{name}]" if name in TOP else name)
    for key, value in section.items():
        for item in _listed(value):
            right = types[key]
            fits = isinstance(item, (int, float) if right is float else right)
            if not fits or (isinstance(item, bool) and right is not bool):
                raise ValueError(f"{name}.{key} must be {_article(right)}, got {printable(item)}")
    return dict(section)


def _known(fields: Iterable[str], names: Iterable[str], where: str) -> None:
    for key in fields:
        if key not in names:
            listed = ", ".join(names)
            raise ValueError(f"{where} has no key {key!r}{nearest(key, names)}; it has {listed}")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be text, got {printable(value)}")
    if not value.isprintable():
        raise ValueError(f"{name} must be text in one line, got {printable(value)}")
    return value


def _study(value: Any) -> str:
    require_study(_text(value, "study"))
    return str(value)


def _filled(value: Any, name: str) -> list[Any]:
    if not _listed(value):
        raise ValueError(f"{name} is an empty list; expected a value or a list of values")
    return _listed(value)


def _article(kind: type) -> str:
    return {int: "an integer", float: "a number", str: "text", bool: "true or false"}[kind]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
