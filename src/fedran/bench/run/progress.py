"""Progress of a sweep: runs to come, time left, and lines of text for logs.

The command line shows a progress bar instead (``fedran.cli.run``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from fedran.bench.results.grouping import counted
from fedran.bench.results.metrics import task_seconds
from fedran.bench.results.result import Result
from fedran.bench.run.job import Job
from fedran.bench.run.memory import Needs
from fedran.bench.run.tracking import TaskDone, Tracker
from fedran.core.errors import printable
from fedran.wire.sizes import human_bytes

LOG_SECONDS = 60.0
"""Seconds between two log lines during a run."""


@dataclass(frozen=True)
class PlannedJob:
    """A job of a sweep that is still to be run."""

    job: Job
    steps: int = 0
    checkpoint: Path | None = None
    needs: Needs | None = None
    problem: str = ""
    """Why it cannot run, or '' where it can."""
    row_shape: tuple[int, int] | None = None
    """Training rows of the stream and their features; None for methods on images."""

    @property
    def name(self) -> str:
        """Method, settings, dataset and stream in one line."""
        return str(self.job)

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return self.job.choice.label


@dataclass
class _Pace:
    """When a run began, and how many steps it has done."""

    since: float
    steps: int = 0


class Reporter:
    """What a sweep calls as it goes. Runs are identified by the names of their jobs.

    This class tells the trackers and estimates the time left. Subclasses show the progress.
    """

    def __init__(self) -> None:
        self.trackers: list[Tracker] = []
        self.left: list[PlannedJob] = []
        self.durations: dict[str, list[float]] = {}
        """Seconds of the finished runs of each method."""
        self.running: dict[str, _Pace] = {}
        self.workers = 1

    def begin(self, planned: Sequence[PlannedJob], skipped: int, workers: int) -> None:  # noqa: ARG002
        """Before the first run. ``workers`` run side by side, ``skipped`` are already done."""
        self.left, self.workers = list(planned), max(1, workers)

    def learn(self, result: Result) -> None:
        """A result of an earlier sweep shows about how long its method takes."""
        seconds = sum(sum(t.seconds.client) + t.seconds.server for t in result.tasks)
        self.durations.setdefault(result.label, []).append(seconds)

    def start(self, run: str) -> None:
        """A run begins."""
        self.running.setdefault(run, _Pace(time.monotonic()))
        job = next((p.job for p in self.left if p.name == run), None)
        self.tell_trackers("start", run, {} if job is None else job.settings)

    def step(self, run: str, what: str) -> None:  # noqa: ARG002
        """A step of a run is done."""
        self.running.setdefault(run, _Pace(time.monotonic())).steps += 1

    def task_done(self, run: str, done: TaskDone) -> None:
        """A task of a run was tested."""
        self.tell_trackers("task_done", run, done)

    def finished(self, run: str, result: Result) -> None:
        """A run is done and its result is on disk."""
        self.tell_trackers("finished", run, result)
        self._end(run)

    def failed(self, run: str, reason: str) -> None:
        """A run failed or could not start."""
        self.tell_trackers("failed", run, reason)
        self._end(run)

    def note(self, text: str) -> None:
        """Information for the user."""

    def tell_trackers(self, event: str, *given: Any) -> None:
        """Call every tracker. One that raises is noted and gets no further calls."""
        for tracker in list(self.trackers):
            try:
                getattr(tracker, event)(*given)
            except Exception as error:  # a network or a full disk must not end the runs
                self.trackers.remove(tracker)
                name = type(tracker).__name__
                self.note(f"{name} is switched off: {type(error).__name__}: {error}")

    def seconds_left(self) -> float | None:
        """The estimated time left; None before anything is known.

        A run that has started continues at its own pace. A later run takes as long as other runs
        of its method. If there are none, it takes as long as the mean run.
        """
        under_way: dict[str, float] = {}
        for planned in self.left:
            pace = self.running.get(planned.name)
            if pace is not None and pace.steps:
                per_step = (time.monotonic() - pace.since) / pace.steps
                under_way[planned.name] = per_step * max(planned.steps, pace.steps)
        known = [s for times in self.durations.values() for s in times] + list(under_way.values())
        if not known:
            return None if self.left else 0.0
        mean, total, seen = sum(known) / len(known), 0.0, set()
        for planned in self.left:
            times = self.durations.get(planned.label)
            whole = sum(times) / len(times) if times else mean
            if planned.name in self.running and planned.name not in seen:
                seen.add(planned.name)
                passed = time.monotonic() - self.running[planned.name].since
                whole = max(0.0, under_way.get(planned.name, whole) - passed)
            total += whole
        return total / min(self.workers, max(1, len(self.left)))

    def _end(self, run: str) -> None:
        pace = self.running.pop(run, None)
        found = next((p for p in self.left if p.name == run), None)
        if found is not None:
            self.left.remove(found)
            if pace is not None:
                self.durations.setdefault(found.label, []).append(time.monotonic() - pace.since)


class PlainReporter(Reporter):
    """Lines of text for logs: one per task and two per run, and one per minute of a long task.

    A run is described once, when it starts. Later lines have its number and its method.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        super().__init__()
        self.out = out or sys.stderr
        self.total = self.count = 0
        self.last_line = time.monotonic()
        self.short: dict[str, str] = {}
        """Number and method of each run that has started."""

    def begin(self, planned: Sequence[PlannedJob], skipped: int, workers: int) -> None:
        """Print how many runs there are."""
        super().begin(planned, skipped, workers)
        self.total = len(planned)
        self.note(f"{counted(self.total, 'run')} to do, {skipped} already done")

    def start(self, run: str) -> None:
        """Print the number and the description of the run."""
        super().start(run)
        label = next((p.label for p in self.left if p.name == run), "")
        number = len(self.short) + 1
        self.short.setdefault(run, f"run {number} ({label})")
        self.note(f"{self.short[run].partition(' (')[0]}: {run}")

    def step(self, run: str, what: str) -> None:
        """Print a line if the last one is a minute old."""
        super().step(run, what)
        if time.monotonic() - self.last_line >= LOG_SECONDS:
            self.note(f"{self.short[run]}, {what}{self._left()}")

    def task_done(self, run: str, done: TaskDone) -> None:
        """Print the figures of the task."""
        super().task_done(run, done)
        self.note(f"{self.short[run]}, {done}")

    def finished(self, run: str, result: Result) -> None:
        """Print accuracy, bytes, seconds and the time left."""
        super().finished(run, result)
        self._report_end(run, summary(result))

    def failed(self, run: str, reason: str) -> None:
        """Print the reason."""
        super().failed(run, reason)
        self._report_end(run, f"FAILED: {reason}")

    def note(self, text: str) -> None:
        """Print a line."""
        self.last_line = time.monotonic()
        print(printable(text, 4000), file=self.out, flush=True)

    def _report_end(self, run: str, what: str) -> None:
        self.count += 1
        self.note(f"[{self.count}/{self.total}] {self.short.get(run, run)}: {what}{self._left()}")

    def _left(self) -> str:
        seconds = self.seconds_left()
        return f"; about {duration(seconds)} left" if seconds else ""


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
