"""Progress of a sweep: runs to come, time left, and lines of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from fedran.core.errors import printable
from fedran.wire.sizes import human_bytes
from fedran_bench.results.grouping import counted, task_seconds
from fedran_bench.results.result import Result
from fedran_bench.run.job import Job
from fedran_bench.run.runner import TaskDone


class Reporter:
    """Lines of text: one per task and two per run, and one per minute of a long task.

    A run is described once, when it starts. Later lines have its number and its method.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.total = self.count = 0
        self.began = self.last_line = time.monotonic()
        self.short: dict[Job, str] = {}
        """Number and method of each run that has started."""

    def begin(self, todo: Sequence[Job], skipped: int) -> None:
        """Print how many runs there are."""
        self.total, self.began = len(todo), time.monotonic()
        self.note(f"{counted(self.total, 'run')} to do, {skipped} already done")

    def start(self, job: Job) -> None:
        """Print the number and the description of the run."""
        number = len(self.short) + 1
        self.short[job] = f"run {number} ({job.choice.label})"
        self.note(f"run {number}: {job}")

    def step(self, job: Job, what: str) -> None:
        """Print the figures of a task, and other steps if the last line is a minute old."""
        if isinstance(what, TaskDone) or time.monotonic() - self.last_line >= 60:
            self.note(f"{self.short[job]}, {what}")

    def finished(self, job: Job, result: Result) -> None:
        """Print accuracy, largest upload, seconds and the time left. The result is on disk."""
        figures = f"A_avg {result.A_avg:.2f}, A_T {result.A_T:.2f}"
        seconds = f"{task_seconds(result):.3g} s per task"
        self._end(job, f"{figures}, {human_bytes(result.max_upload)}, {seconds}")

    def failed(self, job: Job, reason: str) -> None:
        """Print why a run failed or could not start."""
        self._end(job, f"FAILED: {reason}")

    def note(self, text: str) -> None:
        """Print a line."""
        self.last_line = time.monotonic()
        print(printable(text, 4000), file=self.out, flush=True)

    def _end(self, job: Job, what: str) -> None:
        """The time left: the other runs take as long as those so far."""
        self.count += 1
        seconds = (time.monotonic() - self.began) / self.count * (self.total - self.count)
        left = f"; about {duration(seconds)} left" if self.count < self.total else ""
        self.note(f"[{self.count}/{self.total}] {self.short.get(job, job)}: {what}{left}")


def duration(seconds: float) -> str:
    """Seconds as text in suitable units.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
