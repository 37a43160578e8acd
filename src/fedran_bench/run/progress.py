"""Progress of a sweep: runs to come, time left, and lines of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from fedran.core.errors import printable
from fedran.wire.sizes import human_bytes
from fedran_bench.results.grouping import counted, task_seconds
from fedran_bench.results.result import Result
from fedran_bench.run.job import Job
from fedran_bench.run.runner import TaskDone

LOG_SECONDS = 60.0
"""Seconds between two log lines during a run."""


@dataclass(frozen=True)
class PlannedJob:
    """A job of a sweep, and what is known about it before it runs."""

    job: Job
    steps: int = 0
    done: bool = False
    """Whether its result exists already."""
    problem: str = ""
    """Why it cannot run, or '' where it can."""

    @property
    def name(self) -> str:
        """Method, settings, dataset and stream in one line."""
        return str(self.job)

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return self.job.choice.label


class Reporter:
    """What a sweep calls as it goes. Runs are identified by the names of their jobs.

    Nothing is shown here. Subclasses override what they need.
    """

    def begin(self, todo: Sequence[PlannedJob], skipped: int) -> None:
        """Before the first run. ``skipped`` runs are already done."""

    def start(self, run: str) -> None:
        """A run begins."""

    def step(self, run: str, what: str) -> None:
        """A step of a run is done; a ``TaskDone`` where a task was tested in it."""

    def finished(self, run: str, result: Result) -> None:
        """A run is done and its result is on disk."""

    def failed(self, run: str, reason: str) -> None:
        """A run failed or could not start."""

    def note(self, text: str) -> None:
        """Information for the user."""


class PlainReporter(Reporter):
    """Lines of text for logs: one per task and two per run, and one per minute of a long task.

    A run is described once, when it starts. Later lines have its number and its method.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stderr
        self.total = self.count = 0
        self.began = self.last_line = time.monotonic()
        self.labels: dict[str, str] = {}
        self.short: dict[str, str] = {}
        """Number and method of each run that has started."""

    def begin(self, todo: Sequence[PlannedJob], skipped: int) -> None:
        """Print how many runs there are."""
        self.total, self.began = len(todo), time.monotonic()
        self.labels = {planned.name: planned.label for planned in todo}
        self.note(f"{counted(self.total, 'run')} to do, {skipped} already done")

    def start(self, run: str) -> None:
        """Print the number and the description of the run."""
        number = len(self.short) + 1
        self.short[run] = f"run {number} ({self.labels.get(run, '')})"
        self.note(f"run {number}: {run}")

    def step(self, run: str, what: str) -> None:
        """Print the figures of a task, and other steps if the last line is a minute old."""
        if isinstance(what, TaskDone) or time.monotonic() - self.last_line >= LOG_SECONDS:
            self.note(f"{self.short[run]}, {what}")

    def finished(self, run: str, result: Result) -> None:
        """Print accuracy, bytes, seconds and the time left."""
        self._report_end(run, summary(result))

    def failed(self, run: str, reason: str) -> None:
        """Print the reason."""
        self._report_end(run, f"FAILED: {reason}")

    def note(self, text: str) -> None:
        """Print a line."""
        self.last_line = time.monotonic()
        print(printable(text, 4000), file=self.out, flush=True)

    def _report_end(self, run: str, what: str) -> None:
        """The time left: the other runs take as long as those so far."""
        self.count += 1
        seconds = (time.monotonic() - self.began) / self.count * (self.total - self.count)
        left = f"; about {duration(seconds)} left" if self.count < self.total else ""
        self.note(f"[{self.count}/{self.total}] {self.short.get(run, run)}: {what}{left}")


def summary(result: Result) -> str:
    """Accuracy, largest upload and seconds of a result, in one line."""
    return (
        f"A_avg {result.A_avg:.2f}, A_T {result.A_T:.2f}, "
        f"{human_bytes(result.max_upload)}, {task_seconds(result):.3g} s per task"
    )


def duration(seconds: float) -> str:
    """Seconds as text in suitable units.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
