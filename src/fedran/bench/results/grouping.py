"""Groups of results: comparable settings, repeats over seeds, means and spreads, ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fedran.bench.results.metrics import (
    formula_upload,
    is_fine_tuned,
    is_head,
    is_prompted,
    is_trained,
)
from fedran.bench.results.result import ABLATIONS, Result
from fedran.data.catalogue import dataset_title

Mark = Literal["", "best", "second"]
_ACCOMPANYING = ("training", "runtime", "speedup")
"""Studies in which a method may run for another purpose than its accuracy; best first."""
_PHRASES: dict[str, str] = {
    "bits": "{} bits",
    "components": "{} components",
    "covariance": "{}",
    "kind": "{}",
    "group_size": "groups of {}",
    "min_group": "at least {}",
    "n_rounds": "{} rounds",
    "out_features": "M = {}",
    "rank": "r = {}",
    "task0": "fine-tuned in task 0",
}


@dataclass(frozen=True)
class Setting:
    """What must be equal for two results to be comparable, apart from beta."""

    dataset: str
    tasks: int
    clients: int
    partitioner: str
    label_rate: float

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
        )

    @property
    def frame(self) -> str:
        """All settings except the dataset, as text.

        >>> Setting("digits", 5, 10, "dirichlet", 0.2).frame
        '5 tasks, 10 clients, dirichlet split, 20 % labelled'
        """
        labels = "" if self.label_rate >= 1 else f", {100 * self.label_rate:g} % labelled"
        sizes = f"{counted(self.tasks, 'task')}, {counted(self.clients, 'client')}"
        return f"{sizes}, {self.partitioner} split{labels}"

    @property
    def title(self) -> str:
        """The title of the dataset, and the settings as text."""
        return f"{dataset_title(self.dataset)}: {self.frame}"

    @property
    def key(self) -> str:
        """The name of the dataset, and the settings as text, for files that programs read."""
        return f"{self.dataset}: {self.frame}"


class Case(NamedTuple):
    """A setting and the skew of its split: what methods are compared at."""

    setting: Setting
    beta: float | None

    @property
    def title(self) -> str:
        """The setting and its beta as text."""
        return self.setting.title + self._skew

    @property
    def key(self) -> str:
        """The same with the name of the dataset, for files that programs read."""
        return self.setting.key + self._skew

    @property
    def _skew(self) -> str:
        return "" if self.beta is None else f", β = {self.beta:g}"


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation over the seeds. A single value has no spread."""

    mean: float
    spread: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Stat:
        """Mean and spread of at least one value.

        >>> Stat.of([1.0, 3.0])
        Stat(mean=2.0, spread=1.4142135623730951, n=2)
        """
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), spread, len(values))


@dataclass(frozen=True)
class Group:
    """The repeats of one method at one setting and beta. They differ only in their seeds."""

    name: str
    """Name in tables: the label and, if several methods share it, the settings that differ."""
    setting: Setting
    beta: float | None
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

    @property
    def A_avg(self) -> Stat:
        """Mean over tasks of the accuracy in percent."""
        return Stat.of([r.A_avg for r in self.results])

    @property
    def A_T(self) -> Stat:
        """Accuracy after the last task in percent."""
        return Stat.of([r.A_T for r in self.results])

    @property
    def largest_upload(self) -> int:
        """The largest upload of any client, task and seed, in bytes."""
        return max(r.max_upload for r in self.results)

    @property
    def largest_formula(self) -> int | None:
        """The largest upload by the formula of the method's paper, in bytes."""
        return max((f for r in self.results if (f := formula_upload(r)) is not None), default=None)

    def stat(self, measure: Callable[[Result], float | None]) -> Stat | None:
        """Mean and spread of a measure over the seeds that have it; None if none has."""
        found = [v for r in self.results if (v := measure(r)) is not None]
        return Stat.of(found) if found else None

    def mean(self, measure: Callable[[Result], float | None]) -> float | None:
        """Mean of a measure over the seeds that have it; None if none has."""
        found = self.stat(measure)
        return None if found is None else found.mean


def counted(n: int, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"


def without_ablations(results: Iterable[Result]) -> list[Result]:
    """All results except those of ablations."""
    return [r for r in results if r.study not in ABLATIONS]


def comparisons(results: Iterable[Result]) -> list[Result]:
    """The results that compare methods, without the ablations.

    A run that only accompanies another study (a method beside the trained ones, a run for its
    seconds, a speed-up with fewer rounds) counts where the method has no better run at the same
    setting.
    """

    def method(r: Result) -> tuple[Setting, str, str]:
        return Setting.of(r), r.key, r.label

    found = without_ablations(results)
    best: dict[tuple[Setting, str, str], int] = {}
    for r in found:
        best[method(r)] = min(best.get(method(r), len(_ACCOMPANYING)), _precedence(r))
    return [r for r in found if _precedence(r) == best[method(r)]]


def _precedence(r: Result) -> int:
    """How well a run represents its method: 0 for the studies that compare accuracy and bytes."""
    return _ACCOMPANYING.index(r.study) + 1 if r.study in _ACCOMPANYING else 0


def machine_of(result: Result) -> str:
    """The machine of a run, and how many runs shared it."""
    beside = result.side_by_side
    return (result.machine or "not recorded") + (
        f", {beside} runs side by side" if beside > 1 else ""
    )


def groups(results: Iterable[Result], by_machine: bool = False) -> list[Group]:
    """Results grouped over seeds by setting in order of appearance, with ranked methods first.

    Every seed counts once. If a run was made under two configurations or repeated with a newer
    version, only the newest result counts.
    """
    found: dict[tuple[Setting, float | None, str, str], dict[str, Result]] = {}
    for r in results:
        beta = None if r.stream.get("beta") is None else float(r.stream["beta"])
        repeats = (Setting.of(r), beta, identity(r), machine_of(r) if by_machine else "")
        runs, seeds = found.setdefault(repeats, {}), as_text(r.seeds)
        if seeds not in runs or runs[seeds].date <= r.date:
            runs[seeds] = r
    names = _names(found)
    made = [
        Group(names[setting, method], setting, beta, tuple(runs.values()))
        for (setting, beta, method, _), runs in found.items()
    ]
    settings = {setting: i for i, setting in enumerate(dict.fromkeys(g.setting for g in made))}
    return sorted(
        made, key=lambda g: (settings[g.setting], not g.competes, g.beta is None, g.beta or 0.0)
    )


def by_setting(found: Iterable[Group]) -> dict[Setting, list[Group]]:
    """The groups of each setting."""
    settings: dict[Setting, list[Group]] = {}
    for g in found:
        settings.setdefault(g.setting, []).append(g)
    return settings


def cases(results: Iterable[Result], by_machine: bool = False) -> dict[Case, list[Group]]:
    """The groups of each setting and beta, ordered by setting."""
    found: dict[Case, list[Group]] = {}
    for setting, members in by_setting(groups(results, by_machine)).items():
        for g in members:
            found.setdefault(Case(setting, g.beta), []).append(g)
    return found


def comparison_cases(results: Iterable[Result]) -> dict[Case, list[Group]]:
    """The groups of all comparisons of methods, by setting and beta."""
    return cases(comparisons(results))


def frozen_and_tuned(results: Iterable[Result]) -> list[tuple[Case, bool, list[Group]]]:
    """The methods of each case; for each setting first those on the frozen network."""
    found = comparison_cases(results)
    settings = list(dict.fromkeys(setting for setting, _ in found))
    parts = [
        (case, tuned, [g for g in members if is_fine_tuned(g.first) == tuned])
        for case, members in found.items()
        for tuned in (False, True)
    ]
    parts.sort(key=lambda part: (settings.index(part[0][0]), part[1]))
    return [part for part in parts if part[2]]


def group_of(key: str, found: Iterable[Group]) -> Group | None:
    """The first group of a method, not counting runs on a network fine-tuned in task 0."""
    return next((g for g in found if g.key == key and not is_fine_tuned(g.first)), None)


def is_ours(g: Group) -> bool:
    """Whether it is FedRAN: its messages, its variants, or its features without compression."""
    return g.key == "exact" or g.key.split("-")[0] == "fedran"


def row_order(g: Group) -> int:
    """Order of rows: ours, other analytic methods, heads, prompts, networks, those not ranked."""
    if not g.competes:
        return 5
    if not is_trained(g.first):
        return 0 if is_ours(g) else 1
    return 2 if is_head(g.first) else 3 if is_prompted(g.first) else 4


def marks(values: Sequence[float | None], competes: Sequence[bool]) -> list[Mark]:
    """Marks the largest and second largest values among the ranked methods.

    Values are compared as printed, so that equal texts get equal marks.

    >>> marks([90.0, 80.0, 90.001, 99.0], [True, True, True, False])
    ['best', 'second', 'best', '']
    """
    shown = [
        None if v is None or not c else round(v, 2) for v, c in zip(values, competes, strict=True)
    ]
    largest = sorted({v for v in shown if v is not None}, reverse=True)[:2]
    ranks: dict[float | None, Mark] = dict(zip(largest, ("best", "second"), strict=False))
    return [ranks.get(v, "") for v in shown]


def as_text(settings: object) -> str:
    """Canonical text of a setting or of several: equal settings give equal texts.

    >>> as_text({"b": 1, "a": None})
    '{"a": null, "b": 1}'
    """
    return json.dumps(settings, sort_keys=True, default=str)


def identity(result: Result) -> str:
    """Text of key, label and settings: equal for repeats of one method."""
    return as_text({"key": result.key, "label": result.label, "params": result.params})


def _names(
    found: dict[tuple[Setting, float | None, str, str], dict[str, Result]],
) -> dict[tuple[Setting, str], str]:
    """Names in tables. Methods with equal labels at one setting get the settings that differ."""
    alike: dict[tuple[Setting, str], dict[str, Result]] = {}
    for (setting, _, who, _), runs in found.items():
        first = next(iter(runs.values()))
        alike.setdefault((setting, first.label), {})[who] = first
    names = {}
    for (setting, label), members in alike.items():
        for who, r in members.items():
            names[setting, who] = label + _difference(r, list(members.values()))
    return names


def _difference(result: Result, others: Sequence[Result]) -> str:
    """The settings that distinguish a method from others with the same label.

    Training lengths are told apart by their rounds; what else differs is in the table of settings.

    >>> from types import SimpleNamespace as R
    >>> runs = [R(key="k", params={"rank": r, "width": 8}) for r in (16, 32)]
    >>> _difference(runs[0], runs)
    ', r = 16'
    """
    if len(others) == 1:
        return ""
    if len({r.params.get("n_rounds") for r in others}) == len(others):
        return f", {setting_phrase('n_rounds', result.params.get('n_rounds'))}"
    differ = [
        setting_phrase(k, v)
        for k, v in sorted(result.params.items())
        if len({as_text(r.params.get(k)) for r in others}) > 1
    ]
    if len({r.key for r in others}) > 1:
        differ.insert(0, result.key)
    return "".join(f", {text}" for text in differ if text)


def setting_phrase(setting: str, value: object) -> str:
    """A setting of a method in words; empty for the one that says nothing.

    >>> setting_phrase("group_size", 6), setting_phrase("components", 1), setting_phrase("lr", 0.1)
    ('groups of 6', '1 component', 'lr=0.1')
    >>> setting_phrase("min_group", 1)
    ''
    """
    if setting == "min_group" and value == 1:
        return ""
    text = _PHRASES.get(setting, setting + "={}").format(value)
    return text.removesuffix("s") if setting == "components" and value == 1 else text
