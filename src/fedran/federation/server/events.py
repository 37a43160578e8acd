"""The event log: what happened at the server, for people to read."""

from __future__ import annotations

import json
import logging
import math
from numbers import Integral, Real
from typing import Any

from fedran.core.errors import printable
from fedran.federation.server.database import Database

log = logging.getLogger(__name__)
MAX_TEXT = 600
"""Characters of one text."""
MAX_ITEMS = 1000
"""Items of one list. An event then stays below one MiB."""


class EventLog:
    """The events in a database. Nothing depends on them; the uploads are what counts."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def write(self, event: str, **fields: object) -> None:
        """Add one event with the current time. One that cannot be written is a warning."""
        try:
            self.write_or_raise(event, **fields)
        except OSError as reason:
            log.warning("event log: %s not written: %s", event, reason)

    def write_or_raise(self, event: str, **fields: object) -> None:
        """Add one event, for example inside a transaction with the change that it describes."""
        text = json.dumps(plain(fields), separators=(",", ":"))
        self.database.add_event(event, text, str(fields.get("outcome", "")))

    def read(self) -> list[dict[str, Any]]:
        """All events, oldest first."""
        return read_events(self.database)


def read_events(
    database: Database, after: int = 0, without: str | None = None
) -> list[dict[str, Any]]:
    """Events with a larger number, oldest first, without uploads of one outcome."""
    return [
        {**json.loads(fields), "number": number, "at": at, "event": event}
        for number, at, event, fields in database.events(after, without)
    ]


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
