"""``fedran bench run``: an experiment or a sweep."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedran_bench.results.grouping import counted
from fedran_bench.run.config import load_config
from fedran_bench.run.progress import Reporter
from fedran_bench.run.sweep import execute, list_runs


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
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the results.")] = Path(
        "runs"
    ),
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

    Without a file, the stream has 5 tasks (fewer if there are fewer classes),
    5 clients and beta 0.5; --set changes it.

    Every task prints a line, every run the time left.
    """
    overrides = list(overrides or [])
    if label is not None:
        overrides.append(f"label_column={json.dumps(label, ensure_ascii=False)}")
    experiment = load_config(config, overrides, method or [], dataset or [])
    console = Console()
    if dry_run:
        lines, possible = list_runs(experiment, out, device)
        for line in lines:
            console.print(escape(line), highlight=False, soft_wrap=True)
        raise typer.Exit(0 if possible else 1)
    console.print(f"[bold]{escape(experiment.name)}[/bold]", highlight=False)
    try:
        outcome = execute(experiment, out, Reporter(), device=device, workers=workers)
    except KeyboardInterrupt:
        console.print("Stopped: the same command continues from here.", highlight=False)
        raise
    done, skipped, failed = outcome.done, outcome.skipped, len(outcome.failed)
    text = f"{counted(done, 'run')} done, {skipped} skipped, {failed} failed"
    if done + skipped:
        look = f"Look at them: fedran bench report {shlex.quote(str(out))}"
        text = f"{text}. Results: {outcome.file}\n{look}"
    console.print(escape(text), highlight=False, soft_wrap=True)
    if outcome.failed:
        raise typer.Exit(1)
