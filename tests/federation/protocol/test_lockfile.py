"""One program per folder: the lock ends with its process."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("cryptography")

import fcntl

from fedran.federation.protocol import lockfile
from fedran.federation.protocol.lockfile import (
    AlreadyRunning,
    lock_holder,
    locked,
    terminate,
    wait_until,
)

HOLDER = """
import signal, sys, time
from pathlib import Path
from fedran.federation.protocol.lockfile import locked
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0) if {obey} else None)
with locked(Path({folder!r}), what="test"):
    print("held", flush=True)
    while True:
        time.sleep(0.05)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder's lock."""
    made = []

    def make(obey=True):
        program = HOLDER.format(folder=str(tmp_path), obey=obey)
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        made.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield make
    for process in made:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_lock_that_is_held_is_refused_in_one_sentence(tmp_path):
    with locked(tmp_path):
        start = time.monotonic()
        told = f"{tmp_path}: in use by process {os.getpid()}"
        with pytest.raises(AlreadyRunning, match=re.escape(told)) as caught, locked(tmp_path):
            pytest.fail("both hold it")
        assert time.monotonic() - start < 0.5
        assert "\n" not in str(caught.value)
        assert "fedran federation down" in str(caught.value)
    with locked(tmp_path):
        pass


def test_a_lock_can_be_waited_for(tmp_path):
    def hold():
        with locked(tmp_path):
            held.set()
            time.sleep(0.4)

    held = threading.Event()
    first = threading.Thread(target=hold)
    first.start()
    held.wait(5)
    start = time.monotonic()
    with locked(tmp_path, 10.0):
        assert 0.1 < time.monotonic() - start < 5
    first.join()


def test_waiting_for_a_lock_has_a_time_limit(tmp_path):
    with locked(tmp_path):
        start = time.monotonic()
        with pytest.raises(AlreadyRunning, match="in use by process"), locked(tmp_path, 0.3):
            pass
        assert 0.3 <= time.monotonic() - start < 3


def test_facts_about_the_holder_can_be_read_while_the_lock_is_held(tmp_path):
    folder = tmp_path / "a" / "log"
    assert lock_holder(folder) is None
    assert not folder.exists()
    with locked(folder, address="127.0.0.1:9", insecure=True):
        found = lock_holder(folder)
        assert (found["pid"], found["address"], found["insecure"]) == (
            os.getpid(),
            "127.0.0.1:9",
            True,
        )
        assert abs(found["started"] - time.time()) < 60
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for name in ("lock", "running.json"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert lock_holder(folder) is None
    assert not (folder / "running.json").exists()


def test_reading_the_holder_does_not_release_the_lock(tmp_path):
    with locked(tmp_path):
        for _ in range(3):
            assert lock_holder(tmp_path)["pid"] == os.getpid()
        with pytest.raises(AlreadyRunning), locked(tmp_path):
            pass
        assert lock_holder(tmp_path)["pid"] == os.getpid()


def test_a_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        _ = 1 / 0
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        pass


def test_a_lock_can_be_taken_while_another_process_reads_its_holder(tmp_path):
    """``lock_holder`` takes a shared lock for an instant, which ``locked`` may meet."""
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH | fcntl.LOCK_NB)
        threading.Timer(0.1, looking.close).start()
        with locked(tmp_path):
            pass


def test_the_lock_of_a_killed_process_is_free(holder, tmp_path):
    process = holder()
    assert lock_holder(tmp_path)["pid"] == process.pid
    assert lock_holder(tmp_path)["what"] == "test"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert (tmp_path / "running.json").exists()
    assert lock_holder(tmp_path) is None
    assert terminate(tmp_path) == []
    with locked(tmp_path):
        assert lock_holder(tmp_path)["pid"] == os.getpid()


def test_terminate_signals_the_holder_and_waits(holder, tmp_path):
    process = holder()
    assert terminate(tmp_path / "none", tmp_path, timeout=10.0) == [tmp_path]
    assert process.wait(10) == 0
    assert lock_holder(tmp_path) is None
    assert terminate(tmp_path) == []


def test_terminate_reports_a_program_that_does_not_end(holder, tmp_path):
    process = holder(obey=False)
    with pytest.raises(TimeoutError, match=rf"process {process.pid} did not end within 0\.3 s"):
        terminate(tmp_path, timeout=0.3)
    assert process.poll() is None


@pytest.mark.parametrize("mark", [b"", b"[", b"[]", b"3", b"\xff", b'"x"', None])
def test_a_lock_with_a_damaged_note_is_still_held(mark, tmp_path, monkeypatch):
    monkeypatch.setattr(lockfile.os, "kill", lambda *a: pytest.fail(f"signalled {a}"))
    with locked(tmp_path):
        if mark is None:
            (tmp_path / "running.json").unlink()
        else:
            (tmp_path / "running.json").write_bytes(mark)
        assert lock_holder(tmp_path) == {}
        terminate(tmp_path, timeout=0.1)
        with pytest.raises(AlreadyRunning, match="in use by process unknown"), locked(tmp_path):
            pass


DANGEROUS = [pytest.param(pid) for pid in (0, -1, True)]


@pytest.mark.parametrize("pid", [*DANGEROUS, 1.5, "1", None])
def test_terminate_signals_valid_process_ids_only(pid, tmp_path, monkeypatch):
    """0 and -1 would mean every process of this group, or of this user."""
    monkeypatch.setattr(lockfile.os, "kill", lambda *a: pytest.fail(f"signalled {a}"))
    with locked(tmp_path):
        (tmp_path / "running.json").write_text(json.dumps({"pid": pid}))
        terminate(tmp_path, timeout=0.1)


def test_terminate_accepts_that_a_program_has_already_ended(tmp_path, monkeypatch):
    gone = subprocess.Popen(["true"])
    gone.wait()
    found = iter([{"pid": gone.pid}])
    monkeypatch.setattr(lockfile, "lock_holder", lambda _: next(found, None))
    terminate(tmp_path, timeout=1.0)


def test_a_long_wait_says_what_it_waits_for(monkeypatch, caplog):
    monkeypatch.setattr(lockfile, "FIRST_PROGRESS", 0.0)
    assert not wait_until(lambda: False, 0.05, 0.01, what="Godot")
    assert caplog.text.count("waiting for Godot") == 1
    assert not wait_until(lambda: False, 0.05, 0.01)
    assert caplog.text.count("waiting") == 1
