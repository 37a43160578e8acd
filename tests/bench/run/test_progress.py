"""Progress of a sweep: lines of text and the estimated time left."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fedran.bench.run import progress
from fedran.bench.run.progress import PlainReporter, Reporter, duration, summary
from fedran.bench.run.tracking import TaskDone
from helpers.made_up import made_up


@pytest.fixture
def now(monkeypatch):
    """A clock that the test sets."""
    time = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: time[0])
    return time


def planned(*pairs, steps=10):
    job = SimpleNamespace(settings={})
    return [SimpleNamespace(name=n, label=label, steps=steps, job=job) for n, label in pairs]


def clock_of(*pairs, workers=1):
    clock = Reporter()
    clock.begin(planned(*pairs), 0, workers)
    return clock


def ran(clock, now, run, seconds):
    clock.start(run)
    now[0] += seconds
    clock.failed(run, "")


def test_the_time_left_is_unknown_before_the_first_step(now):
    clock = clock_of(("a", "X"))
    clock.start("a")
    assert clock.seconds_left() is None


def test_runs_to_come_take_as_long_as_runs_of_the_same_method(now):
    clock = clock_of(("x 1", "X"), ("y 1", "Y"), ("x 2", "X"), ("x 3", "X"), ("y 2", "Y"))
    ran(clock, now, "x 1", 10)
    assert clock.seconds_left() == pytest.approx(4 * 10)
    ran(clock, now, "y 1", 2)
    assert clock.seconds_left() == pytest.approx(2 * 10 + 2)
    ran(clock, now, "x 2", 20)
    assert clock.seconds_left() == pytest.approx(15 + 2)


def test_methods_that_never_ran_take_the_mean_time(now):
    clock = clock_of(("x", "X"), ("y", "Y"), ("z", "Z"))
    ran(clock, now, "x", 4)
    ran(clock, now, "y", 6)
    assert clock.seconds_left() == pytest.approx(5)


def test_earlier_results_show_how_long_runs_take(now):
    clock = clock_of(("a", "fedran"), ("b", "fedran"))
    result = made_up("fedran", tasks=2, clients=3)
    clock.learn(result)
    one = sum(sum(t.seconds.client) + t.seconds.server for t in result.tasks)
    assert clock.seconds_left() == pytest.approx(2 * one)


def test_a_run_under_way_goes_on_at_its_own_pace(now):
    clock = clock_of(("short", "X"), ("long", "Y"))
    ran(clock, now, "short", 1)
    clock.start("long")
    for _ in range(4):
        now[0] += 100
        clock.step("long", "")
    assert clock.seconds_left() == pytest.approx(600)


def test_the_steps_of_the_first_run_show_how_long_runs_take(now):
    clock = clock_of(("x 1", "X"), ("x 2", "X"))
    clock.start("x 1")
    now[0] = 10
    clock.step("x 1", "")
    assert clock.seconds_left() == pytest.approx(90 + 100)


def test_the_time_left_falls_within_a_run_and_never_below_zero(now):
    clock = clock_of(("x 1", "X"), ("x 2", "X"), ("x 3", "X"))
    ran(clock, now, "x 1", 10)
    clock.start("x 2")
    now[0] += 4
    assert clock.seconds_left() == pytest.approx(16)
    now[0] += 100
    assert clock.seconds_left() == pytest.approx(10)


def test_runs_side_by_side_share_the_time(now):
    clock = clock_of(("x 1", "X"), ("x 2", "X"), ("x 3", "X"), ("x 4", "X"), workers=2)
    clock.start("x 1")
    clock.start("x 2")
    now[0] = 10
    clock.step("x 1", "")
    clock.step("x 2", "")
    assert clock.seconds_left() == pytest.approx((90 + 90 + 100 + 100) / 2)


def test_the_time_left_ends_at_zero(now):
    clock = clock_of(("a", "X"))
    ran(clock, now, "a", 3)
    assert clock.seconds_left() == 0


def test_an_impossible_run_says_nothing_about_the_time_of_others(now):
    clock = clock_of(("a", "X"), ("b", "X"))
    clock.failed("a", "")
    assert clock.seconds_left() is None


def test_two_runs_with_the_same_description_count_twice(now):
    clock = clock_of(("a", "X"), ("b", "X"), ("b", "X"))
    ran(clock, now, "a", 3)
    assert clock.seconds_left() == pytest.approx(6)


def test_the_plain_reporter_describes_a_run_once_and_prints_one_line_per_task(now):
    out = io.StringIO()
    plain = PlainReporter(out)
    plain.begin(planned(("first", "X"), ("second", "X"), ("third", "X")), 4, 1)
    plain.start("first")
    plain.step("first", "task 1")
    plain.task_done("first", TaskDone(1, 2, 87.654, 792, 0.00123))
    now[0] = 50
    plain.task_done("first", TaskDone(2, 2, 80.0, 3 * 2**19, 12.345))
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
        "run 1 (X), task 1 of 2: accuracy 87.65, upload 792 B, 0.00123 s",
        "run 1 (X), task 2 of 2: accuracy 80.00, upload 1.50 MiB, 12.3 s",
        f"[1/3] run 1 (X): {summary(result)}; about 2 min left",
        "run 2: second",
        "[2/3] run 2 (X): FAILED: no images; about 50 s left",
        "by the way",
        f"[3/3] third: {summary(result)}",
    ]


def test_the_plain_reporter_prints_one_line_per_minute_of_a_long_run(now):
    out = io.StringIO()
    plain = PlainReporter(out)
    plain.begin(planned(("long", "X")), 0, 1)
    plain.start("long")
    for _ in range(4):
        now[0] += 30
        plain.step("long", "task 1, round 3: client-0 sent 5 bytes")
    assert out.getvalue().splitlines() == [
        "1 run to do, 0 already done",
        "run 1: long",
        "run 1 (X), task 1, round 3: client-0 sent 5 bytes; about 4 min left",
        "run 1 (X), task 1, round 3: client-0 sent 5 bytes; about 3 min left",
    ]


def test_the_plain_reporter_prints_no_escape_sequences():
    out = io.StringIO()
    PlainReporter(out).failed("a\x1b[31m", "no file\nhere")
    assert out.getvalue() == r"[1/0] a\x1b[31m: FAILED: no file\nhere" + "\n"


def test_the_plain_reporter_prints_to_stderr_by_default(capsys):
    PlainReporter().note("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_the_summary_of_a_result_is_one_line():
    result = replace(made_up(upload=3 * 2**20, tasks=1, clients=2), acc=[[0.875]])
    assert summary(result) == "A_avg 87.50, A_T 87.50, 3.00 MiB, 0.85 s per task"
    assert ", 500 B, " in summary(made_up(upload=500))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.6, "1 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (600, "10 min"),
        (89 * 60, "89 min"),
        (90 * 60, "1 h 30 min"),
        (7200, "2 h 0 min"),
        (100 * 3600, "100 h 0 min"),
    ],
)
def test_durations_are_shown_in_seconds_minutes_or_hours(seconds, text):
    assert duration(seconds) == text
