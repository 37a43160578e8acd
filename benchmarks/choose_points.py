"""Choose the constants of points and kernel heads on held-out training rows.

    FEDRAN_DATA=... python benchmarks/choose_points.py measure [--device cuda] [--only TEXT]
                                                               [--rows 10000]
    python benchmarks/choose_points.py fit

A fifth of the training rows of every class is held out. The rest is divided among tasks and clients
as in the reported streams, with other seeds. Every client sends its message in every task, and the
server solves once from all of them. ``measure`` writes the accuracy on the held-out rows and by
leave-one-out to results/points_constants.ndjson, and ``fit`` writes the tables. All points of
40,000 rows as support take a GPU; ``--rows`` takes a part of the rows of each class instead.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np

import fedran
from choosing import Line, Lines, main, split, training_rows
from fedran.core._linalg import ward
from fedran.core._linalg.arrays import like, to_device, to_numpy
from fedran.core.points import Points, condense, join
from fedran.core.solve import kernel_ridge
from fedran.core.solve.landmarks import GRID, landmarks
from fedran_bench.results.result import dataset_title
from fedran_bench.streams import make_stream

DATASETS = {
    "vtab50-vit_ti16": ("cosine", 5),
    "vtab50-resnet18": ("hellinger", 5),
    "vtab50-efficientnet_lite0": ("hellinger", 5),
    "clinc150-minilm": ("cosine", 5),
    "cifar100-vit_ti16": ("cosine", 10),
    "cifar100-resnet18": ("hellinger", 5),
    "cifar100-efficientnet_lite0": ("hellinger", 5),
}
"""Kind and number of tasks of each; small ones first."""
LARGE = 10_000
"""Rows of a dataset from which landmarks are measured, and on one stream instead of two."""
STREAM_SEEDS = (101, 202)
"""None of the seeds of the reported streams."""
FACTORS = (0.25, 0.3, 0.35, 0.4, 0.5, 0.6)
GRIDS = (0.125, 0.25, 0.5, 1.0)
STEPS = (0.7, 1.0, 1.5, 2.0, 3.0)
SHRINKAGES = (1.0, 3.0, 10.0)
LANDMARKS = (2048, 4096, 8192)
"""A quarter of them with ``--rows``, so that they are about as large a share of the points."""
GROUPS = ((1, 1), (5, 1), (5, 5), (2, 1), (3, 1), (8, 1), (12, 5), (20, 10))
"""Mean and least rows of a group."""


@dataclass(frozen=True)
class Case:
    """One message on one stream, and one way to solve."""

    dataset: str
    seed: int = STREAM_SEEDS[0]
    group_size: int = 1
    min_group: int = 1
    step: float = 1.0
    landmarks: int | None = None
    support: str = "ward"
    """How landmarks are made: ``ward``, ``kmeans`` or ``random`` (points)."""
    factor: float = kernel_ridge.SCALE_FACTOR
    grid: float = GRID
    ridge: float | None = None
    shrinkage: float | None = None
    """Of the within-class covariance, in its mean eigenvalues; None: no metric."""
    rows: int | None = None
    """Training rows that are used; None: all."""
    grouping: str | None = None
    """How clients make groups: ``kmeans``; None: by Ward's method."""

    @property
    def message(self) -> Case:
        """What the clients send: the case without what the server does."""
        return replace(Case(self.dataset), **{name: getattr(self, name) for name in SENT})


SENT = ("seed", "group_size", "min_group", "step", "rows", "grouping")


def cases(dataset: str, most: int | None = None) -> Iterator[Case]:
    """Every case of a dataset. Cases with the same message follow each other."""
    n = len(training_rows(dataset)[1])
    large = n > LARGE
    for seed in STREAM_SEEDS[: 1 if large else 2]:
        every = Case(dataset, seed, rows=most if most is not None and n > most else None)
        few = LANDMARKS if every.rows is None else [m // 4 for m in LANDMARKS]
        supports = [replace(every, landmarks=few[1]), every] if large else [every]
        if every.rows is not None:
            yield from fewer(every, few[1])
            continue
        yield from supports
        yield from (replace(c, factor=f) for c in supports for f in FACTORS)
        yield from (replace(c, grid=g) for c in supports for g in GRIDS)
        yield from (replace(every, ridge=r) for r in kernel_ridge.RIDGES)
        yield from (replace(every, shrinkage=s) for s in SHRINKAGES)
        if large:
            yield from (
                replace(every, landmarks=m, support=s) for m, s in itertools.product(few, SUPPORTS)
            )
        for size, least in GROUPS:
            grouped = replace(every, group_size=size, min_group=least)
            yield from (replace(grouped, step=s) for s in steps(size, least))
            if size == 5:
                yield replace(grouped, grouping="kmeans")
                yield from (replace(grouped, factor=f) for f in FACTORS)
                yield from (replace(grouped, ridge=r) for r in kernel_ridge.RIDGES)


def fewer(every: Case, landmarks: int) -> Iterator[Case]:
    """The cases of a dataset of which a part of the rows is used: those that decide a constant."""
    five = replace(every, group_size=5)
    least = replace(five, min_group=5)
    yield from (replace(case, grouping="kmeans") for case in (least, five))
    for case in (least, five, every):
        yield from (replace(case, factor=f) for f in FACTORS)
    yield from (replace(five, step=s) for s in STEPS)
    yield from (replace(every, landmarks=landmarks, support=s) for s in SUPPORTS)
    yield from (replace(every, grid=g) for g in GRIDS)
    yield from (replace(every, step=s) for s in STEPS)


def steps(size: int, least: int) -> tuple[float, ...]:
    """The steps of the quantiser that are tried with groups of a size."""
    return STEPS if size <= 5 and least == 1 else (1.0, 1.5)


@functools.cache
def federation(dataset: str, seed: int, most: int | None) -> tuple[Any, ...]:
    """Prepared rows and labels of every client and task; held-out rows and their labels."""
    X, y = training_rows(dataset)
    if most is not None:
        used = split(y, most / len(y))[1]
        X, y = X[used], y[used]
    kind, tasks = DATASETS[dataset]
    rows = fedran.KernelFeatures(X.shape[1], kind=kind)(X)
    train, held_out = split(y)
    stream = make_stream(y[train], n_tasks=tasks, n_clients=5, beta=0.1, seed=seed)
    parts = [(rows[train[r]], y[train[r]]) for task in stream.tasks for r in task.rows]
    return parts, rows[held_out], y[held_out]


def sent(case: Case) -> tuple[int, Points]:
    """The bytes of the largest upload, and the points of all uploads as the server decodes them."""
    grouped = kmeans_groups if case.grouping == "kmeans" else ward.group_rows
    with patch("fedran.core.points.group_rows", grouped):
        blobs = [
            fedran.encode(condense(X, y.tolist(), case.group_size, case.min_group), step=case.step)
            for X, y in federation(case.dataset, case.seed, case.rows)[0]
        ]
    return max(map(len, blobs)), join([fedran.decode(blob, Points) for blob in blobs])


def random_points(points: kernel_ridge.Labelled, most: int) -> Any:
    """Random points of every class, in proportion."""
    if len(points) <= most:
        return points.X
    rng, share = np.random.default_rng(0), most / len(points)
    rows = [np.flatnonzero(points.codes == c) for c in range(points.n_classes)]
    chosen = [rng.permutation(r)[: max(1, int(share * len(r)))] for r in rows if len(r)]
    return points.X[like(np.sort(np.concatenate(chosen)), points.X)]


def lloyd(X: np.ndarray, weights: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """k means by Lloyd's iteration, from random rows, and the number of the nearest mean."""
    means = X[np.random.default_rng(0).permutation(len(X))[:k]]
    for _ in range(15):
        nearest = np.argmax(2 * X @ means.T - np.sum(means**2, axis=1), axis=1)
        of_mean = np.eye(len(means), dtype=np.float32)[nearest] * weights[:, None]
        total = of_mean.sum(axis=0)[:, None]
        means = np.where(total > 0, of_mean.T @ X / np.maximum(total, 1e-9), means)
    return means, nearest


def kmeans_means(points: kernel_ridge.Labelled, most: int) -> Any:
    """Class-wise k-means."""
    if len(points) <= most:
        return points.X
    share, found = most / len(points), []
    for c in np.unique(points.codes):
        rows = np.flatnonzero(points.codes == c)
        X = to_numpy(points.X[like(rows, points.X)]).astype(np.float32)
        weights = points.counts[rows].astype(np.float32)
        found.append(lloyd(X, weights, max(1, int(share * len(X))))[0])
    return like(np.concatenate(found), points.X)


def kmeans_groups(X: np.ndarray, group_size: int, min_group: int) -> np.ndarray:
    """Groups by k-means. Small ones join others as Ward's do."""
    k = max(1, round(len(X) / group_size))
    nearest = lloyd(X, np.ones(len(X), np.float32), k)[1]
    groups = np.unique(nearest, return_inverse=True)[1]
    return ward._merge_small(ward.exact_products(X), groups, min_group)


SUPPORTS = {"ward": landmarks, "kmeans": kmeans_means, "random": random_points}


made_before: dict[Any, np.ndarray] = {}
"""Landmarks do not depend on scale, grid and ridge."""


@contextmanager
def constants(case: Case) -> Iterator[None]:
    """The solver with the constants of a case."""

    def made(points: kernel_ridge.Labelled, most: int) -> Any:
        key = case.message, case.shrinkage, case.support, most, len(points)
        if key not in made_before:
            made_before[key] = to_numpy(SUPPORTS[case.support](points, most))
        return like(made_before[key], points.X)

    with (
        patch.object(kernel_ridge, "SCALE_FACTOR", case.factor),
        patch("fedran.core.solve.landmarks.GRID", case.grid),
        patch.object(kernel_ridge, "landmarks", made),
    ):
        yield


def metric(points: Points, shrinkage: float) -> np.ndarray:
    """(S + shrinkage mean(eigenvalues) I)^(-1/2) for the within-class covariance S."""
    X, n = to_numpy(points.means).astype(np.float64), points.counts[:, None]
    for c in range(len(points.classes)):
        of_class = points.codes == c
        X[of_class] -= np.average(X[of_class], axis=0, weights=points.counts[of_class])
    values, vectors = np.linalg.eigh((X * n).T @ X / n.sum())
    roots = np.sqrt(values + shrinkage * values.mean())
    return np.asarray((vectors / roots) @ vectors.T, dtype=np.float32)


def in_metric(X: Any, M: Any) -> Any:
    """Rows in the metric, of unit norm."""
    X = X @ M
    return X / np.sqrt(np.sum(X**2, axis=1, keepdims=True))


def accuracy(case: Case, largest: int, points: Points, device: str | None) -> Line:
    """What the server's head gets right, and what it says itself."""
    _, X, y = federation(case.dataset, case.seed, case.rows)
    if case.shrinkage is not None:
        M = metric(points, case.shrinkage)
        X, points = in_metric(X, M), replace(points, means=in_metric(points.means, M))
    server = fedran.Aggregator(device=device)
    server.absorb(points, client="all", task="all")
    start = time.perf_counter()
    with constants(case):
        head = server.solve(case.ridge, landmarks=case.landmarks)
    seconds = time.perf_counter() - start
    right = np.array(
        [label == c for label, c in zip(head.predict(to_device(X, device)), y, strict=True)]
    )
    return {
        "accuracy": round(100 * float(right.mean()), 3),
        "left_out": round(100 * (head.diagnosis.agreement or 0.0), 3),
        "lam": head.diagnosis.lam,
        "points": len(points.counts),
        "MiB": round(largest / 2**20, 4),
        "seconds": round(seconds, 2),
    }


def measure(lines: Lines, args: argparse.Namespace) -> None:
    """Messages are made by other processes while the server solves."""
    wanted = [name for name in DATASETS if any(text in name for text in args.only.split(","))]
    found = itertools.chain.from_iterable(cases(name, args.rows) for name in wanted)
    todo = [c for c in dict.fromkeys(found) if not lines.has(asdict(c))]
    workers = args.workers or max(1, (os.cpu_count() or 2) - 2)
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=one_thread) as pool:
        made: dict[Any, Future[tuple[int, Points]]] = {}
        for case in todo:
            if case.message not in made:
                made[case.message] = pool.submit(sent, case.message)
        for i, case in enumerate(todo):
            found = accuracy(case, *made[case.message].result(), args.device)
            lines.add({**asdict(case), **found, "device": args.device, "date": today()})
            changed = {k: v for k, v in asdict(case).items() if v != getattr(Case(""), k)}
            print(f"{i + 1}/{len(todo)}", *changed.values(), found, flush=True)
            if case.message not in {c.message for c in todo[i + 1 :]}:
                del made[case.message]
                made_before.clear()


def one_thread() -> None:
    """Every process that makes messages uses one core."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(1)


def today() -> str:
    return datetime.date.today().isoformat()


def fit(lines: list[Line]) -> str:
    """All tables, one row per dataset."""
    made = "; ".join(sorted({f"{x['date']}, {x['device'] or 'CPU'}" for x in lines}))
    lines = [{**asdict(Case("")), **line} for line in lines]
    large = {x["dataset"] for x in lines if x["landmarks"]}
    rows = {x["dataset"]: x["rows"] for x in lines if x["rows"]}

    def cell(dataset: str, changes: Line, *shown: str) -> str:
        """Means over the streams of one case."""
        case = asdict(replace(Case(dataset), **changes))
        if dataset in rows and case["landmarks"]:
            case["landmarks"] //= 4
        del case["seed"], case["rows"]
        found = [x for x in lines if case.items() <= x.items()]
        means = {what: float(np.mean([x[what] for x in found])) for what in shown if found}
        shown = (f"{m:.2g}" if what == "MiB" else f"{m:.2f}" for what, m in means.items())
        return " / ".join(shown) or "-"

    def table(
        title: str, text: str, columns: dict[str, Line], *shown: str, **same: Any
    ) -> Iterable[str]:
        """A column per case, named; ``same`` holds for all of them."""
        yield from ("", f"## {title}", "", text, "", f"| dataset | {' | '.join(columns)} |")
        yield f"|---|{'---:|' * len(columns)}"
        with_landmarks = any("landmarks" in {**same, **changes} for changes in columns.values())
        for name in DATASETS:
            cells = [
                cell(name, {**same, **changes}, *(shown or ("accuracy",)))
                for changes in columns.values()
            ]
            if any(c != "-" for c in cells) and (name in large or not with_landmarks):
                title = dataset_title(name) + (f" ({rows[name]:,} rows)" if name in rows else "")
                yield f"| {title} | {' | '.join(cells)} |"

    def swept(setting: str, values: Sequence[float]) -> dict[str, Line]:
        return {f"{v:g}": {setting: v} for v in values}

    few, five, least = {"landmarks": 4096}, {"group_size": 5}, {"group_size": 5, "min_group": 5}
    messages = {"every row": {}, "groups of 5": five, "groups of 5, at least 5": least}
    supports = {"every row": {}, "4096 landmarks": few}
    out = [
        "# Constants of points and kernel heads, on held-out training rows",
        "",
        "Written by `python benchmarks/choose_points.py fit` from results/points_constants.ndjson",
        f"(measured {made}). Accuracy in percent on a held-out fifth of the training rows, of a",
        "head for all classes from the messages of five clients (beta 0.1) in all tasks.",
        "Leave-one-out chooses the ridge, unless a table varies it. Where a number of rows stands",
        "beside a dataset, it has a quarter of the landmarks that a table names.",
    ]
    out += ["", "## Scale factor, mean loss", ""]
    out += [
        "Against the best factor of each dataset, in points: noise of a dataset has less weight.",
        "",
    ]
    out += [
        f"| points | {' | '.join(f'{f:g}' for f in FACTORS)} |",
        f"|---|{'---:|' * len(FACTORS)}",
    ]
    for name, same in messages.items():
        swept_rows = [
            [cell(d, {**same, "factor": f}, "accuracy") for f in FACTORS] for d in DATASETS
        ]
        known = np.array([row for row in swept_rows if "-" not in row], dtype=np.float64)
        lost = (known.max(axis=1, keepdims=True) - known).mean(axis=0)
        out.append(f"| {name}, {len(known)} datasets | {' | '.join(f'{x:.2f}' for x in lost)} |")
    for name, same in {**messages, **supports}.items():
        text = "Scale of the kernel over the mean squared distance of two rows."
        out += table(f"Scale factor, {name}", text, swept("factor", FACTORS), **same)
    for name, same in supports.items():
        text = "Step to which the support is rounded, in deviations of a column."
        out += table(f"Grid of the support, {name}", text, swept("grid", GRIDS), **same)
    for name, same in messages.items():
        text = "Accuracy on held-out rows / by leave-one-out, which chose the last column."
        columns = {**swept("ridge", kernel_ridge.RIDGES), "chosen": {}}
        out += table(f"Ridge, {name}", text, columns, "accuracy", "left_out", **same)
    columns = {
        f"{support}, {m}": {"landmarks": m, "support": support}
        for m in LANDMARKS
        for support in SUPPORTS
    }
    text = "Class-wise means by Ward's method or by k-means, and random points."
    out += table("Landmarks", text, {**columns, "every row": {}})
    columns = {
        f"{what}, {name or 'ward'}": {**same, "grouping": name}
        for what, same in (("5", five), ("at least 5", least))
        for name in (None, "kmeans")
    }
    out += table("Groups", "Of about 5 rows, by Ward's method or by k-means.", columns)
    text = "In the metric of the shrunk within-class covariance; rows have unit norm again."
    out += table("Metric", text, {"none": {}, **swept("shrinkage", SHRINKAGES)})
    for size, smallest in sorted(GROUPS, key=lambda sizes: sizes[::-1]):
        what = "every row" if size == 1 else f"groups of {size}, at least {smallest}"
        text, sizes = (
            "Accuracy / MiB of the largest upload.",
            {"group_size": size, "min_group": smallest},
        )
        columns = swept("step", steps(size, smallest))
        out += table(f"Step of the quantiser, {what}", text, columns, "accuracy", "MiB", **sizes)
    return "\n".join([*out, ""])


if __name__ == "__main__":
    options = {
        "device": {"default": None},
        "rows": {"type": int, "default": None},
        "workers": {"type": int, "default": 0},
    }
    main(__doc__, "points_constants", measure, fit, **options)
