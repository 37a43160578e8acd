"""The event log: what happened at the server, one JSON line per event, for people to read."""

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
MAX_TEXT = 600
"""Characters of one text."""
MAX_ITEMS = 1000
"""Items of one list. A line then stays below one MiB."""
TAIL_BYTES = 16 * 2**20
"""Of an old, long event log, only the last bytes are read."""


class EventLog:
    """A file of events. Nothing depends on it; the journal is what counts.

    An event that cannot be written is a warning, never an error. A line that a crash cut off is
    lost, the others are not.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._events: list[dict[str, Any]] = []
        self._position, self._inode = 0, -1

    def write(self, event: str, **fields: object) -> None:
        """Append one event with the current time. Several processes may write."""
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
        """All events, oldest first. A second call reads only what was added since the first."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._position:
                    self._events, self._inode = [], found.st_ino
                    self._position = max(0, found.st_size - TAIL_BYTES)
                file.seek(self._position)
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        complete = lines[:-1]  # the last line may still be being written
        self._position += sum(len(line) + 1 for line in complete)
        self._events += [event for event in map(_parse_event, complete) if event]
        return list(self._events)


def plain(value: object) -> Any:
    r"""A value that JSON can hold and a terminal can show, cut to a bounded length.

    >>> plain({"reason": "a\x1b[31m", "accuracy": float("nan"), "classes": (("cat", 3),)})
    {'reason': 'a\\x1b[31m', 'accuracy': None, 'classes': [['cat', 3]]}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):  # also NumPy's
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {printable(str(k), 64): plain(v) for k, v in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value[:MAX_ITEMS]]
    return printable(value, MAX_TEXT)


def _parse_event(line: bytes) -> dict[str, Any] | None:
    """The event in a line; None for an incomplete or foreign line."""
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
