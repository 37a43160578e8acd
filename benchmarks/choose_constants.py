"""Choose ridge rule and bits of summaries on held-out training rows: results/constants.md.

    FEDRAN_DATA=... python benchmarks/choose_constants.py measure [--device cuda] [--only TEXT]
    python benchmarks/choose_constants.py fit

``measure`` runs a federation per case and writes, after every task, the accuracy on the held-out
rows of all classes seen for each ridge of a grid, to results/constants.ndjson. Of Gaussian classes
nine tenths of the rows are held out. ``fit`` compares rules for the ridge by their regret.
choosing.py says what both mean.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np

import fedran
from choosing import Lines, best_rules, main, regret, split, training_rows
from fedran.core._linalg.arrays import to_device
from fedran.core.pseudo_labels import margin_labels
from fedran.core.solve.ridge import Ridge
from fedran.core.sums.accounts import Accounts
from fedran.wire import quantisation
from fedran_bench.results.result import dataset_title
from fedran_bench.streams import Task, make_stream

RHOS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.27, 0.4, 0.6, 0.9, 1.5, 3, 6, 12, 25)
STREAM_SEEDS = (101, 202)
"""None of the seeds of the reported streams."""


@dataclass(frozen=True)
class Case:
    """One federation: a dataset, a split, and the summaries that its clients send."""

    dataset: str
    kind: str
    n_tasks: int
    clients: int
    beta: float
    out_features: int = 8192
    rank: int = 256
    bits: float = 5.0
    sum_extra: float = 1.0
    center: str | None = "class"
    slope: float = 1.5
    label_rate: float = 1.0
    margin: float = 0.1

    @property
    def message(self) -> str:
        """What the clients send, in a few words."""
        form = "" if self.center else ", uncentred"
        form += f", slope {self.slope:g}" if self.slope != 1.5 else ""
        if self.label_rate < 1:
            form += f", {self.label_rate:.0%} labels, margin {self.margin:g}"
        return f"r={self.rank}, {self.bits:g} bits, sums {self.sum_extra:+g}{form}"


def cases() -> list[Case]:
    """Every case, the cheap ones first."""
    cnn, vit, vtab = (
        "cifar100-efficientnet_lite0",
        "cifar100-vit_ti16",
        "vtab50-efficientnet_lite0",
    )
    digits = ("digits", "hellinger", 5, 5, 0.5, 2048)
    small = (vtab, "hellinger", 5, 5, 0.1)
    few, even = (cnn, "hellinger", 5, 5, 0.1), (cnn, "hellinger", 5, 5, 1.0)
    many, middle = (cnn, "hellinger", 5, 100, 0.5), (cnn, "hellinger", 5, 20, 0.3)
    signed = (vit, "cosine", 10, 5, 0.1)
    people = ("har-dsa19", "cosine", 5, 8, 0.5)
    flat = [
        ("gaussians-64-3-1.0", "hellinger", 1, 2, 10.0, 1024),
        ("gaussians-32-3-0.3", "cosine", 1, 2, 10.0, 1024),
        ("gaussians-32-10-0.4", "cosine", 1, 6, 10.0, 1024),
        ("gaussians-200-20-0.2", "cosine", 4, 5, 10.0, 1024),
    ]
    made = [Case(*split, rank=r) for split in flat for r in (4, 16, 32, 64)]
    made += [Case(*digits, rank=r) for r in (8, 32)]
    made += [Case(*people, rank=r) for r in (8, 32)]
    made += [Case(*small, rank=r) for r in (16, 64)]
    made += [Case(*few, rank=r) for r in (16, 64, 128, 256)]
    made += [Case(*even, rank=r) for r in (64, 256)]
    made += [Case(*signed, rank=r) for r in (32, 128)]
    made += [Case(*middle, rank=r) for r in (16, 64)]
    made += [Case(*many, rank=r) for r in (2, 8, 32)]
    made += [Case(*few, rank=r, center=None) for r in (64, 256)]
    made += [Case(*few, rank=256, bits=b) for b in (3.0, 3.5, 4.0, 6.0, 8.0)]
    made += [Case(*few, rank=256, sum_extra=e) for e in (-1.0, 0.0, 3.0, 6.0)]
    made += [Case(*many, rank=8, sum_extra=e) for e in (-1.0, 0.0, 3.0, 6.0)]
    made += [Case(*few, rank=r, slope=a) for r in (64, 256) for a in (1.0, 1.25, 1.75, 2.0)]
    made += [
        Case(*few, rank=256, label_rate=0.1, margin=margin) for margin in (0.0, 0.05, 0.1, 0.2, 0.3)
    ]
    return made


def measure(case: Case, seed: int, device: str | None, pool: ThreadPoolExecutor) -> dict:
    """Run one case; accuracy per task and ridge, with what the rules may use."""
    X_all, y_all = training_rows(case.dataset, case.kind)
    train, held_out = split(y_all, 0.9 if case.dataset.startswith("gaussians") else 0.2)
    X, y = X_all[train], y_all[train]
    stream = make_stream(
        y,
        n_tasks=case.n_tasks,
        n_clients=case.clients,
        beta=case.beta,
        seed=seed,
        label_rate=case.label_rate,
    )
    phi = fedran.RandomFeatures(X.shape[1], case.out_features, kind=case.kind, seed=seed)
    agg = fedran.Aggregator(case.out_features, fingerprint=phi.fingerprint, device=device)
    quantisation.SUM_EXTRA_BITS, quantisation.SLOPE = case.sum_extra, case.slope
    largest, tasks, start = 0, [], time.perf_counter()

    def summary(rows: np.ndarray, labelled: np.ndarray) -> fedran.Summary:
        H, labels = phi(to_device(X[rows], device)), y[rows]
        if not labelled.all():
            masked = [c if known else None for c, known in zip(labels, labelled, strict=True)]
            labels = margin_labels(H, masked, case.margin).labels
        made = fedran.summarize(
            H, labels, case.rank, center=case.center, fingerprint=phi.fingerprint
        )
        return made.to(None)

    def uploads(task: Task) -> Iterable[bytes]:
        clients = [(r, task.has_label(k)) for k, r in enumerate(task.rows) if len(r)]
        # torch does not start its linear algebra in several threads at once.
        summaries = [summary(*client) for client in clients]
        return pool.map(lambda s: fedran.encode(s, bits=case.bits), summaries)

    for t, task in enumerate(stream.tasks):
        for k, blob in enumerate(uploads(task)):
            largest = max(largest, len(blob))
            agg.absorb(fedran.decode(blob), client=f"c{k}", task=f"t{t}")
        rows = held_out[np.isin(y_all[held_out], stream.seen(t))]
        Z, truth = to_device(X_all[rows], device), y_all[rows]
        accuracy = {}
        for rho in RHOS:
            head = agg.solve(Ridge.relative(rho))
            right = sum(
                int((head.predict(H) == truth[part]).sum()) for part, H in phi.blocks(Z, 2**30)
            )
            accuracy[rho] = round(100 * right / len(rows), 3)
        tasks.append({"accounts": asdict(agg.accounts), "accuracy": list(accuracy.values())})
    return {
        "mib": round(largest / 2**20, 4),
        "seconds": round(time.perf_counter() - start, 1),
        "rhos": list(RHOS),
        "tasks": tasks,
    }


Rule = Callable[[Accounts], float]
DEFAULT = f"{Ridge().base:g} + {Ridge().slope:g} f sqrt(n)"
"""The rule that is in use."""


def rules() -> dict[str, Rule]:
    """Candidate rules for rho = lambda / mean ||h||^2.

    f is the share of the energy that truncation removed and n the mean number of rows per upload.
    s and F are the spectral and Frobenius norms of what truncation removed, per upload and in
    units of mean ||h||^2.
    """
    made: dict[str, Rule] = {}

    def add(name: str, factors: Iterable[float], cut: Callable[[Accounts, float], float]) -> None:
        for base, a in itertools.product((0.01, 0.02, 0.03, 0.05), factors):
            made[f"{base:g} + {a:g} {name}"] = lambda acc, b=base, a=a: (
                b + a * cut(acc, max(1.0, acc.rows_per_part))
            )

    add("f", (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0), lambda acc, _: acc.cut_fraction)
    add("sqrt(f)", (0.1, 0.2, 0.3, 0.4, 0.5, 0.7), lambda acc, _: acc.cut_fraction**0.5)
    add("f sqrt(n)", (0.03, 0.05, 0.07, 0.1, 0.15), lambda acc, n: acc.cut_fraction * n**0.5)
    add("f n^(1/4)", (0.1, 0.2, 0.3, 0.4, 0.6), lambda acc, n: acc.cut_fraction * n**0.25)
    add("f log2(n)", (0.1, 0.2, 0.3, 0.4), lambda acc, n: acc.cut_fraction * math.log2(n))
    add("s", (0.1, 0.2, 0.3, 0.5), lambda acc, _: per_upload(acc, acc.eps_G - acc.eps_quant))
    add(
        "s sqrt(n)",
        (0.005, 0.01, 0.02, 0.03),
        lambda acc, n: per_upload(acc, acc.eps_G - acc.eps_quant) * n**0.5,
    )
    add("F", (0.02, 0.03, 0.04, 0.06), lambda acc, _: per_upload(acc, acc.eps_G_fro))
    return made


def per_upload(accounts: Accounts, norm: float) -> float:
    """A norm that adds over uploads, per upload and in units of mean ||h||^2."""
    return norm / max(1, accounts.parts) / accounts.mean_row_energy


def loss(run: dict, rule: Rule) -> float:
    """The regret of a rule in one run."""
    return regret(run, run["rhos"], lambda task: rule(Accounts(**task["accounts"])))


def ridge_table(title: str, runs: list[dict], beside: dict[str, list[dict]]) -> list[str]:
    """The rules with the smallest mean regret, the best of each family, as Markdown.

    ``beside``: runs whose regret is shown and does not choose.
    """
    made = rules()
    lost = {name: [loss(r, rule) for r in runs] for name, rule in made.items()}
    shown = []
    for name, mean, largest in best_rules(lost, DEFAULT):
        others = [np.mean([loss(r, made[name]) for r in group]) for group in beside.values()]
        cells = [name, f"{mean:.3f}", f"{largest:.2f}", *(f"{x:.2f}" for x in others)]
        shown.append(f"| {' | '.join(cells)} |")
    head = ["rule for rho", "mean regret", "largest regret of a run", *beside]
    return [
        f"## {title}: {len(runs)} runs",
        "",
        f"| {' | '.join(head)} |",
        f"|---|{'---:|' * (len(head) - 1)}",
        *shown,
    ]


def fit(runs: list[dict]) -> str:
    """The report as Markdown."""
    lines = [
        "# Constants chosen on held-out training rows",
        "",
        f"Written by `python benchmarks/choose_constants.py fit` on {datetime.date.today()} from",
        "results/constants.ndjson. A fifth of the training rows of each class is held out; no",
        f"test row is read. Accuracies are means over {len(STREAM_SEEDS)} streams. f is the share",
        "of the energy that truncation removed, n the mean number of rows per upload; s and F are",
        "the spectral and Frobenius norms of what truncation removed, per upload and in units of",
        "mean ||h||^2. The regret of a rule is what it loses against the best ridge of every task,",
        "in points of accuracy. The tables show the five best rules, the best of each family, and",
        f"the rule in use, {DEFAULT}.",
        "Gaussian classes with flat spectra are shown beside and do not choose: no rule that uses",
        "only the accounts serves them, because their best ridge is large at full rank too.",
    ]
    usual = {"bits": 5.0, "sum_extra": 1.0, "slope": 1.5, "label_rate": 1.0}
    defaults = [r for r in runs if all(r[k] == v for k, v in usual.items())]
    flat = [r for r in defaults if r["dataset"].startswith("gaussians")]
    real = [r for r in defaults if r not in flat]
    lines += ["", *ridge_table("Ridge for summaries", real, {"flat spectra": flat})]
    lines += ["", "## Every case at its best fixed ridge, and what the ridge costs", ""]
    lines += [
        "| dataset | tasks, clients, beta | M | message | MiB | f | A_avg / A_T | best rho |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    ]
    groups: dict[str, list[dict]] = {}
    for run in runs:
        key = json.dumps({k: v for k, v in run.items() if k in Case.__dataclass_fields__})
        groups.setdefault(key, []).append(run)
    for key, same in groups.items():
        case = Case(**json.loads(key))
        table = np.array([[t["accuracy"] for t in run["tasks"]] for run in same])
        best = int(table.mean(axis=(0, 1)).argmax())
        f = np.mean([Accounts(**run["tasks"][-1]["accounts"]).cut_fraction for run in same])
        lines.append(
            f"| {dataset_title(case.dataset)} | {case.n_tasks}, {case.clients}, {case.beta:g} "
            f"| {case.out_features} | {case.message} | {max(r['mib'] for r in same):.3f} | {f:.3f} "
            f"| {table[..., best].mean():.2f} / {table[:, -1, best].mean():.2f} | {RHOS[best]:g} |"
        )
    return "\n".join(lines) + "\n"


def measure_all(lines: Lines, args: argparse.Namespace) -> None:
    """Every case on every stream, or the share of them that was asked for."""
    first, step = map(int, args.share.split("/"))
    wanted = [
        (case, seed)
        for case, seed in itertools.product(cases(), STREAM_SEEDS)
        if args.only in f"{case.dataset} {case.message}"
    ][first::step]
    with ThreadPoolExecutor(args.threads) as pool:
        for case, seed in wanted:
            run = functools.partial(measure, case, seed, args.device, pool)
            lines.measure({**asdict(case), "seed": seed}, run)


if __name__ == "__main__":
    main(
        __doc__,
        "constants",
        measure_all,
        fit,
        device={"default": None},
        share={"default": "0/1", "help": "I/N: every N-th case, starting with I"},
        threads={"type": int, "default": 2},
    )
