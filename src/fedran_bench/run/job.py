"""One run described by its settings: it can be listed, compared and sent to another process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedran.data.catalogue import load_dataset
from fedran_bench.methods.registry import make_method
from fedran_bench.run.config import LARGEST_SWEEP, Experiment, MethodChoice, dataset_name
from fedran_bench.run.runner import PreparedJob
from fedran_bench.streams import Stream, make_stream

Pairs = tuple[tuple[str, Any], ...]
"""Settings of a stream that can be hashed."""


@dataclass(frozen=True, eq=False)
class Job:
    """One dataset, stream and method of an experiment."""

    experiment: Experiment
    dataset: str
    stream: Pairs
    choice: MethodChoice
    device: str | None

    def __str__(self) -> str:
        plain = {k: v for k, v in self.choice.params.items() if k != "task0"}
        plain |= self.choice.params.get("task0", {})
        params = "".join(f", {k.replace('_', ' ')} {v}" for k, v in plain.items())
        place = f"{dataset_name(self.dataset)} ({_shown(self.stream)})"
        return f"{self.choice.label}{params} on {place}"

    def prepare(self) -> PreparedJob:
        """Load the dataset and make stream and method."""
        return PreparedJob(
            self.choice.key,
            make_method(self.choice.key, self.choice.params, self.device),
            _dataset(self.dataset, self.experiment.label_column),
            _made_stream(self.dataset, self.experiment.label_column, self.stream),
            label=self.choice.label,
            study=self.experiment.study,
            config=self.experiment.source,
            arguments=self.experiment.arguments,
        )


def jobs(experiment: Experiment, device: str | None = None) -> list[Job]:
    """Every combination of dataset, stream and method, in that order."""
    found = [
        Job(experiment, name, tuple(settings.items()), choice, device)
        for name in experiment.datasets
        for settings in experiment.streams
        for choice in experiment.methods
        if choice.runs_on(settings)
    ]
    if len(found) > LARGEST_SWEEP:
        raise ValueError(f"the sweep has {len(found)} runs; at most {LARGEST_SWEEP}")
    return found


_dataset = lru_cache(maxsize=2)(load_dataset)


def clear_data_cache() -> None:
    """Release the datasets and streams that ``prepare`` keeps for further jobs."""
    _dataset.cache_clear()
    _made_stream.cache_clear()


@lru_cache(maxsize=16)
def _made_stream(dataset: str, label: str, settings: Pairs) -> Stream:
    data, options = _dataset(dataset, label), dict(settings)
    return make_stream(
        data.y_train,
        n_tasks=options.pop("tasks"),
        n_clients=options.pop("clients", None),
        groups=data.groups,
        **options,
    )


def _shown(settings: Pairs) -> str:
    """The settings of a stream as text.

    >>> _shown((("tasks", 5), ("partitioner", "iid"), ("label_rate", 0.2), ("seed", 7)))
    '5 tasks, iid, label rate 0.2, seed 7'
    """
    forms = {"tasks": "{1} tasks", "clients": "{1} clients", "partitioner": "{1}"}
    return ", ".join(
        forms.get(name, "{0} {1}").format(name.replace("_", " "), value)
        for name, value in settings
        if value not in (None, "dirichlet")
    )
