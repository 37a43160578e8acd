"""Supervised programs: restarts, ending whole process trees, logs of their output."""

import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

pytest.importorskip("cryptography")

from fedran.federation.ops import supervisor
from fedran.federation.ops.supervisor import SupervisedProcess

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
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def text(path):
    return path.read_text() if path.is_file() else ""


def threads():
    return [t for t in threading.enumerate() if "_copy_output" in t.name]


@pytest.fixture
def supervise(tmp_path):
    made = []

    def make(*command, **environment):
        found = SupervisedProcess(
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
    monkeypatch.setattr(supervisor, "time", found)
    return found


@pytest.fixture
def fake(monkeypatch, clock):
    monkeypatch.setattr(supervisor.subprocess, "Popen", FakeProcess)
    monkeypatch.setattr(supervisor, "_copy_output", lambda *_: None)
    monkeypatch.setattr(supervisor.os, "killpg", lambda *_: None)


def delay_until_start(program, clock):
    """Seconds from its end until it runs again."""
    program.process.code = 7
    program.check()
    assert program.process is None
    start = clock.now
    while program.process is None:
        clock.now += 0.5
        program.check()
    return clock.now - start


def test_delays_between_restarts_double_up_to_a_minute(fake, clock, supervise):
    program = supervise("x")
    program.check()
    assert program.running
    found = [delay_until_start(program, clock) for _ in range(9)]
    assert found == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_program_that_was_healthy_is_restarted_quickly(fake, clock, supervise):
    program = supervise("x")
    program.check()
    assert [delay_until_start(program, clock) for _ in range(4)] == [1, 2, 4, 8]
    clock.now += supervisor.HEALTHY_SECONDS - 1
    program.check()
    assert delay_until_start(program, clock) == 16
    clock.now += supervisor.HEALTHY_SECONDS + 1
    program.check()
    assert [delay_until_start(program, clock) for _ in range(2)] == [1, 2]


def test_a_dead_program_is_logged_with_its_exit_code_and_log_file(supervise, caplog, tmp_path):
    program = supervise("sh", "-c", "exit 3")
    program.start()
    until(lambda: not program.running)
    program.check()
    assert "program ended with code 3; it is restarted in 1 s" in caplog.text
    assert str(tmp_path / "p.log") in caplog.text


def test_the_command_is_made_anew_for_every_start(tmp_path):
    numbers = iter(range(9))
    program = SupervisedProcess(
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


def test_stopping_ends_descendants_that_ignore_sigterm(supervise, tmp_path):
    program = supervise(sys.executable, "-S", "-c", STUBBORN)
    program.start()
    words = until(lambda: len(found := text(tmp_path / "p.log").split()) == 3 and found)
    pids = [int(word) for word in words if word != "up"]
    assert all(map(alive, pids))
    start = time.monotonic()
    program.stop(0.3)
    assert 0.3 <= time.monotonic() - start < 8
    assert not program.running
    until(lambda: not any(map(alive, pids)))
    program.stop()


def test_children_of_a_program_that_died_are_ended_before_its_restart(supervise, tmp_path):
    program = supervise("sh", "-c", "sleep 61 & echo $!; exec true")
    program.start()
    until(lambda: not program.running)
    child = int(until(lambda: text(tmp_path / "p.log")))
    assert alive(child)
    program.check()
    until(lambda: not alive(child))


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
def test_a_program_ends_when_its_supervisor_is_killed(tmp_path):
    start = (
        "import os, pathlib, sys, time\n"
        "from fedran.federation.ops.supervisor import SupervisedProcess\n"
        "command = ['sleep', '60'], dict(os.environ)\n"
        "program = SupervisedProcess('p', lambda: command, pathlib.Path(sys.argv[1]))\n"
        "program.start()\n"
        "print(program.process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", start, str(tmp_path / "p.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
        program = int(killed.stdout.readline())
        until(lambda: "sleep" in psutil.Process(program).name())
        killed.kill()
    until(lambda: not alive(program))


def test_a_program_that_is_just_being_started_is_stopped(supervise):
    program = supervise("sleep", "60")
    program.start()
    start = time.monotonic()
    program.stop(30.0)
    assert time.monotonic() - start < 5


def test_the_log_is_rotated_and_one_old_file_is_kept(supervise, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "MAX_LOG_BYTES", 2000)
    program = supervise("sh", "-c", "i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done")
    program.start()
    until(lambda: not threads())
    new, old = tmp_path / "p.log", tmp_path / "p.log.1"
    assert {p.name for p in tmp_path.iterdir()} == {"p.log", "p.log.1"}
    assert max(new.stat().st_size, old.stat().st_size) < 2100
    lines = (old.read_text() + new.read_text()).splitlines()
    assert lines == [f"line {n}" for n in range(1000 - len(lines), 1000)]


def test_a_full_disk_does_not_end_the_program(supervise, tmp_path, monkeypatch):
    """Its output is dropped, and the pipe stays open: it can go on writing."""
    monkeypatch.setattr(supervisor, "MAX_LOG_BYTES", 100)
    (tmp_path / "p.log.1").mkdir()
    (tmp_path / "p.log.1" / "x").write_text("in the way: the rotation fails")
    many = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"
    program = supervise("sh", "-c", f"set -e; {many}; touch {tmp_path}/done")
    program.start()
    assert until(lambda: program.process.poll() is not None or None, 20) is True
    assert (program.process.returncode, (tmp_path / "done").exists()) == (0, True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_output_file_that_cannot_be_opened_does_not_end_the_program(supervise, tmp_path):
    (tmp_path / "p.log").mkdir()
    program = supervise("sh", "-c", f"set -e; sleep 0.3; echo a; echo b; touch {tmp_path}/done")
    program.start()
    until(lambda: not program.running)
    assert program.process.returncode == 0
