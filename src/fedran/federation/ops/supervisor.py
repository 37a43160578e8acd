"""Keeps a program running: restarts it when it dies, ends it with everything it started."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

import psutil

from fedran.federation.protocol.limits import HEALTHY_SECONDS, MAX_LOG_BYTES, MAX_RESTART_DELAY

log = logging.getLogger(__name__)
Command = tuple[list[str], dict[str, str]]
"""Arguments and environment."""
MARKER = "FEDRAN_SUPERVISED"
"""Environment variable with a random value per start. All processes of a program inherit it, so
that they are recognised after a restart of the supervisor, when process ids may be reused."""

START = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Becomes another program, to which Linux sends SIGTERM when the thread that started it ends, also
if its process is killed. 1 is PR_SET_PDEATHSIG. The parent may have ended before."""


class SupervisedProcess:
    """A program that should be running.

    ``make_command`` is called for every start, because a port may be taken meanwhile. A program
    that dies is restarted after 1, 2, 4, ... 60 seconds. Flower refuses a node that reconnects
    within a minute of a crash; the delays outlast that.
    """

    def __init__(
        self,
        name: str,
        make_command: Callable[[], Command],
        log_file: Path,
        hints: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.make_command, self.log_file = name, make_command, log_file
        self.hints = hints or {}
        """Text in the program's output -> explanation for the user."""
        self.process: subprocess.Popen[bytes] | None = None
        self.marker = ""
        self.why_ended = ""
        """Why it ended the last time."""
        self.started = self.restart_at = 0.0
        self.delay = 1.0

    @property
    def running(self) -> bool:
        """Whether the program runs now."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid_file(self) -> Path:
        """Process id and marker of the last start."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.log_file.with_suffix(".pid")

    def start(self) -> None:
        """Start the program; its output is appended to the log file."""
        command, environment = self.make_command()
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", START, str(os.getpid()), *command]
        self.marker = secrets.token_hex(16)
        self.process = subprocess.Popen(  # noqa: S603
            command,
            env={**environment, MARKER: self.marker},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal reaches the supervisor only
        )
        output = (self.process.stdout, self.log_file)
        threading.Thread(target=_copy_output, args=output, daemon=True).start()
        self.started = time.monotonic()
        try:
            self.pid_file.write_text(f"{self.process.pid} {self.marker}")
        except OSError as reason:
            log.warning(
                "%s: %s. If this supervisor is killed, the program will not be ended.",
                self.name,
                reason,
            )

    def check(self) -> None:
        """Restart the program if it died and its delay has passed. Call this every second or so."""
        now = time.monotonic()
        if self.running:
            self.delay = 1.0 if now - self.started > HEALTHY_SECONDS else self.delay
            return
        if self.process is not None:
            code, self.why_ended = self.process.returncode, self._explanation()
            text = "%s ended with code %s; it is restarted in %g s (%s)"
            log.warning(text, self.name, code, self.delay, self.why_ended)
            self.stop()
        elif now < self.restart_at:
            return
        else:
            try:
                self.start()
                return
            except (OSError, ValueError, ImportError) as reason:
                log.warning("%s: %s; the next start is in %g s", self.name, reason, self.delay)
        self.restart_at = now + self.delay
        self.delay = min(2 * self.delay, MAX_RESTART_DELAY)

    def stop(self, timeout: float = 15.0) -> None:
        """End the program and everything it started. What is left after ``timeout`` is killed."""
        if self.process is None:
            return
        end_processes(self.marker, self.process, timeout)
        self.process.wait(timeout)
        self.process = None
        self.pid_file.unlink(missing_ok=True)

    def end_leftover(self) -> None:
        """End what is left of an earlier supervisor that was killed itself."""
        try:
            pid, marker = self.pid_file.read_text().split()
            processes = processes_with(marker) if len(marker) == 32 else []
        except (OSError, ValueError):
            return
        if processes:
            log.warning("%s is still running from an earlier start; ending it", self.name)
            leader = next((p for p in processes if str(p.pid) == pid), None)
            end_processes(marker, leader, 15.0)

    def _explanation(self) -> str:
        """What the end of the program's output means, or where to find it."""
        with suppress(OSError), self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - 4000))
            output = file.read().decode(errors="replace")
            for text, meaning in self.hints.items():
                if text in output:
                    return meaning
        return f"its output: {self.log_file}"


def processes_with(marker: str) -> list[psutil.Process]:
    """All processes that inherited a marker, and their descendants."""
    found: dict[psutil.Process, None] = {}
    for pid in psutil.pids():  # process_iter would keep objects of ended processes for new pids
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if process.environ().get(MARKER) == marker:
                found.update(dict.fromkeys([process, *process.children(recursive=True)]))
    return list(found)


def end_processes(
    marker: str, leader: subprocess.Popen[bytes] | psutil.Process | None, timeout: float
) -> None:
    """Terminate the processes with a marker, wait for their leader, then kill those that remain."""
    found: list[psutil.Process | subprocess.Popen[bytes]] = [*processes_with(marker)]
    if leader is not None and leader.pid not in {process.pid for process in found}:
        found.append(leader)  # while it becomes its program, its environment cannot be read
    for process in found:
        with suppress(psutil.Error):
            process.terminate()
    if leader is not None:
        with suppress(subprocess.TimeoutExpired, psutil.Error):
            leader.wait(timeout)
    deadline = time.monotonic() + 10.0  # a process in an uninterruptible call ends later
    while (rest := processes_with(marker)) and time.monotonic() < deadline:
        for process in rest:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(rest, timeout=1.0)


class _OutputFile(RotatingFileHandler):
    """A log file that is rotated when it is large. On a full disk, lines are dropped."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Go on: the program must not wait for somebody to read its output."""


def _copy_output(stream: IO[bytes], path: Path) -> None:
    """Append a program's lines to a log file."""
    with stream, closing(_OutputFile(path, maxBytes=MAX_LOG_BYTES, backupCount=1, delay=True)) as f:
        for line in stream:
            f.emit(logging.makeLogRecord({"msg": line.decode(errors="replace").rstrip("\n")}))
