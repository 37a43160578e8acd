"""How a sweep tells what it does: lines of text here, a progress bar in the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from fedran.bench.metrics import task_seconds
from fedran.bench.result import Result

Planned = tuple[str, str, int]
"""A run to come: its description, its method's label, its steps."""


class Reporter(Protocol):
    """What a sweep calls as it goes."""

    def begin(self, planned: Sequence[Planned], skipped: int) -> None:
        """Before the first run."""
        ...

    def learn(self, result: Result) -> None:
        """A result of an earlier sweep: how long such runs take."""
        ...

    def start(self, what: str) -> None:
        """A run begins."""
        ...

    def step(self, what: str) -> None:
        """A step of the run is done."""
        ...

    def finished(self, what: str, result: Result) -> None:
        """A run is done and its result on disk."""
        ...

    def failed(self, what: str, reason: str) -> None:
        """A run could not be done."""
        ...

    def note(self, text: str) -> None:
        """Something worth knowing."""
        ...


class Clock:
    """Time left: runs to come take as long as runs of the same method did, or as the mean run."""

    def __init__(self) -> None:
        self.left: list[tuple[str, str]] = []
        self.took: dict[str, list[float]] = {}
        self.since = time.monotonic()

    def plan(self, planned: Sequence[Planned]) -> None:
        """What is to come."""
        self.left = [(what, label) for what, label, _ in planned]
        self.since = time.monotonic()

    def learn(self, result: Result) -> None:
        """How long an earlier run of a method took, about."""
        clients = len(result.tasks[0].seconds.client)
        seconds = sum(sum(t.seconds.client) + t.seconds.server for t in result.tasks)
        self.took.setdefault(result.label, []).append(seconds if clients else task_seconds(result))

    def done(self, what: str) -> None:
        """A run is over."""
        now = time.monotonic()
        label = next((label for name, label in self.left if name == what), "")
        if (what, label) in self.left:
            self.left.remove((what, label))
        self.took.setdefault(label, []).append(now - self.since)
        self.since = now

    def seconds_left(self, share_done: float = 0.0) -> float | None:
        """None before anything is known; ``share_done`` of all steps serves until a run is over."""
        elapsed = time.monotonic() - self.since
        known = [s for times in self.took.values() for s in times]
        if not known:
            return elapsed * (1 / share_done - 1) if share_done > 0 else None
        mean = sum(known) / len(known)
        ahead = sum(
            sum(self.took[label]) / len(self.took[label]) if label in self.took else mean
            for _, label in self.left
        )
        return max(0.0, ahead - elapsed)


class PlainReporter:
    """One line a run, with time left; for logs and machines without a terminal."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stderr
        self.clock = Clock()
        self.total = self.count = 0

    def begin(self, planned: Sequence[Planned], skipped: int) -> None:
        """Say how much there is to do."""
        self.clock.plan(planned)
        self.total = len(planned)
        self._say(f"{self.total} runs to do, {skipped} done before")

    def learn(self, result: Result) -> None:
        """Remember how long it took."""
        self.clock.learn(result)

    def start(self, what: str) -> None:
        """Nothing: the line comes when the run is done."""

    def step(self, what: str) -> None:
        """Nothing: a log needs no steps."""

    def finished(self, what: str, result: Result) -> None:
        """Accuracy, bytes, seconds, time left."""
        self.count += 1
        self.clock.done(what)
        self._say(f"[{self.count}/{self.total}] {what}: {summary(result)}{self._left()}")

    def failed(self, what: str, reason: str) -> None:
        """What went wrong."""
        self.count += 1
        self.clock.done(what)
        self._say(f"[{self.count}/{self.total}] {what}: FAILED: {reason}{self._left()}")

    def note(self, text: str) -> None:
        """A line."""
        self._say(text)

    def _left(self) -> str:
        seconds = self.clock.seconds_left()
        return "" if not seconds else f"; about {duration(seconds)} left"

    def _say(self, text: str) -> None:
        print(text, file=self.out, flush=True)


def summary(result: Result) -> str:
    """A result in one phrase."""
    return (
        f"A_avg {result.A_avg:.2f}, A_T {result.A_T:.2f}, "
        f"{result.max_upload / 2**20:.2f} MiB, {task_seconds(result):.2f} s a task"
    )


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
