"""``fedran run CONFIG.toml``: an experiment or a sweep, with a progress bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedran.bench.results.result import Result
from fedran.bench.run.__main__ import OUT
from fedran.bench.run.config import load_config
from fedran.bench.run.job import jobs
from fedran.bench.run.progress import summary
from fedran.bench.run.sweep import execute
from fedran.bench.run.time_left import Clock, Planned, duration


def run(
    config: Annotated[Path, typer.Argument(help="The experiment (.toml).")],
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = OUT,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="e.g. stream.beta=0.5, method.rank=64, methods=afl"
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Accelerator for methods that can use one, e.g. cuda.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--jobs", min=1, help="Processes side by side, as memory allows.")
    ] = 1,
    streams: Annotated[
        Path | None, typer.Option(help="Folder to keep the streams in, as files.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
) -> None:
    """Run an experiment or a sweep; what is done already is not run again."""
    experiment = load_config(config, overrides or [])
    console = Console()
    if dry_run:
        for job in jobs(experiment):
            console.print(escape(str(job)), highlight=False, soft_wrap=True)
        return
    console.print(f"[bold]{escape(experiment.name)}[/bold]", highlight=False)
    with BarReporter(console) as reporter:
        outcome = execute(
            experiment, out, reporter, device=device, workers=workers, streams=streams
        )
    console.print(
        f"{outcome.done} runs done, {outcome.skipped} before, {len(outcome.failed)} failed. "
        f"Results: {escape(str(outcome.file))}\nLook at them: fedran report {escape(str(out))}",
        highlight=False,
        soft_wrap=True,
    )
    if outcome.failed:
        raise typer.Exit(1)


class BarReporter:
    """A bar over all steps, a line for each finished run, and the time left."""

    def __init__(self, console: Console) -> None:
        self.console, self.clock = console, Clock()
        self.bar = Progress(
            TextColumn("{task.percentage:>3.0f} %"),
            BarColumn(24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
        )
        self.job = self.bar.add_task("starting", total=None, left="")
        self.steps: dict[str, int] = {}
        self.behind: dict[str, int] = {}
        self.labels: dict[str, str] = {}

    def __enter__(self) -> BarReporter:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def begin(self, planned: Sequence[Planned], skipped: int, workers: int) -> None:
        """Size the bar."""
        self.clock.plan(planned, workers)
        for run, label, steps in planned:
            self.labels[run] = label
            self.steps[run] = self.steps.get(run, 0) + steps
        self.bar.update(self.job, total=sum(self.steps.values()))
        if skipped:
            self.note(f"{skipped} runs were done before")

    def learn(self, result: Result) -> None:
        """Remember how long it took."""
        self.clock.learn(result)

    def start(self, run: str) -> None:
        """Name the run beside the bar."""
        self.clock.start(run)
        self.bar.update(self.job, description=escape(self.labels.get(run, run)))

    def step(self, run: str, what: str) -> None:
        """Move the bar."""
        self.clock.step(run)
        self.behind[run] = self.behind.get(run, 0) + 1
        self._move(f"{self.labels.get(run, run)}, {what}")

    def finished(self, run: str, result: Result) -> None:
        """A line above the bar."""
        self._over(run, f"{escape(run)}: {summary(result)}")

    def failed(self, run: str, reason: str) -> None:
        """A line above the bar."""
        self._over(run, f"[red]failed[/red] {escape(run)}: {escape(reason)}")

    def note(self, text: str) -> None:
        """A line above the bar."""
        self.bar.console.print(escape(text), highlight=False, soft_wrap=True)

    def _over(self, run: str, line: str) -> None:
        self.clock.done(run)
        self.behind[run] = self.steps.get(run, 0)
        self._move("")
        self.bar.console.print(line, highlight=False, soft_wrap=True)

    def _move(self, what: str) -> None:
        seconds = self.clock.seconds_left()
        self.bar.update(
            self.job,
            completed=sum(self.behind.values()),
            description=escape(what),
            left=f"{duration(seconds)} left" if seconds else "",
        )
