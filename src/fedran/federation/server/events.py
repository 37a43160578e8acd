"""What happened at the server, one JSON line an event, for people to look at."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from fedran.core.errors import printable

log = logging.getLogger(__name__)
LONGEST = 600
"""Characters of one text."""
MOST = 1000
"""Items of one list: a thousand classes of an upload, and a line of less than a MiB."""
NEWEST = 16 * 2**20
"""Bytes of an old, long event log that are read at first: its end."""


class EventLog:
    """A file of events; the journal is what counts, so nothing depends on this one.

    An event that cannot be written is a warning, never an error. A line that a crash cut off
    costs that line alone.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._events: list[dict[str, Any]] = []
        self._read, self._inode = 0, -1

    def write(self, event: str, **fields: object) -> None:
        """Append one event with the time; several processes may."""
        found = {"at": round(time.time(), 3), "event": event, **fields}
        line = json.dumps(plain(found), separators=(",", ":")).encode() + b"\n"
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(file).st_size
                torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
                os.write(file, b"\n" + line if torn else line)
            finally:
                os.close(file)
        except OSError as reason:
            log.warning("event log: %s not written: %s", event, reason)

    def read(self) -> list[dict[str, Any]]:
        """All events, oldest first; a second call reads only what came since the first."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._read:
                    self._events, self._inode = [], found.st_ino
                    self._read = max(0, found.st_size - NEWEST)
                file.seek(self._read)
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        self._read += sum(len(line) + 1 for line in lines[:-1])  # the last one is not whole yet
        self._events += [event for event in map(_event, lines[:-1]) if event]
        return list(self._events)


def plain(value: object) -> Any:
    r"""A value as JSON can hold it and a terminal can show it, cut to a sane length.

    >>> plain({"reason": "a\x1b[31m", "accuracy": float("nan"), "classes": (("cat", 3),)})
    {'reason': 'a\\x1b[31m', 'accuracy': None, 'classes': [['cat', 3]]}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):  # NumPy's too
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {printable(str(k), 64): plain(v) for k, v in list(value.items())[:MOST]}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value[:MOST]]
    return printable(value, LONGEST)


def _event(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None for a torn or a foreign one."""
    try:
        found = json.loads(line)
        if not isinstance(found, dict) or not isinstance(found.get("event"), str):
            return None
        at = found.get("at")
        if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < 1e11:
            return None
        return plain(found)
    except (ValueError, RecursionError):
        return None
