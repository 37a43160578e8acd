"""What the scripts share that choose constants on held-out training rows.

A fifth of the training rows of every class is held out, and streams are made of the rest. Test rows
are never read. Every measurement is one line of JSON in a file, and is not repeated. A rule for the
ridge is judged by its regret: the accuracy that it loses against the best ridge of a grid, mean
over tasks.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedran.data.catalogue import load_dataset

RESULTS = Path(__file__).resolve().parent.parent / "results"
Line = dict[str, Any]


class Lines:
    """The measurements in a file, one line of JSON each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = path.read_text().splitlines() if path.exists() else []
        self.all: list[Line] = [json.loads(line) for line in found]

    def has(self, case: Line) -> bool:
        """Whether some line holds all values of ``case``. A value that a line lacks is None."""
        plain = json.loads(json.dumps(case))
        return any(all(line.get(k) == v for k, v in plain.items()) for line in self.all)

    def measure(self, case: Line, run: Callable[[], Line]) -> None:
        """Add what ``run`` finds out about a case, unless the file holds it."""
        if not self.has(case):
            self.add({**case, **run()})
            print(*case.values(), max(self.all[-1]["tasks"][-1]["accuracy"]), flush=True)

    def add(self, line: Line) -> None:
        """Append a measurement, in memory and on disk."""
        self.all.append(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


@functools.cache
def training_rows(dataset: str, kind: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Features (float32) and labels of a dataset's training rows, or of Gaussian classes.

    ``gaussians-D-C-S``: C classes in D dimensions, 2,000 rows each, with means from N(0, S^2 I)
    and covariance I (absolute values where the kind needs them). Their within-class spectrum is
    flat, unlike that of any backbone.
    """
    if not dataset.startswith("gaussians"):
        data = load_dataset(dataset)
        return data.X_train.astype(np.float32), data.y_train
    dimensions, classes, scale = dataset.split("-")[1:]
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(int(classes)), 2000)
    means = float(scale) * rng.standard_normal((int(classes), int(dimensions)))
    X = (means[y] + rng.standard_normal((len(y), int(dimensions)))).astype(np.float32)
    return (np.abs(X) if kind == "hellinger" else X), y


def split(y: np.ndarray, share: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Rows for the streams, and a share of the rows of every class, held out."""
    rng = np.random.default_rng(0)
    held_out = np.concatenate(
        [
            rng.permutation(np.flatnonzero(y == c))[: int(share * (y == c).sum())]
            for c in np.unique(y)
        ]
    )
    return np.setdiff1d(np.arange(len(y)), held_out), np.sort(held_out)


def at(task: Line, grid: list[float], ridge: float) -> float:
    """The accuracy at any ridge, linear in its logarithm between the points of the grid."""
    return float(np.interp(math.log(ridge), np.log(grid), task["accuracy"]))


def regret(run: Line, grid: list[float], ridge: Callable[[Line], float]) -> float:
    """Mean over tasks of the accuracy lost against the best ridge of the grid."""
    return float(np.mean([max(t["accuracy"]) - at(t, grid, ridge(t)) for t in run["tasks"]]))


def best_rules(
    lost: dict[str, list[float]], in_use: str, most: int = 5
) -> list[tuple[str, float, float]]:
    """(rule, mean regret, largest regret), best first, from the regrets of every rule in all runs.

    The ``most`` best rules, the best of each family (rules that differ in their numbers alone) and
    the rule in use.
    """
    order = sorted((float(np.mean(x)), max(x), rule) for rule, x in lost.items())
    families = {re.sub(r"[0-9.]+ ", "", row[2]): row for row in reversed(order)}
    return [
        (rule, mean, largest)
        for i, (mean, largest, rule) in enumerate(order)
        if i < most or rule == in_use or (mean, largest, rule) in families.values()
    ]


def main(
    doc: str,
    name: str,
    measure: Callable[[Lines, argparse.Namespace], None],
    fit: Callable[[list[Line]], str],
    **options: Line,
) -> None:
    """The command line of a script: ``measure`` adds to results/NAME.ndjson, ``fit`` reports."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("step", choices=["measure", "fit"])
    parser.add_argument("--only", default="", help="cases whose description contains this text")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.ndjson")
    for option, settings in options.items():
        parser.add_argument(f"--{option}", **settings)
    args = parser.parse_args()
    lines = Lines(args.out)
    if args.step == "fit":
        (RESULTS / f"{name}.md").write_text(fit(lines.all))
    else:
        measure(lines, args)
