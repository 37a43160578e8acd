"""How a sweep tells what it does: lines of text here, a progress bar in the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from fedran.bench.results.metrics import task_seconds
from fedran.bench.results.result import Result
from fedran.bench.run.time_left import Clock, Planned, duration

QUIET = 60.0
"""Seconds after which a log gets a line from within a run."""


class Reporter(Protocol):
    """What a sweep calls as it goes."""

    def begin(self, planned: Sequence[Planned], skipped: int, workers: int) -> None:
        """Before the first run; ``workers`` run side by side."""
        ...

    def learn(self, result: Result) -> None:
        """A result of an earlier sweep: how long such runs take."""
        ...

    def start(self, run: str) -> None:
        """A run begins."""
        ...

    def step(self, run: str, what: str) -> None:
        """A step of a run is done."""
        ...

    def finished(self, run: str, result: Result) -> None:
        """A run is done and its result on disk."""
        ...

    def failed(self, run: str, reason: str) -> None:
        """A run could not be done."""
        ...

    def note(self, text: str) -> None:
        """Something worth knowing."""
        ...


class PlainReporter:
    """One line a run, and one a minute within it, with time left; for logs."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stderr
        self.clock = Clock()
        self.total = self.count = 0
        self.said = time.monotonic()

    def begin(self, planned: Sequence[Planned], skipped: int, workers: int) -> None:
        """Say how much there is to do."""
        self.clock.plan(planned, workers)
        self.total = len(planned)
        self._say(f"{self.total} runs to do, {skipped} done before")

    def learn(self, result: Result) -> None:
        """Remember how long it took."""
        self.clock.learn(result)

    def start(self, run: str) -> None:
        """Nothing to say yet."""
        self.clock.start(run)

    def step(self, run: str, what: str) -> None:
        """A line, where the last one is a minute old."""
        self.clock.step(run)
        if time.monotonic() - self.said >= QUIET:
            self._say(f"{self.count}/{self.total} done; {run}: {what}{self._left()}")

    def finished(self, run: str, result: Result) -> None:
        """Accuracy, bytes, seconds, time left."""
        self.count += 1
        self.clock.done(run)
        self._say(f"[{self.count}/{self.total}] {run}: {summary(result)}{self._left()}")

    def failed(self, run: str, reason: str) -> None:
        """What went wrong."""
        self.count += 1
        self.clock.done(run)
        self._say(f"[{self.count}/{self.total}] {run}: FAILED: {reason}{self._left()}")

    def note(self, text: str) -> None:
        """A line."""
        self._say(text)

    def _left(self) -> str:
        seconds = self.clock.seconds_left()
        return "" if not seconds else f"; about {duration(seconds)} left"

    def _say(self, text: str) -> None:
        self.said = time.monotonic()
        print(text, file=self.out, flush=True)


def summary(result: Result) -> str:
    """A result in one phrase."""
    return (
        f"A_avg {result.A_avg:.2f}, A_T {result.A_T:.2f}, "
        f"{result.max_upload / 2**20:.2f} MiB, {task_seconds(result):.2f} s a task"
    )
