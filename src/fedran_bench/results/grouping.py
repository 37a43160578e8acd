"""Figures of a result, and groups of results: comparable settings, repeats over seeds, spreads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedran_bench.results.result import ABLATIONS, Result

_ACCOMPANYING = ("training", "runtime", "speedup")
"""Studies in which a method may run for another purpose than its accuracy; best first."""
ARRIVALS = {
    "classes": "",
    "domains": ", all classes of one person per task",
    "staggered": " at different tasks",
}
_PHRASES: dict[str, str] = {
    "bits": "{} bits",
    "components": "{} components",
    "covariance": "{}",
    "kind": "{}",
    "group_size": "groups of {}",
    "landmarks": "{} landmarks",
    "min_group": "at least {}",
    "n_rounds": "{} rounds",
    "out_features": "M = {}",
    "rank": "r = {}",
    "step": "step {:g}",
    "task0": "fine-tuned in task 0",
}


@dataclass(frozen=True)
class Setting:
    """What must be equal for two results to be comparable. ``beta`` is the skew of the split."""

    dataset: str
    tasks: int
    clients: int
    partitioner: str
    label_rate: float
    beta: float | None = None
    arrival: str = "classes"

    @classmethod
    def of(cls, result: Result) -> Setting:
        """The setting of one result."""
        stream = result.stream
        return cls(
            result.dataset,
            len(result.acc),
            int(stream.get("clients", len(result.tasks[0].bytes_up))),
            str(stream.get("partitioner", "dirichlet")),
            float(stream.get("label_rate") or 1.0),
            None if stream.get("beta") is None else float(stream["beta"]),
            str(stream.get("arrival", "classes")),
        )

    @property
    def any_beta(self) -> Setting:
        """The setting without its beta: what one section of a page shows."""
        return replace(self, beta=None)

    @property
    def frame(self) -> str:
        """All settings except the dataset, as text.

        >>> Setting("digits", 5, 10, "dirichlet", 0.2, 0.5).frame
        '5 tasks, 10 clients, dirichlet split, 20 % labelled, β = 0.5'
        """
        labels = "" if self.label_rate >= 1 else f", {100 * self.label_rate:g} % labelled"
        skew = "" if self.beta is None else f", β = {self.beta:g}"
        sizes = f"{counted(self.tasks, 'task')}, {counted(self.clients, 'client')}"
        return f"{sizes}{ARRIVALS[self.arrival]}, {self.partitioner} split{labels}{skew}"


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation over the seeds. A single value has no spread."""

    mean: float
    spread: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Stat:
        """Mean and spread of at least one value.

        >>> Stat.of([1.0, 3.0])
        Stat(mean=2.0, spread=1.4142135623730951)
        """
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), spread)


@dataclass(frozen=True)
class Group:
    """The repeats of one method at one setting. They differ only in their seeds."""

    name: str
    """Name in tables: the label and, if several methods share it, the settings that differ."""
    setting: Setting
    results: tuple[Result, ...]

    @property
    def first(self) -> Result:
        """The first result, for everything that the repeats share."""
        return self.results[0]

    @property
    def key(self) -> str:
        """The method's name in the registry."""
        return self.first.key

    @property
    def params(self) -> dict[str, Any]:
        """The method's settings."""
        return self.first.params

    @property
    def competes(self) -> bool:
        """Whether it is ranked. References and yardsticks are shown but not ranked."""
        return self.first.family in {"analytic", "trained"}

    @cached_property
    def A_avg(self) -> Stat:
        """Mean over tasks of the accuracy in percent."""
        return Stat.of([r.A_avg for r in self.results])

    @cached_property
    def A_T(self) -> Stat:
        """Accuracy after the last task in percent."""
        return Stat.of([r.A_T for r in self.results])

    @property
    def upload(self) -> int:
        """The largest upload of any client, task and seed, in bytes."""
        return max(r.max_upload for r in self.results)

    def stat(self, measure: Callable[[Result], float | None]) -> Stat | None:
        """Mean and spread of a measure over the seeds that have it; None if none has."""
        found = [v for r in self.results if (v := measure(r)) is not None]
        return Stat.of(found) if found else None


def counted(n: int, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"


def comparisons(results: Iterable[Result]) -> list[Result]:
    """The results that compare methods, without the ablations.

    A run that only accompanies another study (a method beside the trained ones, a run for its
    seconds, a speed-up with fewer rounds) counts where the method has no better run at the same
    setting.
    """

    def method(r: Result) -> tuple[Setting, str, str]:
        return Setting.of(r).any_beta, r.key, r.label

    def precedence(r: Result) -> int:
        return _ACCOMPANYING.index(r.study) + 1 if r.study in _ACCOMPANYING else 0

    found = [r for r in results if r.study not in ABLATIONS]
    best: dict[tuple[Setting, str, str], int] = {}
    for r in found:
        best[method(r)] = min(best.get(method(r), len(_ACCOMPANYING)), precedence(r))
    return [r for r in found if precedence(r) == best[method(r)]]


def groups(results: Iterable[Result]) -> list[Group]:
    """Results grouped over seeds, in order of appearance.

    Every seed counts once. If a run was made under two configurations or repeated with a newer
    version, only the newest result counts.
    """
    found: dict[tuple[Setting, str], dict[str, Result]] = {}
    for r in results:
        repeats = Setting.of(r), _as_text([r.key, r.label, r.params])
        seeds = _as_text(r.seeds)
        runs = found.setdefault(repeats, {})
        if seeds not in runs or runs[seeds].date <= r.date:
            runs[seeds] = r
    alike: dict[tuple[Setting, str], dict[str, Result]] = {}
    for (setting, who), runs in found.items():
        first = next(iter(runs.values()))
        alike.setdefault((setting.any_beta, first.label), {})[who] = first
    made = []
    for (setting, _), runs in found.items():
        first = next(iter(runs.values()))
        same = list(alike[setting.any_beta, first.label].values())
        made.append(Group(first.label + _difference(first, same), setting, tuple(runs.values())))
    return made


def by_setting(found: Iterable[Group]) -> dict[Setting, list[Group]]:
    """The groups of each setting; settings that differ only in beta follow each other."""
    order: dict[Setting, dict[Setting, list[Group]]] = {}
    for g in found:
        order.setdefault(g.setting.any_beta, {}).setdefault(g.setting, []).append(g)
    return {
        setting: betas[setting]
        for betas in order.values()
        for setting in sorted(betas, key=lambda s: (s.beta is None, s.beta or 0.0))
    }


def is_ours(g: Group) -> bool:
    """Whether it is FedRAN: its messages, its variants, or its features without compression."""
    return g.key == "exact" or g.key.split("-")[0] == "fedran"


def row_order(g: Group) -> int:
    """Order of rows: ours, other analytic methods, heads, prompts, networks, those not ranked."""
    if not g.competes:
        return 5
    return 0 if is_ours(g) else 1 + ("", "head", "prompts", "network").index(training(g.first))


def line_of(g: Group, *sizes: str) -> str:
    """Equal for the groups of one method that differ only in the named settings."""
    kept = {name: value for name, value in g.params.items() if name not in sizes}
    return _as_text([g.key, kept])


def _as_text(settings: object) -> str:
    """Canonical text: equal settings give equal texts."""
    return json.dumps(settings, sort_keys=True, default=str)


def _difference(result: Result, others: Sequence[Result]) -> str:
    """The settings that distinguish a method from others with the same label.

    Training lengths are told apart by their rounds.

    >>> from types import SimpleNamespace as R
    >>> runs = [R(key="k", params={"rank": r, "width": 8}) for r in (16, 32)]
    >>> _difference(runs[0], runs)
    ', r = 16'
    """
    if len(others) == 1:
        return ""
    if len({r.params.get("n_rounds") for r in others}) == len(others):
        return f", {_phrase('n_rounds', result.params.get('n_rounds'))}"
    differ = [
        _phrase(k, v)
        for k, v in sorted(result.params.items())
        if len({_as_text(r.params.get(k)) for r in others}) > 1
    ]
    if len({r.key for r in others}) > 1:
        differ.insert(0, result.key)
    return "".join(f", {text}" for text in differ)


def _phrase(setting: str, value: object) -> str:
    """A setting of a method in words.

    >>> _phrase("group_size", 6), _phrase("components", 1), _phrase("lr", 0.1)
    ('groups of 6', '1 component', 'lr=0.1')
    """
    if (setting, value) == ("landmarks", None):
        return "all points"
    text = _PHRASES.get(setting, setting + "={}").format(value)
    return text.removesuffix("s") if setting == "components" and value == 1 else text


PROMPTED = frozenset({"fed-dualprompt", "fed-codaprompt", "fed-cprompt", "pilora", "lorm"})
"""Methods that train prompts or LoRA matrices of a frozen ViT, and a classifier on it."""


def training(result: Result) -> Literal["", "head", "prompts", "network"]:
    """What was trained: a linear head on frozen features, prompts or LoRA matrices of a frozen ViT,
    or a whole network on images. Empty for methods without gradients.
    """
    if result.family != "trained":
        return ""
    if result.params.get("network") == "head":
        return "head"
    return "prompts" if result.key in PROMPTED else "network"


def is_fine_tuned(result: Result) -> bool:
    """Whether an analytic method ran on a network that was fine-tuned in task 0."""
    return "task0" in result.params


def forgetting(result: Result) -> float | None:
    """Best accuracy on a task before the end minus the final one, in points; None after one task.

    The mean over all tasks but the last.

    >>> import types
    >>> forgetting(types.SimpleNamespace(acc=[[0.9], [0.8, 0.7], [0.6, 0.7, 0.5]]))
    15.0
    """
    *before, last = result.acc
    lost = [max(row[j] for row in before[j:]) - last[j] for j in range(len(before))]
    return round(100.0 * float(np.mean(lost)), 9) if lost else None


def max_download(result: Result) -> int:
    """The largest download of any client in any task, including the last classifier."""
    return max(result.bytes_down_final, *(max(t.bytes_down) for t in result.tasks))


def formula_upload(result: Result) -> int | None:
    """The largest upload as the method's paper counts it."""
    counts = [t.formula_bytes for t in result.tasks if t.formula_bytes is not None]
    return max(counts) if counts else None


def client_seconds(result: Result) -> float:
    """Mean seconds of a client, over clients and tasks."""
    return float(np.mean([np.mean(t.seconds.client) for t in result.tasks]))


def server_seconds(result: Result) -> float:
    """Mean seconds of the server, over tasks."""
    return float(np.mean([t.seconds.server for t in result.tasks]))


def task_seconds(result: Result) -> float:
    """The paper's Time: mean over tasks of (mean client + server), without the forward pass."""
    return client_seconds(result) + server_seconds(result)
