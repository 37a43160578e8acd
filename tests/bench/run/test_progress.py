"""Progress of a sweep: lines of text and the estimated time left."""

import io
from types import SimpleNamespace

import pytest

from fedran_bench.run import progress
from fedran_bench.run.progress import PlainReporter, summary
from fedran_bench.run.runner import TaskDone
from helpers.bench.made_up import made_up


@pytest.fixture
def now(monkeypatch):
    """A clock that the test sets."""
    time = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: time[0])
    return time


def planned(*pairs):
    return [SimpleNamespace(name=name, label=label) for name, label in pairs]


def test_the_plain_reporter_describes_a_run_once_and_prints_one_line_per_task(now):
    out = io.StringIO()
    plain = PlainReporter(out)
    plain.begin(planned(("first", "X"), ("second", "X"), ("third", "X")), 4)
    plain.start("first")
    plain.step("first", "task 1")
    plain.step("first", TaskDone("task 1 of 2: accuracy 87.65"))
    now[0] = 50
    plain.step("first", TaskDone("task 2 of 2: accuracy 80.00"))
    result = made_up(upload=2**21)
    plain.finished("first", result)
    plain.start("second")
    now[0] = 100
    plain.failed("second", "no images")
    plain.note("by the way")
    plain.finished("third", result)
    assert out.getvalue().splitlines() == [
        "3 runs to do, 4 already done",
        "run 1: first",
        "run 1 (X), task 1 of 2: accuracy 87.65",
        "run 1 (X), task 2 of 2: accuracy 80.00",
        f"[1/3] run 1 (X): {summary(result)}; about 2 min left",
        "run 2: second",
        "[2/3] run 2 (X): FAILED: no images; about 50 s left",
        "by the way",
        f"[3/3] third: {summary(result)}",
    ]


def test_the_plain_reporter_prints_one_line_per_minute_of_a_long_run(now):
    out = io.StringIO()
    plain = PlainReporter(out)
    plain.begin(planned(("long", "X")), 0)
    plain.start("long")
    for _ in range(4):
        now[0] += 30
        plain.step("long", "task 1, round 3: client-0 sent 5 bytes")
    assert out.getvalue().splitlines() == [
        "1 run to do, 0 already done",
        "run 1: long",
        "run 1 (X), task 1, round 3: client-0 sent 5 bytes",
        "run 1 (X), task 1, round 3: client-0 sent 5 bytes",
    ]


def test_the_plain_reporter_prints_no_escape_sequences():
    out = io.StringIO()
    PlainReporter(out).failed("a\x1b[31m", "no file\nhere")
    assert out.getvalue() == r"[1/0] a\x1b[31m: FAILED: no file\nhere" + "\n"
