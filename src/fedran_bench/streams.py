"""Task streams: which classes arrive when, which client holds which rows, which have labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.labels import Label, canonical, sort_key

Rows = NDArray[np.int64]
Partitioner = Callable[[Sequence[Rows], np.random.Generator], list[Rows]]
"""(rows of each class, generator) -> rows of each client."""


def dirichlet(
    rows_of_classes: Sequence[Rows], n_clients: int, beta: float, rng: np.random.Generator
) -> list[Rows]:
    """Split each class, shuffled, in shares p ~ Dirichlet(beta, ..., beta).

    The smaller beta, the fewer clients hold a class. Cumulative shares are rounded down to rows.
    Client sizes are not balanced: a client may hold most rows of a task, or none.

    >>> parts = dirichlet([np.arange(10)], 3, beta=0.5, rng=np.random.default_rng(0))
    >>> sorted(np.concatenate(parts).tolist()) == list(range(10))
    True
    """
    split = []
    for rows in rows_of_classes:
        shuffled = rng.permutation(rows)
        shares = rng.dirichlet([beta] * n_clients)
        split.append(np.split(shuffled, (np.cumsum(shares) * len(rows)).astype(int)[:-1]))
    empty = np.zeros(0, dtype=np.int64)
    return [np.concatenate([empty, *(parts[k] for parts in split)]) for k in range(n_clients)]


def iid(rows_of_classes: Sequence[Rows], n_clients: int, rng: np.random.Generator) -> list[Rows]:
    """Shuffle all rows of the task and split them evenly. Sizes differ by at most one.

    >>> [len(p) for p in iid([np.arange(5), np.arange(5, 8)], 3, np.random.default_rng(0))]
    [3, 3, 2]
    """
    shuffled = rng.permutation(np.concatenate([*rows_of_classes, np.zeros(0, dtype=np.int64)]))
    return np.array_split(shuffled, n_clients)


def natural(rows_of_classes: Sequence[Rows], groups: NDArray[Any]) -> list[Rows]:
    """One client per group (subject, site, device), in sorted order of the groups' names.

    >>> natural([np.array([0, 1]), np.array([2, 3])], np.array(["b", "a", "a", "b"]))
    [array([1, 2]), array([0, 3])]
    """
    if groups.dtype.kind == "f" and np.isnan(groups).any():
        raise ValueError("partitioner 'natural' needs a group for every row, got NaN")
    rows = np.concatenate([*rows_of_classes, np.zeros(0, dtype=np.int64)])
    return [rows[groups[rows] == g] for g in np.unique(groups)]


PARTITIONERS = ("dirichlet", "iid", "natural")
ARRIVALS = ("classes", "domains", "staggered")
LAG = 3
"""Of a staggered stream: client k works on the tasks k modulo LAG steps later than client 0."""


@dataclass(frozen=True, eq=False)
class Task:
    """The classes of one task and the training rows of each client."""

    classes: tuple[Label, ...]
    """Those that no earlier task had. Later domains have none, nor clients that come late."""
    rows: tuple[Rows, ...]
    labelled: tuple[NDArray[np.bool_], ...] = ()
    """Masks of each client's rows that have a label; empty if all rows have one."""

    def has_label(self, client: int) -> NDArray[np.bool_]:
        """Mask of one client's rows that have a label."""
        return self.labelled[client] if self.labelled else np.ones(len(self.rows[client]), bool)


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks x clients over one dataset's training rows."""

    tasks: tuple[Task, ...]
    seeds: dict[str, int]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How the stream was made: tasks, clients, partitioner, beta, label_rate."""

    @property
    def n_clients(self) -> int:
        """Number of clients in every task. Some may hold no row."""
        return len(self.tasks[0].rows)

    def seen(self, task: int) -> tuple[Label, ...]:
        """All classes of the tasks 0 .. ``task``, in canonical order."""
        return tuple(sorted((c for t in self.tasks[: task + 1] for c in t.classes), key=sort_key))

    @cached_property
    def hash(self) -> str:
        """SHA-256 over classes, rows and masks: equal streams have equal hashes."""
        text = json.dumps(
            [
                [list(t.classes), [r.tolist() for r in t.rows], [m.tolist() for m in t.labelled]]
                for t in self.tasks
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()


def make_stream(
    labels: NDArray[Any],
    *,
    n_tasks: int | None = None,
    n_clients: int | None = None,
    beta: float | None = None,
    seed: int,
    partitioner: str = "dirichlet",
    label_rate: float = 1.0,
    groups: NDArray[Any] | None = None,
    arrival: str = "classes",
) -> Stream:
    """A class-incremental stream: shuffled classes are split into tasks, rows over clients.

    Without ``n_tasks`` there are 5 tasks, or one per class where there are fewer classes.

    ``seed`` draws the class order. The same generator then partitions the rows, class by class in
    that order. A generator of its own draws which rows keep their label, each with probability
    ``label_rate``. Rows labelled at a smaller rate are also labelled at a larger one. The
    partitioner ``natural`` takes its clients from ``groups`` (one entry per row) instead of
    ``n_clients``.

    With the arrival ``domains`` every task has the rows of one of the ``groups``, in shuffled
    order, of all classes. With ``staggered`` the clients are at different tasks at the same time.

    >>> s = make_stream(np.repeat([0, 1, 2, 3], 5), n_tasks=2, n_clients=2, beta=1.0, seed=0)
    >>> [t.classes for t in s.tasks], sum(len(r) for t in s.tasks for r in t.rows)
    ([(2, 0), (1, 3)], 20)
    """
    classes = np.unique(labels)
    if n_tasks is None:
        n_tasks = min(len(classes), 5)
    if not 1 <= n_tasks <= len(classes):
        raise ValueError(
            f"n_tasks must lie in 1 .. {len(classes)}, the number of classes, got {n_tasks}"
        )
    if not 0 < label_rate <= 1:
        raise ValueError(f"label_rate must lie in (0, 1], got {label_rate!r}")
    if arrival not in ARRIVALS or (arrival == "domains" and groups is None):
        known = f"one of {', '.join(ARRIVALS)}, and groups for domains"
        raise ValueError(f"arrival must be {known}, got {arrival!r} and groups {groups}")
    partition = _partitioner(partitioner, n_clients, beta, groups, len(labels))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(classes))
    everyone = np.ones(len(labels), dtype=bool)
    parts = [
        (chosen, everyone)
        for chosen in np.split(order, np.arange(1, n_tasks) * len(order) // n_tasks)
    ]
    if arrival == "domains" and groups is not None:
        parts = [(order, groups == g) for g in rng.permutation(np.unique(groups))]
    rows = [
        partition([np.flatnonzero((labels == classes[c]) & mask) for c in chosen], rng)
        for chosen, mask in parts
    ]
    if arrival == "staggered":
        none = [[np.zeros(0, dtype=np.int64)] * len(rows[0])] * (LAG - 1)
        late = [*none, *rows, *none]
        rows = [
            [late[t + LAG - 1 - k % LAG][k] for k in range(len(rows[0]))]
            for t in range(len(rows) + LAG - 1)
        ]
    tasks: list[Task] = []
    seen: set[Any] = set()
    for t, own in enumerate(rows):
        new = set(np.unique(labels[np.concatenate(own)])) - seen
        seen |= new
        names = tuple(canonical(classes[c]) for c in order if classes[c] in new)
        draw = np.random.default_rng([seed, t]).random
        masks = [draw(len(r)) < label_rate for r in own] if label_rate < 1 else []
        tasks.append(Task(names, tuple(own), tuple(masks)))
    settings = {
        "tasks": len(tasks),
        "clients": len(tasks[0].rows),
        "partitioner": partitioner,
        "beta": beta if partitioner == "dirichlet" else None,
        "label_rate": label_rate,
    }
    if arrival != "classes":
        settings["arrival"] = arrival
    return Stream(tuple(tasks), dict.fromkeys(("order", "partition", "mask"), seed), settings)


def _partitioner(
    name: str, n_clients: int | None, beta: float | None, groups: NDArray[Any] | None, n_rows: int
) -> Partitioner:
    if name == "natural":
        if groups is None or len(groups) != n_rows:
            got = "none" if groups is None else f"{len(groups)} for {n_rows} rows"
            raise ValueError(f"partitioner 'natural' needs a group for every row, got {got}")
        return lambda rows, _: natural(rows, groups)
    if name not in PARTITIONERS:
        raise ValueError(f"partitioner must be one of {', '.join(PARTITIONERS)}, got {name!r}")
    if n_clients is None or n_clients < 1:
        raise ValueError(f"partitioner {name!r} needs clients, at least 1, got {n_clients}")
    if name == "iid":
        return lambda rows, rng: iid(rows, n_clients, rng)
    if beta is None or not (np.isfinite(beta) and beta > 0):
        raise ValueError(f"partitioner {name!r} needs beta, positive and finite, got {beta}")
    return lambda rows, rng: dirichlet(rows, n_clients, beta, rng)
