"""``fedran demo``: five methods on scikit-learn's digits, as a table."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedran.cli.tables import print_numbers
from fedran_bench.demo import (
    BETA,
    N_CLIENTS,
    N_TASKS,
    OUT_FEATURES,
    PAPER_RANK,
    RANK,
    demo_steps,
    run_demo,
)
from fedran_bench.results.metrics import client_seconds, server_seconds

NEXT = """
[bold]How to read the table[/bold]
  A_t      accuracy in percent on all classes seen after task t. Nothing is
           trained or replayed. A_T is the last value, A_avg the mean. A_t falls
           because there are more classes to distinguish, not by forgetting.
  upload   the largest message that a client sent in a task, as measured.
  sec      mean seconds per task of one client, and of the server.

[bold]Where to go next[/bold]
  source .venv/bin/activate           makes the command fedran available
  README.md                           a classifier in eleven lines of Python
  docs/tutorial.md                    a federation in your own code
  fedran plan --budget 300kB --out-features 8192 --classes 20 --in-features 1280
              --rows 2000             the message for a byte budget
  fedran inspect FILE                 the content of an upload, a head, a server
  fedran bench run configs/digits.toml      every method on these digits"""


def demo() -> None:
    """Compare five methods on scikit-learn's digits. Takes some seconds.

    Five clients learn five tasks of two classes each.
    """
    console = Console(highlight=False)
    console.print(
        f"[bold]FedRAN demo[/bold]: scikit-learn digits, {N_CLIENTS} clients, {N_TASKS} tasks of "
        f"2 classes,\nDirichlet {BETA}, M = {OUT_FEATURES} random features, our rank {RANK}, "
        f"the paper's {PAPER_RANK}"
    )
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        job = bar.add_task("starting", total=demo_steps())
        results = list(run_demo(lambda what: bar.update(job, advance=1, description=what)))
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
    console.print("\n[bold]What each client of FedRAN sent[/bold], KiB")
    print_numbers(
        console,
        ["task", *(f"client {k}" for k in range(N_CLIENTS))],
        [
            [str(t), *(f"{n / 1024:.1f}" for n in record.bytes_up)]
            for t, record in enumerate(results[0].tasks, start=1)
        ],
    )
    console.print(NEXT)
