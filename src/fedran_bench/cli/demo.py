"""``fedran demo``: six methods on scikit-learn's digits, as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import track

from fedran.cli.tables import print_numbers
from fedran.data.catalogue import digits
from fedran_bench.methods.registry import make_method
from fedran_bench.results.grouping import client_seconds, server_seconds
from fedran_bench.run.runner import PreparedJob, run
from fedran_bench.streams import make_stream

OUT_FEATURES, RANK = 1024, 64
PAPER_RANK = 256  # M / 4, as in the paper
LEAST = 5
"""Least rows of a group in the second row of the table."""
N_TASKS, N_CLIENTS, BETA, SEED = 5, 5, 0.1, 1993
NEXT = f"""
[bold]How to read the table[/bold]
  points   clients send their rows, or means of groups of at least {LEAST} rows of
           one class; the server solves a kernel ridge.
  summaries
           clients send class sums and a factor of rank {RANK} of {OUT_FEATURES} random
           features; with the paper's algorithm and settings, of rank {PAPER_RANK}.
  A_t      accuracy in percent on all classes seen after task t. Nothing is
           trained or replayed. A_T is the last value, A_avg the mean. A_t falls
           because there are more classes to distinguish, not by forgetting.
  upload   the largest message that a client sent in a task, as measured.
  sec      mean seconds per task of one client, and of the server.

[bold]Where to go next[/bold]
  source .venv/bin/activate           makes the command fedran available
  README.md                           a classifier in twelve lines of Python
  docs/tutorial.md                    a federation in your own code
  fedran plan --budget 300kB --classes 20 --in-features 1280 --rows 2000
                                      the message for a byte budget
  fedran inspect FILE                 the content of an upload, a head, a server
  fedran bench run configs/digits.toml
                                      every method on these digits, ten minutes"""


def demo_runs() -> list[PreparedJob]:
    """Points in two sizes, summaries by our settings and the paper's, exact Gram, class means."""
    dataset = digits()
    stream = make_stream(
        dataset.y_train, n_tasks=N_TASKS, n_clients=N_CLIENTS, beta=BETA, seed=SEED
    )
    chosen: list[tuple[str, str, dict[str, Any]]] = [
        ("points, every row", "fedran-points", {}),
        ("points, groups", "fedran-points", {"group_size": LEAST, "min_group": LEAST}),
        ("summaries", "fedran", {"out_features": OUT_FEATURES, "rank": RANK}),
        ("summaries, paper", "fedran-paper", {"out_features": OUT_FEATURES, "rank": PAPER_RANK}),
        ("Exact Gram", "exact", {"out_features": OUT_FEATURES}),
        ("FedNCM", "fedncm", {}),
    ]
    return [
        PreparedJob(key, make_method(key, params), dataset, stream, label=label)
        for label, key, params in chosen
    ]


def demo() -> None:
    """Compare six methods on scikit-learn's digits. Takes some seconds.

    Five clients learn five tasks of two classes each.
    """
    console = Console(highlight=False)
    console.print(
        f"[bold]FedRAN demo[/bold]: scikit-learn digits, {N_CLIENTS} clients, {N_TASKS} tasks of "
        f"2 classes, Dirichlet {BETA}"
    )
    runs = track(demo_runs(), "running six methods", console=console, transient=True)
    results = [run(prepared) for prepared in runs]
    accuracies = [f"A_{t}" for t in range(1, N_TASKS)] + ["A_T", "A_avg"]
    print_numbers(
        console,
        ["method", *accuracies, "upload\nKiB", "client\nsec", "server\nsec"],
        [
            [
                r.label,
                *(f"{a:.1f}" for a in [*r.A, r.A_avg]),
                f"{r.max_upload / 1024:.1f}",
                f"{client_seconds(r):.3f}",
                f"{server_seconds(r):.3f}",
            ]
            for r in results
        ],
    )
    console.print(NEXT)
