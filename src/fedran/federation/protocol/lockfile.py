"""A program's mark on a folder: that it runs here alone, and who to ask to end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedran.core.errors import Refused
from fedran.wire.files import read_json_object, write_atomically


@contextmanager
def locked(folder: Path, patience: float = 0.3, **facts: Any) -> Iterator[None]:
    """Hold the folder's lock, waiting at most ``patience`` seconds, and say who holds it.

    A look (``lock_holder``) holds the lock for an instant too, so a little patience is needed.
    The lock goes with the process, however it ends; a file that stays behind is no mark.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _wait(lock, folder, patience)
        mark = {"pid": os.getpid(), "started": time.time(), **facts}
        (folder / "running.json").unlink(missing_ok=True)  # of one that was killed
        with suppress(OSError):  # on a full disk the lock is enough
            write_atomically(folder / "running.json", json.dumps(mark).encode())
        try:
            yield
        finally:
            (folder / "running.json").unlink(missing_ok=True)
    finally:
        os.close(lock)


def _wait(lock: int, folder: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            pid = (lock_holder(folder) or {}).get("pid", "unknown")
            hint = "wait for its end, or end a server or site with `fedran federation down`"
            raise Refused(str(folder), "nobody at work", f"process {pid}", hint=hint) from None


def lock_holder(folder: Path) -> dict[str, Any] | None:
    """Who is at work here, with its ``pid``; None if nobody is."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return read_json_object(folder / "running.json")
    finally:
        os.close(lock)


def terminate(*folders: Path, patience: float = 40.0) -> list[Path]:
    """Ask the programs that are at work here to end, and wait for them; the folders of those."""
    asked = {}
    for folder in folders:
        pid = (lock_holder(folder) or {}).get("pid")
        if isinstance(pid, int) and pid > 1 and not isinstance(pid, bool):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            asked[folder] = pid
    deadline = time.monotonic() + patience
    for folder, pid in asked.items():
        while lock_holder(folder) is not None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} did not end within {patience:g} s")
            time.sleep(0.1)
    return list(asked)
