"""Choose learning rates of the methods on a frozen ViT on held-out training rows.

    FEDRAN_DATA=... python benchmarks/choose_vit_rates.py --device cuda --jobs 6

A fifth of the training rows of every class is held out. A short stream of some classes is made of
the rest. Test rows are never read. Every run appends a line to results/vit_rates.ndjson: the
method, its settings, A_avg and A_T on the held-out rows. Runs that are in the file are not
repeated. At the end the settings with the best A_T per method are printed.

``--grid "fed-dualprompt: lr=0.001,0.003; pilora: lr=0.0001,0.001 head_lr=0.02"`` replaces the
built-in grid. Methods that are not named are not run. ``exact: task0.lr=0.2,1`` chooses the rate of
the fine-tuning in task 0, by the accuracy of the exact Gram after it; its own rounds and epochs are
used.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path

import numpy as np

from choosing import RESULTS, Lines
from fedran.data.catalogue import load_dataset
from fedran.data.dataset import Dataset, as_images
from fedran_bench.methods.prompted.base import PromptedMethod
from fedran_bench.methods.registry import METHODS, make_method
from fedran_bench.run.runner import PreparedJob, run
from fedran_bench.streams import make_stream

HELD_OUT = 0.2
STREAM_SEED = 101
"""None of the seeds of the reported streams."""
Grid = dict[str, dict[str, tuple[float, ...]]]
GRID: Grid = {
    "fed-dualprompt": {"lr": (0.003, 0.01, 0.03), "head_lr": (0.0005, 0.002)},
    "fed-codaprompt": {"lr": (0.003, 0.01, 0.03), "head_lr": (0.0005, 0.002)},
    "fed-cprompt": {"lr": (0.003, 0.01, 0.03), "head_lr": (0.0005, 0.002)},
    "pilora": {"lr": (1e-5, 1e-4, 1e-3), "head_lr": (0.002, 0.02, 0.1)},
    "lorm": {"lr": (0.0003, 0.001, 0.003, 0.01)},
    "exact": {"task0.lr": (0.05, 0.2, 1.0, 5.0)},
}


def parse_grid(text: str) -> Grid:
    """``KEY: NAME=V,V NAME=V; KEY: ...`` as a grid.

    >>> parse_grid("pilora: lr=0.1,0.2 head_lr=0.001")
    {'pilora': {'lr': (0.1, 0.2), 'head_lr': (0.001,)}}
    """
    grid: Grid = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        key, _, settings = part.partition(":")
        pairs = (setting.split("=") for setting in settings.split())
        grid[key.strip()] = {n: tuple(json.loads(v) for v in vs.split(",")) for n, vs in pairs}
    return grid


def held_out_rows(y: np.ndarray, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of some classes for the streams, and a fifth of the rows of each, held out."""
    rng = np.random.default_rng(0)
    train, test = [], []
    for c in rng.permutation(np.unique(y))[:n_classes]:
        rows = rng.permutation(np.flatnonzero(y == c))
        cut = round(HELD_OUT * len(rows))
        test.append(rows[:cut])
        train.append(rows[cut:])
    return np.concatenate(train), np.concatenate(test)


@lru_cache(maxsize=1)
def held_out(name: str, n_classes: int, image_size: int | None) -> Dataset:
    """Images of some classes; the test rows are a fifth of their training rows."""
    data = as_images(load_dataset(name), image_size)
    train, test = held_out_rows(data.y_train, n_classes)
    X, y = data.X_train, data.y_train
    return Dataset(f"{name}, held out", "images", X[train], y[train], X[test], y[test])


def measure(key: str, settings: dict[str, float], args: argparse.Namespace) -> dict:
    """One run of a method on the short stream."""
    data = held_out(args.dataset, args.tasks * args.classes_per_task, args.image_size)
    stream = make_stream(
        data.y_train, n_tasks=args.tasks, n_clients=args.clients, beta=args.beta, seed=STREAM_SEED
    )
    common = {"precision": args.precision, "execution": args.execution}
    common |= {} if args.weights is None else {"weights": args.weights}
    if issubclass(METHODS[key], PromptedMethod):
        common |= {"n_rounds": args.rounds, "epochs": args.epochs}
        method = make_method(key, {**common, **settings}, args.device)
    else:
        method = make_method(key, with_stage(settings, common), args.device)
    start = time.perf_counter()
    line = {"key": key, "settings": settings, **described(args)}
    try:
        result = run(PreparedJob(key, method, data, stream))
    except ValueError as reason:  # such as a rate that is too high
        return {**line, "A_avg": None, "A_T": None, "problem": str(reason)}
    return {
        **line,
        "A_avg": round(result.A_avg, 2),
        "A_T": round(result.A_T, 2),
        "seconds": round(time.perf_counter() - start, 1),
        "date": datetime.date.today().isoformat(),
    }


def with_stage(settings: dict[str, float], common: dict[str, float | str]) -> dict:
    """Settings of an analytic method, those named ``task0.NAME`` and ``common`` in a table.

    >>> with_stage({"lam": 2.0, "task0.lr": 0.1}, {"precision": "float32"})
    {'lam': 2.0, 'task0': {'precision': 'float32', 'lr': 0.1}}
    """
    plain = {name: v for name, v in settings.items() if not name.startswith("task0.")}
    stage = {n.removeprefix("task0."): v for n, v in settings.items() if n not in plain}
    return {**plain, "task0": {**common, **stage}}


def described(args: argparse.Namespace) -> dict:
    """What a line says about its stream and schedule, apart from the grid."""
    names = ("dataset", "tasks", "classes_per_task", "clients", "beta", "rounds", "epochs")
    return {name: getattr(args, name) for name in (*names, "precision", "weights")}


def main() -> None:
    """Run what is not in the file yet, then print the best settings of each method."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", default="cifar100-vit_ti16")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--classes-per-task", type=int, default=10)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--beta", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--precision", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--execution", default="eager", choices=["eager", "recorded"])
    parser.add_argument("--weights", help="another ViT than the methods' default")
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--grid", type=parse_grid, default=GRID)
    parser.add_argument("--out", type=Path, default=RESULTS / "vit_rates.ndjson")
    args = parser.parse_args()
    lines = Lines(args.out)
    todo = []
    for key, grid in args.grid.items():
        for values in itertools.product(*grid.values()):
            settings = dict(zip(grid, values, strict=True))
            # Refuses unknown settings before anything runs.
            trains = issubclass(METHODS[key], PromptedMethod)
            make_method(key, settings if trains else with_stage(settings, {}))
            if not lines.has({"key": key, "settings": settings, **described(args)}):
                todo.append((key, settings))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=spawn) as pool:
        for done in as_completed([pool.submit(measure, *job, args) for job in todo]):
            lines.add(done.result())
            print(json.dumps(lines.all[-1]), flush=True)
    for key in args.grid:
        found = [x for x in lines.all if x["key"] == key and described(args).items() <= x.items()]
        best = max(found, key=lambda x: x["A_T"] or 0.0, default=None)
        if best is not None:
            print(f"{key}: {best['settings']}, A_T {best['A_T']}, best of {len(found)} settings")


if __name__ == "__main__":
    main()
