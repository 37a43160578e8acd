"""Programs that are kept running: restarts, groups of processes, their output."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from fedran.federation.ops import supervisor as keeping
from fedran.federation.ops.supervisor import Kept, end_group

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
# A shell whose child ignores SIGTERM, as does its child.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True);"
found = subprocess.Popen([sys.executable, "-S", "-c", child + "time.sleep(60)"])
print(os.getpid(), found.pid, flush=True)
time.sleep(60)
"""


def until(ready, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return ready()


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def text(path):
    return path.read_text() if path.is_file() else ""


def threads():
    return [t for t in threading.enumerate() if "_keep_output" in t.name]


@pytest.fixture
def kept(tmp_path):
    made = []

    def make(*command, **environment):
        found = Kept(
            "program", lambda: (list(command), {**os.environ, **environment}), tmp_path / "p.log"
        )
        made.append(found)
        return found

    yield make
    for found in made:
        found.stop(0.0)
    until(lambda: not threads())


class Clock:
    """Time that only a test moves."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class FakeProcess:
    """Ended, or not, as a test says."""

    pid, returncode, stdout = 2**22 + 1, 7, None

    def __init__(self, *_, **__):
        self.code = None

    def poll(self):
        return self.code

    def wait(self, *_):
        return self.code


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(keeping, "time", found)
    return found


@pytest.fixture
def fake(monkeypatch, clock):
    monkeypatch.setattr(keeping.subprocess, "Popen", FakeProcess)
    monkeypatch.setattr(keeping, "_keep_output", lambda *_: None)
    monkeypatch.setattr(keeping, "end_group", lambda *_: None)


def delay_until_start(program, clock):
    """Seconds from its end until it runs again."""
    program.process.code = 7
    program.tend()
    assert program.process is None
    start = clock.now
    while program.process is None:
        clock.now += 0.5
        program.tend()
    return clock.now - start


def test_restarts_come_after_growing_delays_up_to_a_minute(fake, clock, kept):
    program = kept("x")
    program.tend()
    assert program.running
    found = [delay_until_start(program, clock) for _ in range(9)]
    assert found == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_program_that_ran_well_is_started_again_quickly(fake, clock, kept):
    program = kept("x")
    program.tend()
    assert [delay_until_start(program, clock) for _ in range(4)] == [1, 2, 4, 8]
    clock.now += keeping.HEALTHY - 1
    program.tend()
    assert delay_until_start(program, clock) == 16
    clock.now += keeping.HEALTHY + 1
    program.tend()
    assert [delay_until_start(program, clock) for _ in range(2)] == [1, 2]


def test_an_end_is_told_with_its_code_and_where_to_look(kept, caplog, tmp_path):
    program = kept("sh", "-c", "exit 3")
    program.start()
    until(lambda: not program.running)
    program.tend()
    assert "program ended with code 3; starting it again in 1 s" in caplog.text
    assert str(tmp_path / "p.log") in caplog.text
    assert not (tmp_path / "p.pid").exists()


def test_the_command_is_made_anew_for_every_start(tmp_path):
    numbers = iter(range(9))
    program = Kept(
        "p",
        lambda: (["sh", "-c", f"echo run {next(numbers)}"], dict(os.environ)),
        tmp_path / "p.log",
    )
    for n in range(3):
        program.start()
        until(lambda n=n: f"run {n}\n" in text(tmp_path / "p.log"))
        program.stop()
    assert (tmp_path / "p.log").read_text() == "run 0\nrun 1\nrun 2\n"
    until(lambda: not threads())


def test_stopping_ends_children_that_ignore_it(kept, tmp_path):
    program = kept(sys.executable, "-S", "-c", STUBBORN)
    program.start()
    words = until(lambda: len(found := text(tmp_path / "p.log").split()) == 3 and found)
    pids = [int(word) for word in words if word != "up"]
    assert all(map(alive, pids))
    assert (tmp_path / "p.pid").read_text().split()[0] == str(pids[0])
    start = time.monotonic()
    program.stop(0.3)
    assert 0.3 <= time.monotonic() - start < 8
    assert not program.running
    until(lambda: not any(map(alive, pids)))
    assert not (tmp_path / "p.pid").exists()
    program.stop()


def test_children_of_a_program_that_died_are_ended_before_its_restart(kept, tmp_path):
    program = kept("sh", "-c", "sleep 61 & echo $!; exec true")
    program.start()
    until(lambda: not program.running)
    child = int(until(lambda: text(tmp_path / "p.log")))
    assert alive(child)
    program.tend()
    until(lambda: not alive(child))


def test_a_program_that_ends_when_asked_is_not_waited_for(kept):
    program = kept("sleep", "60")
    program.start()
    start = time.monotonic()
    program.stop(30.0)
    assert time.monotonic() - start < 5


def test_output_is_kept_twice_over_and_no_more(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "OUTPUT_BYTES", 2000)
    program = kept("sh", "-c", "i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done")
    program.start()
    until(lambda: not threads())
    new, old = tmp_path / "p.log", tmp_path / "p.log.1"
    assert {p.name for p in tmp_path.iterdir()} == {"p.log", "p.log.1", "p.pid"}
    assert max(new.stat().st_size, old.stat().st_size) < 2100
    lines = (old.read_text() + new.read_text()).splitlines()
    assert lines == [f"line {n}" for n in range(1000 - len(lines), 1000)]


def test_a_full_disk_does_not_end_the_program(kept, tmp_path, monkeypatch):
    """Its output is dropped, and the pipe stays open: it can go on writing."""
    monkeypatch.setattr(keeping, "OUTPUT_BYTES", 100)
    (tmp_path / "p.log.1").mkdir()
    (tmp_path / "p.log.1" / "x").write_text("in the way: the rotation fails")
    many = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"
    program = kept("sh", "-c", f"set -e; {many}; touch {tmp_path}/done")
    program.start()
    assert until(lambda: program.process.poll() is not None or None, 20) is True
    assert (program.process.returncode, (tmp_path / "done").exists()) == (0, True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_output_file_that_cannot_be_opened_does_not_end_the_program(kept, tmp_path):
    (tmp_path / "p.log").mkdir()
    program = kept("sh", "-c", f"set -e; sleep 0.3; echo a; echo b; touch {tmp_path}/done")
    program.start()
    until(lambda: not program.running)
    assert program.process.returncode == 0


def test_a_mark_that_cannot_be_written_leaves_no_unwatched_program(kept, tmp_path):
    (tmp_path / "p.pid").mkdir()
    program = kept("sleep", "60")
    try:
        program.start()
    except OSError:
        assert program.process is None
    else:
        assert threads()
    finally:
        if program.process is not None:
            program.process.kill()
            program.process.wait()
            program.process.stdout.close()
            program.process = None


def left_over(tmp_path, command, name=None):
    """A process of a store that was killed: its mark stays."""
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    (tmp_path / "p.pid").write_text(f"{process.pid} {name or Path(command[0]).name}")
    return process


@pytest.fixture
def reaped():
    found = []
    yield found
    for process in found:
        process.kill()
        process.wait()


def in_background(process):
    """Reap it as init would."""
    threading.Thread(target=process.wait, daemon=True).start()


def test_what_a_killed_keeper_left_running_is_ended(kept, tmp_path, reaped, caplog):
    process = left_over(tmp_path, ["sleep", "62"])
    reaped.append(process)
    in_background(process)
    kept("sleep", "62").end_left_over()
    assert process.wait(5) == -signal.SIGTERM
    assert f"program still ran as process {process.pid}; ending it" in caplog.text


def test_a_number_that_went_to_another_program_is_left_alone(kept, tmp_path, reaped, caplog):
    process = left_over(tmp_path, ["sleep", "63"], "flower-superlink")
    reaped.append(process)
    with caplog.at_level(logging.WARNING):
        kept("flower-superlink").end_left_over()
    time.sleep(0.1)
    assert process.poll() is None
    assert caplog.text == ""


def test_another_program_that_only_mentions_the_name_is_left_alone(kept, tmp_path, reaped):
    command = ["sh", "-c", "sleep 64; true", "editor", "notes-on-flower-superlink.txt"]
    process = left_over(tmp_path, command, "flower-superlink")
    reaped.append(process)
    in_background(process)
    try:
        kept("flower-superlink").end_left_over()
        time.sleep(0.1)
        assert alive(process.pid)
    finally:
        end_group(process.pid, lambda: not alive(process.pid), 5.0)


@pytest.mark.parametrize(
    "mark", [b"", b"x", b"12", b"-1 sleep", b"0 sleep", b"a b c", b"\xff\xfe 3", b"self sleep"]
)
def test_a_damaged_mark_ends_nothing(mark, kept, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "end_group", lambda *a: pytest.fail(f"ended {a}"))
    (tmp_path / "p.pid").write_bytes(mark)
    kept("sleep").end_left_over()


def test_no_mark_ends_nothing(kept):
    kept("sleep").end_left_over()
