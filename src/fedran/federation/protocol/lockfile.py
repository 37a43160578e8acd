"""The lock of a folder: one process at a time uses it, and others can stop that process."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedran.federation.protocol.limits import FIRST_PROGRESS, FULL_DISK, PROGRESS_SECONDS
from fedran.wire.files import read_json_object, write_atomically
from fedran.wire.sizes import human_bytes

log = logging.getLogger(__name__)


class AlreadyRunning(OSError):
    """Another process holds the lock of a folder."""


class DiskFull(OSError):
    """Nothing can be written."""


def require_space(folder: Path) -> None:
    """DiskFull if nothing can be written to a folder that exists."""
    if (free := shutil.disk_usage(folder).free) < FULL_DISK:
        raise DiskFull(f"{folder}: disk full ({human_bytes(free)} free); free some space")


@contextmanager
def locked(folder: Path, timeout: float = 0.3, **facts: Any) -> Iterator[None]:
    """Hold the folder's lock. While it is held, ``running.json`` names this process.

    ``lock_holder`` takes the lock for an instant too, so the timeout should not be 0. The system
    releases the lock when the process ends in any way; a file that is left behind has no effect.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    note = folder / "running.json"
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        what = f"another process to end its work in {folder}"
        if not wait_until(lambda: _try_lock(lock, fcntl.LOCK_EX), timeout, what=what):
            pid = (lock_holder(folder) or {}).get("pid", "unknown")
            raise AlreadyRunning(
                f"{folder}: in use by process {pid}; wait until it ends, or stop a server or "
                "site with `fedran federation down`"
            )
        note.unlink(missing_ok=True)  # left behind by a process that was killed
        with suppress(OSError):  # on a full disk the lock is enough
            facts = {"pid": os.getpid(), "started": time.time(), **facts}
            write_atomically(note, json.dumps(facts).encode())
        try:
            yield
        finally:
            note.unlink(missing_ok=True)
    finally:
        os.close(lock)


def lock_holder(folder: Path) -> dict[str, Any] | None:
    """What ``running.json`` says about the process that holds the lock; None if none does."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        return None if _try_lock(lock, fcntl.LOCK_SH) else read_json_object(folder / "running.json")
    finally:
        os.close(lock)


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def terminate(*folders: Path, timeout: float = 40.0) -> list[Path]:
    """Send SIGTERM to the processes that hold these locks, and wait until they have ended.

    Returns the folders that were locked.
    """
    asked = {}
    for folder in folders:
        pid = (lock_holder(folder) or {}).get("pid")
        if type(pid) is int and pid > 1:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            asked[folder] = pid
    for folder, pid in asked.items():

        def ended(folder: Path = folder) -> bool:
            return lock_holder(folder) is None

        if not wait_until(ended, timeout, what=f"process {pid} to end"):
            raise TimeoutError(f"process {pid} did not end within {timeout:g} s")
    return list(asked)


def wait_until(
    ready: Callable[[], bool], seconds: float, every: float = 0.1, *, what: str = ""
) -> bool:
    """Whether something becomes true within a time limit. A long wait for ``what`` is logged."""
    start, next_progress = time.monotonic(), FIRST_PROGRESS
    while not ready():
        waited = time.monotonic() - start
        if waited >= seconds:
            return False
        if waited >= next_progress and what:
            next_progress += PROGRESS_SECONDS
            log.warning("waiting for %s, at most %.0f s longer", what, seconds - waited)
        time.sleep(every)
    return True
