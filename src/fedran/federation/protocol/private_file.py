"""Files that only their owner may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Write a new file with mode 600, synced; an existing one is not overwritten."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def check_private(path: Path, what: str) -> None:
    """Refuse a missing file, and one that others than its owner could read."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected {what}")
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise PermissionError(
            f"{path}: others can read this private key; run `chmod 600 {path}`, and make a "
            "new key if they may have"
        )
