"""Progress of a sweep: lines of text and the estimated time left."""

import io
from types import SimpleNamespace

import pytest

from fedran_bench.run import progress
from fedran_bench.run.progress import Reporter


@pytest.fixture
def now(monkeypatch):
    """A clock that the test sets."""
    time = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: time[0])
    return time


class Named(str):
    """Stands for a job."""

    choice = SimpleNamespace(label="X")


def test_the_reporter_prints_one_line_per_minute_of_a_long_run(now):
    out = io.StringIO()
    plain, job = Reporter(out), Named("long")
    plain.begin([job], 0)
    plain.start(job)
    for _ in range(4):
        now[0] += 30
        plain.step(job, "task 1, round 3: client-0 sent 5 bytes")
    assert out.getvalue().splitlines() == [
        "1 run to do, 0 already done",
        "run 1: long",
        "run 1 (X), task 1, round 3: client-0 sent 5 bytes",
        "run 1 (X), task 1, round 3: client-0 sent 5 bytes",
    ]
