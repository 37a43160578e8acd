"""Task streams: which classes arrive when, and which client holds which rows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.labels import Label, canonical, sort_key
from fedran.data.partition import Rows, dirichlet


@dataclass(frozen=True)
class Task:
    """The classes of one task and the training rows of each client."""

    classes: tuple[Label, ...]
    rows: tuple[Rows, ...]


@dataclass(frozen=True)
class Stream:
    """Tasks x clients over one dataset's training rows."""

    tasks: tuple[Task, ...]
    seeds: dict[str, int]

    @property
    def n_clients(self) -> int:
        """Clients in every task; some may hold no row."""
        return len(self.tasks[0].rows)

    def seen(self, task: int) -> tuple[Label, ...]:
        """All classes of the tasks 0 .. ``task``, in canonical order."""
        return tuple(sorted((c for t in self.tasks[: task + 1] for c in t.classes), key=sort_key))

    @property
    def hash(self) -> str:
        """SHA-256 over classes and rows: equal streams have equal hashes."""
        text = json.dumps([[list(t.classes), [r.tolist() for r in t.rows]] for t in self.tasks])
        return hashlib.sha256(text.encode()).hexdigest()


def make_stream(
    labels: NDArray[Any],
    *,
    n_tasks: int,
    n_clients: int,
    beta: float,
    seed: int,
    partition_seed: int | None = None,
) -> Stream:
    """A class-incremental stream: shuffled classes cut into tasks, rows dealt by Dirichlet.

    One generator draws the class order, and goes on to deal the rows class by class in that
    order; with ``partition_seed`` the dealing has a generator of its own, so that the same
    order can be combined with many partitions.

    >>> s = make_stream(np.repeat([0, 1, 2, 3], 5), n_tasks=2, n_clients=2, beta=1.0, seed=0)
    >>> [t.classes for t in s.tasks], sum(len(r) for t in s.tasks for r in t.rows)
    ([(2, 0), (1, 3)], 20)
    """
    classes = np.unique(labels)
    if not 1 <= n_tasks <= len(classes):
        raise ValueError(
            f"n_tasks must lie in 1 .. {len(classes)}, the number of classes, got {n_tasks}"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(classes))
    if partition_seed is not None:
        rng = np.random.default_rng(partition_seed)
    tasks = []
    for t in range(n_tasks):
        chosen = order[t * len(order) // n_tasks : (t + 1) * len(order) // n_tasks]
        dealt = [
            dirichlet(np.flatnonzero(labels == classes[c]), n_clients, beta, rng) for c in chosen
        ]
        rows = tuple(np.concatenate([part[k] for part in dealt]) for k in range(n_clients))
        tasks.append(Task(tuple(canonical(classes[c]) for c in chosen), rows))
    seeds = {"order": seed, "partition": seed if partition_seed is None else partition_seed}
    return Stream(tuple(tasks), seeds)
