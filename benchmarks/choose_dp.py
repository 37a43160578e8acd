"""Choose the constants of differential privacy on held-out training rows: results/dp_constants.md.

    FEDRAN_DATA=... python benchmarks/choose_dp.py measure [--only TEXT]
    python benchmarks/choose_dp.py fit

``measure`` writes, after every task, the accuracy on the held-out rows of all classes seen for each
ridge of a grid, to results/dp_constants.ndjson. ``fit`` compares the share of the Gram and rules
for the ridge. choosing.py says which rows are held out.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from choosing import Lines, best_rules, main, regret, split, training_rows
from fedran.core.features import RandomFeatures
from fedran.core.prepare import Kind
from fedran.core.private.dp import Budget, Mechanism, Shares, levels_for
from fedran.core.private.noisy_sums import RIDGE, NoisySums, mean_row
from fedran.core.sums.aggregator import Aggregator
from fedran_bench.results.result import dataset_title
from fedran_bench.streams import make_stream

DATASETS: dict[str, Kind] = {
    "cifar100-vit_ti16": "cosine",
    "cifar100-efficientnet_lite0": "hellinger",
}
STREAM_SEEDS = (101, 102)
EPSILONS = (1.0, 3.0, 8.0)
GRAM_SHARES = (0.2, 0.35, 0.5, 0.65)
NORMS = (None, 0.7, 0.8, 0.9)
"""To which rows of later tasks are shortened after centring; None: not centred."""
RIDGES = (0.003, 0.01, 0.02, 0.03, 0.06, 0.1, 0.17, 0.25, 0.4, 0.6, 1.0)
"""lambda per mean eigenvalue of the Gram."""


def cases() -> list[tuple[float, float, float | None]]:
    """(epsilon, share of the Gram, norm of centred rows): one of the last two varies."""
    shares = [(e, g, 0.8) for e, g in itertools.product(EPSILONS, GRAM_SHARES)]
    norms = [(e, 0.35, r) for e, r in itertools.product(EPSILONS, NORMS) if r != 0.8]
    return shares + norms


def measure_all(lines: Lines, args: argparse.Namespace) -> None:
    """All cases on all streams of the datasets whose names were asked for."""
    for seed, (dataset, kind) in itertools.product(STREAM_SEEDS, DATASETS.items()):
        if args.only not in dataset:
            continue
        X, y = training_rows(dataset, kind)
        H = RandomFeatures(X.shape[1], 1, kind).prepare(X)
        for epsilon, share, norm in cases():
            values = {"epsilon": epsilon, "gram": share, "norm": norm}
            run = functools.partial(measure, H, y, seed, **values)
            lines.measure({"dataset": dataset, "seed": seed, **values}, run)


def measure(
    H: np.ndarray, y: np.ndarray, seed: int, epsilon: float, gram: float, norm: float | None
) -> dict:
    """Run one case; accuracy per task and ridge, with what the rules may use."""
    rows, held_out = split(y)
    stream = make_stream(y[rows], n_tasks=5, n_clients=1, beta=1.0, seed=seed)
    random = np.random.default_rng(seed).bytes
    shares = Shares(gram, 0.99 - gram, 0.01)
    levels = levels_for(10_000, Budget(epsilon))
    first = Mechanism(H.shape[1], Budget(epsilon), levels=levels, shares=shares)
    server = Aggregator(H.shape[1], dtype="float64")
    tasks = []
    for t, task in enumerate(stream.tasks):
        own = rows[task.rows[0]]
        mechanism = first
        if t and norm is not None:
            mechanism = replace(first.centred(mean_row(server.class_sums)), norm=norm)
        release = mechanism.privatise(H[own], y[own], task.classes, random)
        server.absorb(release.summary(), client="all", task=str(t))
        seen = held_out[np.isin(y[held_out], stream.seen(t))]
        tasks.append({**accuracies(server, H[seen], y[seen]), **noise_of(release)})
    return {"tasks": tasks}


def accuracies(server: Aggregator, H: np.ndarray, y: np.ndarray) -> dict:
    """The accuracy on these rows for every ridge, and what a rule for the ridge may use."""
    E, U = np.linalg.eigh(server.gram())
    projected, B = H @ U, U.T @ server.class_sums.sums
    classes, m = np.array(server.classes), server.accounts.energy / len(E)
    found = []
    for ridge in RIDGES:
        scores = projected @ (B / (np.maximum(E, 0) + ridge * m)[:, None])
        found.append(round(100 * float((classes[scores.argmax(axis=1)] == y).mean()), 3))
    counts = server.class_sums.counts
    return {
        "mean": round(m, 4),
        "n_classes": len(classes),
        "rows_per_class": round(sum(counts) / len(counts), 1),
        "accuracy": found,
    }


def noise_of(release: NoisySums) -> dict:
    """The noise of the newest task, for rules that use it."""
    spread = math.sqrt(len(release.gram) * release.gram_variance / 2)
    return {"spread": round(spread, 4), "sums_variance": round(release.sums_variance, 4)}


Rule = Callable[[dict], float]


def rules() -> dict[str, Rule]:
    """Candidates for lambda / m; s is the spread of the noise of the newest task's Gram."""
    made: dict[str, Rule] = {}
    for a in (0.02, 0.04, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5):
        made[f"{a:g} m"] = lambda _, a=a: a
        made[f"{a:g} s"] = lambda t, a=a: a * t["spread"] / t["mean"]
        made[f"{a:g} sqrt(m s)"] = lambda t, a=a: a * math.sqrt(t["spread"] / t["mean"])
    for a, b in itertools.product((0.01, 0.03, 0.06, 0.1), (0.25, 0.5, 1.0, 2.0, 4.0)):
        made[f"{a:g} m + {b:g} v C / n"] = lambda t, a=a, b=b: (
            a + (b * t["sums_variance"] * t["n_classes"] / t["rows_per_class"] / t["mean"])
        )
    for a, b in itertools.product((0.01, 0.03, 0.06, 0.1), (0.01, 0.03, 0.06, 0.1)):
        made[f"{a:g} m + {b:g} s"] = lambda t, a=a, b=b: a + b * t["spread"] / t["mean"]
    return made


def streams(runs: list[dict], dataset: str) -> int:
    """Streams of a dataset that were measured."""
    return len({r["seed"] for r in runs if r["dataset"] == dataset})


def fit(runs: list[dict]) -> str:
    """The report as Markdown."""
    lines = [
        "# Constants of differential privacy",
        "",
        f"Written by `python benchmarks/choose_dp.py fit` on {datetime.date.today()} from",
        "results/dp_constants.ndjson. A fifth of the training rows of each class is held out; no",
        "test row is read. CIFAR-100, 5 tasks, delta 1e-5, 400 rows per class, means over streams:",
        f"{'; '.join(f'{streams(runs, d)} of {dataset_title(d)}' for d in DATASETS)}.",
        "The counts get 1 % of the squared sensitivity, the Gram the share of the column, and the",
        "class sums the rest. r is the norm to which rows of later tasks are shortened after",
        'centring; "-" means that rows are not centred.',
        "",
        "## Accuracy after the last task at the best ridge",
        "",
    ]
    columns = [*((g, 0.8) for g in GRAM_SHARES), *((0.35, r) for r in NORMS if r != 0.8)]
    names = [f"Gram {g:g}, r {'-' if r is None else r}" for g, r in columns]
    lines += [f"| dataset | epsilon | {' | '.join(names)} |", "|---|---:|" + "---:|" * len(names)]
    for dataset, epsilon in itertools.product(DATASETS, EPSILONS):
        cells = []
        for share, norm in columns:
            key = {"dataset": dataset, "epsilon": epsilon, "gram": share, "norm": norm}
            same = [r for r in runs if key.items() <= r.items()]
            table = np.array([r["tasks"][-1]["accuracy"] for r in same])
            cells.append(f"{table.mean(axis=0).max():.2f}")
        lines.append(f"| {dataset_title(dataset)} | {epsilon:g} | {' | '.join(cells)} |")
    used = [r for r in runs if r["gram"] == 0.35 and r["norm"] == 0.8]
    lines += [
        "",
        "## Rules for the ridge",
        "",
        "What a rule for lambda loses against the best ridge of every task, in points, at Gram",
        "0.35 and r 0.8. m is the mean eigenvalue of the Gram, s half the radius of the semicircle",
        "of the eigenvalues of the newest task's noise, v the variance of the noise of the class",
        "sums, C the number of classes and n the mean number of rows per class.",
        f"The rule in use is {RIDGE:g} s, with a mean of s over tasks and at least 0.003 m. It was",
        "chosen when fewer runs were measured. All rules near it differ by less than 0.1 points.",
        "",
        "| rule | mean | largest of a run |",
        "|---|---:|---:|",
    ]
    lost = {name: [regret(r, RIDGES, rule) for r in used] for name, rule in rules().items()}
    best = best_rules(lost, f"{RIDGE:g} s", most=12)
    lines += [f"| {rule} | {mean:.3f} | {most:.2f} |" for rule, mean, most in best]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(__doc__, "dp_constants", measure_all, fit)
