"""How much time is left in a sweep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fedran.bench.results.result import Result

Planned = tuple[str, str, int]
"""A run to come: its description, its method's label, its steps."""


@dataclass
class _Pace:
    """A run under way."""

    since: float
    steps: int = 0


class Clock:
    """A run under way goes on at its own pace; one to come takes as long as others of its method.

    Where no such run is known, as long as the mean run, finished or under way.
    """

    def __init__(self) -> None:
        self.left: list[Planned] = []
        self.took: dict[str, list[float]] = {}
        self.going: dict[str, _Pace] = {}
        self.workers = 1

    def plan(self, planned: Sequence[Planned], workers: int = 1) -> None:
        """What is to come, and how many runs go side by side."""
        self.left, self.workers = list(planned), max(1, workers)

    def learn(self, result: Result) -> None:
        """How long an earlier run of a method took, about."""
        seconds = sum(sum(t.seconds.client) + t.seconds.server for t in result.tasks)
        self.took.setdefault(result.label, []).append(seconds)

    def start(self, run: str) -> None:
        """A run begins."""
        self.going.setdefault(run, _Pace(time.monotonic()))

    def step(self, run: str) -> None:
        """A step of a run is done."""
        self.start(run)
        self.going[run].steps += 1

    def done(self, run: str) -> None:
        """A run is over, or was not possible."""
        found = next((p for p in self.left if p[0] == run), None)
        if found is not None:
            self.left.remove(found)
        pace = self.going.pop(run, None)
        if found is not None and pace is not None:
            self.took.setdefault(found[1], []).append(time.monotonic() - pace.since)

    def seconds_left(self) -> float | None:
        """None before anything is known."""
        under_way = {p[0]: t for p in self.left if (t := self._whole(p)) is not None}
        known = [s for times in self.took.values() for s in times] + list(under_way.values())
        if not known:
            return None if self.left else 0.0
        mean, total, seen = sum(known) / len(known), 0.0, set()
        for run, label, _ in self.left:
            times = self.took.get(label)
            whole = sum(times) / len(times) if times else mean
            if run in self.going and run not in seen:
                seen.add(run)
                passed = time.monotonic() - self.going[run].since
                whole = max(0.0, under_way.get(run, whole) - passed)
            total += whole
        return total / min(self.workers, max(1, len(self.left)))

    def _whole(self, planned: Planned) -> float | None:
        """Seconds that a run under way will take in all, from the steps it has done."""
        run, _, steps = planned
        pace = self.going.get(run)
        if pace is None or not pace.steps:
            return None
        return (time.monotonic() - pace.since) * max(steps, pace.steps) / pace.steps


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
