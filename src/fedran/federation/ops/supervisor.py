"""Keeping a program running: started again when it dies, ended with everything it started."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)
Command = tuple[list[str], dict[str, str]]
LONGEST_DELAY = 60.0
HEALTHY = 30.0
"""After so many seconds a program counts as running well: its next restart is quick again."""
OUTPUT_BYTES = 5 * 2**20
"""What is kept of a program's output, twice."""


class Kept:
    """A program that should be running.

    ``make`` gives its command and environment anew for every start (a port may be taken). A
    program that dies is started again after 1, 2, 4, ... 60 seconds. Flower refuses a node that
    comes back within a minute of a crash; the delays outlast that.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Command],
        output: Path,
        hints: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.make, self.output = name, make, output
        self.hints = hints or {}
        """Words in its output -> what they mean to people."""
        self.process: subprocess.Popen[bytes] | None = None
        self.started = self.due = 0.0
        self.delay = 1.0

    def start(self) -> None:
        """Start it, its output kept in a file."""
        command, environment = self.make()
        self.process = subprocess.Popen(  # noqa: S603
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output = (self.process.stdout, self.output)
        threading.Thread(target=_keep_output, args=output, daemon=True).start()
        self.started = time.monotonic()
        try:
            self._mark.write_text(f"{self.process.pid} {Path(command[0]).name}")
        except OSError as reason:
            log.warning("%s: %s; should this process be killed, it stays", self.name, reason)

    @property
    def running(self) -> bool:
        """Whether it is, now."""
        return self.process is not None and self.process.poll() is None

    def tend(self) -> None:
        """Look after it: call this every second or so."""
        now = time.monotonic()
        if self.running:
            self.delay = 1.0 if now - self.started > HEALTHY else self.delay
        elif self.process is not None:
            log.warning(
                "%s ended with code %s; starting it again in %g s (%s)",
                self.name,
                self.process.returncode,
                self.delay,
                self._why(),
            )
            self.stop()
            self._put_off(now)
        elif now >= self.due:
            try:
                self.start()
            except (OSError, ValueError, ImportError) as reason:
                log.warning("%s: %s; trying again in %g s", self.name, reason, self.delay)
                self._put_off(now)

    def _put_off(self, now: float) -> None:
        self.due = now + self.delay
        self.delay = min(2 * self.delay, LONGEST_DELAY)

    def stop(self, patience: float = 15.0) -> None:
        """End it and what it started: asked first, then killed."""
        if self.process is None:
            return
        end_group(self.process.pid, lambda: self.process is None or not self.running, patience)
        self.process.wait(patience)
        self.process = None
        self._mark.unlink(missing_ok=True)

    def _why(self) -> str:
        """What the end of its output means; where that is not known, where it lies."""
        with suppress(OSError), self.output.open("rb") as file:
            file.seek(max(0, self.output.stat().st_size - 4000))
            said = file.read().decode(errors="replace")
            for words, meaning in self.hints.items():
                if words in said:
                    return meaning
        return f"its output: {self.output}"

    @property
    def _mark(self) -> Path:
        self.output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.output.with_suffix(".pid")

    def end_left_over(self) -> None:
        """End what an earlier keeper, killed itself, left running."""
        try:
            number, name = self._mark.read_text().split()
            command = Path(f"/proc/{int(number)}/cmdline").read_text(errors="replace")
        except (OSError, ValueError):
            return
        if name in [Path(word).name for word in command.split("\0")[:2]]:
            log.warning("%s still ran as process %s; ending it", self.name, number)
            end_group(int(number), lambda: not Path(f"/proc/{number}").exists(), 15.0)


def end_group(pid: int, ended: Callable[[], bool], patience: float) -> None:
    """Ask a process group to end; kill what is left of it after ``patience`` seconds."""
    try:
        os.killpg(pid, signal.SIGTERM)
        deadline = time.monotonic() + patience
        while not ended() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _keep_output(stream: IO[bytes], path: Path) -> None:
    """Append a program's lines to a file; when it has grown large, begin anew."""
    with stream:
        try:
            while _fill(stream, path):
                path.replace(path.with_suffix(".log.1"))
        except OSError:  # a full disk must not end the program: its output is dropped
            for _ in stream:
                pass


def _fill(stream: IO[bytes], path: Path) -> bool:
    """Append lines until the file has grown large; False at the end of the stream."""
    with path.open("ab") as file:
        for line in stream:
            file.write(line)
            file.flush()
            if file.tell() > OUTPUT_BYTES:
                return True
    return False
