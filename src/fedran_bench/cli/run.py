"""``fedran bench run``: an experiment or a sweep, with a progress bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from fedran_bench.results.result import Result
from fedran_bench.run.config import load_or_quick
from fedran_bench.run.progress import PlainReporter, PlannedJob, Reporter, summary
from fedran_bench.run.sweep import DEFAULT_OUT, HOW_TO_CONTINUE, execute, list_runs


def at_least_one(number: int) -> int:
    """The number itself; Typer's own check would put a formula into the help text."""
    if number < 1:
        raise typer.BadParameter(f"expected 1 or more, got {number}")
    return number


def run(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", help="Configuration of the experiment."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Without a file: a method to run. May be repeated."),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Without a file: a dataset or its path. May be repeated."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of labels in a table; else label."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the results.")
    ] = DEFAULT_OUT,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting: stream.beta=0.5, method.rank=64, methods=afl. May be repeated.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Accelerator for methods that can use one, e.g. cuda."),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--jobs", metavar="N", callback=at_least_one, help="Number of runs at the same time."
        ),
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Open the data and list the runs; run nothing.")
    ] = False,
) -> None:
    """Run an experiment or a sweep. Runs that are already done are skipped.

    After an interruption the same command continues.

    Without a file, the stream has 5 tasks (fewer if there are fewer classes), 5 clients and beta
    0.5; --set changes it.

    Where the output is not a terminal, each task prints a line.
    """
    overrides = list(overrides or [])
    if label is not None:
        overrides.append(f"label_column={json.dumps(label, ensure_ascii=False)}")
    experiment = load_or_quick(config, method or [], dataset or [], overrides)
    console = Console()
    if dry_run:
        lines, possible = list_runs(experiment, out, device)
        for line in lines:
            console.print(escape(line), highlight=False, soft_wrap=True)
        raise typer.Exit(0 if possible else 1)
    console.print(f"[bold]{escape(experiment.name)}[/bold]", highlight=False)
    try:
        bar = BarReporter(console) if console.is_terminal else None
        with bar.bar if bar else nullcontext():
            reporter = bar or PlainReporter(sys.stdout)
            outcome = execute(experiment, out, reporter, device=device, workers=workers)
    except KeyboardInterrupt:
        console.print(f"Stopped: {HOW_TO_CONTINUE}.", highlight=False)
        raise
    console.print(escape(outcome.summary), highlight=False, soft_wrap=True)
    if outcome.failed:
        raise typer.Exit(1)


class BarReporter(Reporter):
    """A progress bar over all steps with the time left, and one line per finished run."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("{task.percentage:>3.0f} %", table_column=Column(no_wrap=True)),
            BarColumn(16, table_column=Column(min_width=16)),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn(
                "{task.description}",
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=console,
            transient=True,
            expand=True,
        )
        self.row = self.bar.add_task("starting", total=None)
        self.left: dict[str, int] = {}
        """Steps of each run that are not done."""
        self.labels: dict[str, str] = {}

    def begin(self, todo: Sequence[PlannedJob], skipped: int) -> None:
        """Set the length of the bar."""
        self.left = {job.name: job.steps for job in todo}
        self.labels = {job.name: job.label for job in todo}
        self.bar.update(self.row, total=sum(self.left.values()))
        if skipped:
            self.note(f"{skipped} runs are already done and are skipped")

    def start(self, run: str) -> None:
        """Show the run beside the bar."""
        self._move(run, 0, self.labels.get(run, run))

    def step(self, run: str, what: str) -> None:
        """Move the bar."""
        self._move(run, 1, f"{self.labels.get(run, run)}, {what}")

    def finished(self, run: str, result: Result) -> None:
        """Print a line above the bar."""
        self._print(f"{escape(run)}: {summary(result)}")
        self._move(run, self.left.get(run, 0), "")

    def failed(self, run: str, reason: str) -> None:
        """Print a line above the bar."""
        self._print(f"[red]failed[/red] {escape(run)}: {escape(reason)}")
        self._move(run, self.left.get(run, 0), "")

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._print(escape(text))

    def _print(self, line: str) -> None:
        self.bar.console.print(line, highlight=False, soft_wrap=True)

    def _move(self, run: str, steps: int, what: str) -> None:
        steps = min(steps, self.left.get(run, 0))
        self.left[run] = self.left.get(run, 0) - steps
        self.bar.update(self.row, advance=steps, description=escape(what))
