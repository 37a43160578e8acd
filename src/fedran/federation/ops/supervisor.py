"""Keeps a program running: restarts it when it dies, ends it with all it started."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

from fedran.federation.protocol.limits import HEALTHY_SECONDS, MAX_LOG_BYTES, MAX_RESTART_DELAY
from fedran.federation.protocol.lockfile import wait_until

log = logging.getLogger(__name__)
Command = tuple[list[str], dict[str, str]]
"""Arguments and environment."""
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
        self.why_ended = ""
        """Why it ended the last time."""
        self.started = self.restart_at = 0.0
        self.delay = 1.0

    @property
    def running(self) -> bool:
        """Whether the program runs now."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the program; its output is appended to the log file."""
        command, environment = self.make_command()
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", START, str(os.getpid()), *command]
        self.process = subprocess.Popen(  # noqa: S603
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a process group, which Ctrl-C in a terminal does not reach
        )
        output = (self.process.stdout, self.log_file)
        threading.Thread(target=_copy_output, args=output, daemon=True).start()
        self.started = time.monotonic()

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
        """End the program and all it started. What is left after ``timeout`` is killed."""
        if self.process is None:
            return
        for number, seconds in ((signal.SIGTERM, timeout), (signal.SIGKILL, 10.0)):
            with suppress(ProcessLookupError, PermissionError):  # no process of it is left
                os.killpg(self.process.pid, number)
            # A process in a system call ends later.
            wait_until(lambda: not self.running, seconds, what=f"{self.name} to end")
        self.process = None

    def _explanation(self) -> str:
        """What the end of the program's output means, or where to find it."""
        with suppress(OSError), self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - 4000))
            output = file.read().decode(errors="replace")
            for text, meaning in self.hints.items():
                if text in output:
                    return meaning
        return f"its output: {self.log_file}"


class _OutputFile(RotatingFileHandler):
    """A log file that is rotated when it is large. On a full disk, lines are dropped."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Go on: the program must not wait for somebody to read its output."""


def _copy_output(stream: IO[bytes], path: Path) -> None:
    """Append a program's lines to a log file."""
    with stream, closing(_OutputFile(path, maxBytes=MAX_LOG_BYTES, backupCount=1, delay=True)) as f:
        for line in stream:
            f.emit(logging.makeLogRecord({"msg": line.decode(errors="replace").rstrip("\n")}))
