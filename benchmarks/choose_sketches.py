"""Choose the ridge of secure sums on held-out training rows: results/sketches.md.

    FEDRAN_DATA=... python benchmarks/choose_sketches.py measure [--only TEXT]
    python benchmarks/choose_sketches.py fit

``measure`` sums the totals of all clients per task, rebuilds a summary, and writes the accuracy on
up to 6,000 held-out rows for each ridge of a grid to results/sketches.ndjson. ``fit`` compares
rules by their regret. choosing.py says what both mean.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import scipy.linalg

import fedran
from choosing import Lines, at, best_rules, main, regret, split, training_rows
from fedran.core.private.sketch_sums import SketchSums, blind_omega, sketch_sums
from fedran.core.solve.nystrom import SKETCH_BASE, SKETCH_SLOPE, sketch_to_summary
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums
from fedran.data.catalogue import dataset_title
from fedran.wire.fixed_point import sketch_fixed_point, sketch_rounding
from fedran_bench.methods.analytic.fedran_secure import aware_codes
from fedran_bench.streams import Task, make_stream

RHOS = (0.03, 0.05, 0.08, 0.12, 0.18, 0.27, 0.4, 0.6, 0.9, 1.5, 3.0, 6.0)
HELD_OUT = 6000


@dataclass(frozen=True)
class Case:
    """One federation with beta 0.1, and the sketch that is summed."""

    dataset: str
    kind: str
    n_tasks: int
    out_features: int
    width: int
    omega: str = "aware"
    rounded: bool = True
    """Fixed-point numbers; otherwise the totals are added in float64."""
    seed: int = 101
    """Of stream and projection; none of those of the reported streams."""
    clients: int = 5
    most_rows: int = 16384
    """Rows of one client for which the scales leave room."""

    def __str__(self) -> str:
        form = "" if self.rounded else ", not rounded"
        if self.clients != 5:
            form += f", {self.clients} clients, room for {self.most_rows} rows each"
        return f"{self.dataset}, M={self.out_features}, s={self.width}, {self.omega}{form}"


def cases() -> list[Case]:
    """Every case, the cheap ones first."""
    cnn, vit = "cifar100-efficientnet_lite0", "cifar100-vit_ti16"
    made = [Case("digits", "hellinger", 5, 1024, 64, omega) for omega in ("aware", "blind")]
    made += [
        Case(cnn, "hellinger", 5, 2048, 128, omega, rounded)
        for omega, rounded in itertools.product(("aware", "blind"), (True, False))
    ]
    made += [Case(cnn, "hellinger", 5, 2048, 128, clients=100, most_rows=n) for n in (2048, 16384)]
    made += [Case(cnn, "hellinger", 5, 2048, 512), Case(vit, "cosine", 10, 2048, 128)]
    made += [Case(cnn, "hellinger", 5, 8192, 512, seed=202)]
    made += [Case(cnn, "hellinger", 5, 8192, 1024), Case(vit, "cosine", 10, 8192, 512)]
    return made


def measure(case: Case) -> dict:
    """Run one case; accuracy per task and ridge, with the accounts that the rules may use."""
    X_all, y_all = training_rows(case.dataset, case.kind)
    train, held_out = split(y_all)
    held_out = np.random.default_rng(1).permutation(held_out)[:HELD_OUT]
    X, y = X_all[train], y_all[train]
    stream = make_stream(y, n_tasks=case.n_tasks, n_clients=case.clients, beta=0.1, seed=case.seed)
    M = case.out_features
    phi = fedran.RandomFeatures(X.shape[1], M, kind=case.kind, seed=case.seed)
    H_test, truth = phi(X_all[held_out]), y_all[held_out]
    omega = blind_omega(M, case.width, (case.seed, 0))
    factor, gram = np.zeros((M, 0), np.float32), np.zeros((0, 0))
    accounts, sums, tasks, start = Accounts(), ClassSums.empty(M), [], time.perf_counter()
    for t, task in enumerate(stream.tasks):
        summary = summed(task, X, y, omega, phi, case)
        again = (case.width, (case.seed, t + 1))
        omega = blind_omega(M, *again)
        if case.omega == "aware":
            codes, step = aware_codes(summary.factor, *again)
            omega = codes.astype(np.float32) * np.float32(step)
        new = summary.gram_factor()
        across = (factor.T @ new).astype(np.float64)
        gram = np.block([[gram, across], [across.T, (new.T @ new).astype(np.float64)]])
        factor = np.concatenate([factor, new], axis=1)
        accounts, sums = accounts + summary.accounts, sums + summary.sums
        seen = np.isin(truth, stream.seen(t))
        known = (H_test[seen] @ factor).astype(np.float64)
        direct = H_test[seen].astype(np.float64) @ sums.sums
        inner = (factor.T @ sums.sums.astype(np.float32)).astype(np.float64)
        accuracy = []
        for rho in RHOS:  # scores H (B - F (F'F + lambda I)^-1 F'B), as ridge.solve_stack
            shifted = gram + rho * accounts.mean_row_energy * np.eye(len(gram))
            solved = scipy.linalg.cho_solve(scipy.linalg.cho_factor(shifted), inner)
            labels = np.array(sums.classes)[(direct - known @ solved).argmax(axis=1)]
            accuracy.append(round(100 * float(np.mean(labels == truth[seen])), 3))
        tasks.append({"accounts": asdict(accounts), "accuracy": accuracy})
    seconds = round(time.perf_counter() - start)
    return {"seconds": seconds, "rhos": list(RHOS), "tasks": tasks}


def summed(
    task: Task,
    X: np.ndarray,
    y: np.ndarray,
    omega: np.ndarray,
    phi: fedran.RandomFeatures,
    case: Case,
) -> fedran.Summary:
    """The summary of one task from the sum of the clients' totals."""
    parts = [sketch_sums(phi(X[rows]), y[rows], task.classes, omega) for rows in task.rows]
    if not case.rounded:
        return sketch_to_summary(sum(parts), omega, phi.fingerprint)
    K, sizes = case.clients, {"most_rows": case.most_rows, "n_sites": case.clients}
    fixed = sketch_fixed_point(phi.fingerprint, len(task.classes), case.width, **sizes)
    codes = np.sum([fixed.encode(p.vector(), K) for p in parts], axis=0, dtype=np.uint32)
    total = SketchSums.from_vector(fixed.decode(codes), task.classes, *omega.shape)
    rounding = sketch_rounding(fixed, K)
    return sketch_to_summary(total, omega, phi.fingerprint, rounding=rounding)


Rule = Callable[[Accounts, int], float]
"""rho = lambda / mean ||h||^2 from the accounts and M."""
IN_USE = f"{SKETCH_BASE:g} + {SKETCH_SLOPE:g} f n / M"


def rules() -> dict[str, Rule]:
    """Candidates: f is the share of the energy that is cut, n the mean number of rows of a sum."""
    families: dict[str, tuple[tuple[float, ...], Rule]] = {
        "f": ((1, 2, 3, 4, 5, 6, 8), lambda acc, _: acc.cut_fraction),
        "f sqrt(n)": (
            (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.1),
            lambda acc, _: acc.cut_fraction * math.sqrt(acc.rows_per_part),
        ),
        "f n / M": ((1, 2, 3, 4, 5, 6, 8), lambda acc, M: acc.cut_fraction * acc.rows_per_part / M),
    }
    return {
        f"{base:g} + {a:g} {name}": lambda acc, M, b=base, a=a, loss=loss: b + a * loss(acc, M)
        for name, (factors, loss) in families.items()
        for base, a in itertools.product((0.01, 0.03, 0.05), factors)
    }


def ridge(run: dict, rule: Rule) -> Callable[[dict], float]:
    """The ridge that a rule gives after each task of a run."""
    return lambda task: rule(Accounts(**task["accounts"]), run["out_features"])


def fit(runs: list[dict]) -> str:
    """The report as Markdown."""
    chosen = [r for r in runs if r["rounded"] and r["clients"] == 5]
    lost = {
        name: [regret(r, r["rhos"], ridge(r, rule)) for r in chosen]
        for name, rule in rules().items()
    }
    lines = [
        "# The ridge of secure sums, chosen on held-out training rows",
        "",
        f"Written by `python benchmarks/choose_sketches.py fit` on {datetime.date.today()} from",
        "results/sketches.ndjson. A fifth of the training rows of each class is held out; no test",
        "row is read. 5 clients unless said, beta 0.1. f is the share of the energy that sketches",
        "miss and n the mean number of rows of one sum. The regret of a rule is what it loses",
        "against the best ridge of every task, in points of accuracy. The first table shows the",
        f"five best rules, the best of each family, and the rule in use, {IN_USE}.",
        "",
        f"## Rules: {len(chosen)} runs",
        "",
        "| rule for rho = lambda / mean ‖h‖² | mean regret | largest regret of a run |",
        "|---|---:|---:|",
        *(f"| {rule} | {mean:.3f} | {most:.2f} |" for rule, mean, most in best_rules(lost, IN_USE)),
        "",
        "## Every case at its best fixed ridge and with the rule in use",
        "",
        "| case | tasks, seed | f | best rho | A_avg / A_T, best rho | A_avg / A_T, rule |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for run in runs:
        case = Case(**{k: v for k, v in run.items() if k in Case.__dataclass_fields__})
        name = str(case).replace(case.dataset, dataset_title(case.dataset))
        table = np.array([t["accuracy"] for t in run["tasks"]])
        best = int(table.mean(axis=0).argmax())
        final = Accounts(**run["tasks"][-1]["accounts"])
        in_use = ridge(run, rules()[IN_USE])
        ruled = [at(t, run["rhos"], in_use(t)) for t in run["tasks"]]
        lines.append(
            f"| {name} | {run['n_tasks']}, {run['seed']} | {final.cut_fraction:.3f} "
            f"| {run['rhos'][best]:g} | {table[:, best].mean():.2f} / {table[-1, best]:.2f} "
            f"| {np.mean(ruled):.2f} / {ruled[-1]:.2f} |"
        )
    return "\n".join(lines) + "\n"


def measure_all(lines: Lines, args: argparse.Namespace) -> None:
    """Every case that was asked for."""
    for case in cases():
        if args.only in str(case):
            lines.measure(asdict(case), functools.partial(measure, case))


if __name__ == "__main__":
    main(__doc__, "sketches", measure_all, fit)
