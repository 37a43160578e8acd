"""``fedran demo``: watch four methods learn the digits, then read the table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedran.bench.demo import (
    BETA,
    N_CLIENTS,
    N_TASKS,
    OUT_FEATURES,
    PAPER_RANK,
    RANK,
    demo_steps,
    run_demo,
)
from fedran.bench.results.metrics import client_seconds, server_seconds
from fedran.bench.results.result import Result

NEXT = """
[bold]How to read it[/bold]
  A_t      accuracy in percent over all classes seen after task t; nothing was
           trained or replayed. A_T is the last one, A_avg the mean. It falls
           because there are more classes to tell apart, not by forgetting.
  upload   the largest message any client sent in any task, as measured.
  sec      mean seconds of one client, and of the server, in one task.

[bold]Where to go next[/bold]
  source .venv/bin/activate           puts this folder's fedran on your path
  README.md                           twelve lines of Python
  docs/tutorial.md                    a federation in your own code
  fedran plan --budget 2MB --out-features 8192 --classes 20
                                      what fits a byte budget
  fedran inspect FILE                 what is in an upload, a head, a server
  fedran run configs/digits.toml      every method on these digits"""


def demo() -> None:
    """Four methods on scikit-learn's digits: 5 clients, 5 tasks of 2 classes. Takes seconds."""
    console = Console()
    console.print(
        f"[bold]FedRAN demo[/bold]: scikit-learn digits, {N_CLIENTS} clients, {N_TASKS} tasks of "
        f"2 classes,\nDirichlet {BETA}, M = {OUT_FEATURES} random features, our rank {RANK}, "
        f"the paper's {PAPER_RANK}",
        highlight=False,
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
    console.print(_table(results))
    console.print("\n[bold]What each client of FedRAN sent[/bold], KiB", highlight=False)
    console.print(_uploads(results[0]))
    console.print(NEXT, highlight=False)


def _uploads(result: Result) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("task")
    for k in range(N_CLIENTS):
        table.add_column(f"client {k}", justify="right")
    for t, record in enumerate(result.tasks):
        table.add_row(str(t + 1), *(f"{n / 1024:.1f}" for n in record.bytes_up))
    return table


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    accuracies = [f"A_{t}" for t in range(1, N_TASKS)] + ["A_T", "A_avg"]
    for name in (*accuracies, "upload\nKiB", "client\nsec", "server\nsec"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        table.add_row(
            r.label,
            *(f"{a:.2f}" for a in [*r.A, r.A_avg]),
            f"{r.max_upload / 1024:.1f}",
            f"{client_seconds(r):.3f}",
            f"{server_seconds(r):.3f}",
        )
    return table
