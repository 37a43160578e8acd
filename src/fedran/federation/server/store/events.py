"""The event log: what happened at the server, for people to read."""

from __future__ import annotations

import json
import logging
import math
import time
from numbers import Integral, Real
from typing import Any

from fedran.core.errors import printable
from fedran.federation.protocol.limits import MAX_ITEMS, MAX_TEXT
from fedran.federation.server.store.database import Database

log = logging.getLogger(__name__)


class EventLog:
    """The events in a database. No decision depends on them."""

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
        text, outcome = json.dumps(plain(fields), separators=(",", ":")), fields.get("outcome", "")
        with self.database.transaction():
            number, at = self.database.next("events"), round(time.time(), 3)
            row: dict[str, Any] = {"number": number, "at": at, "event": event}
            self.database.put("events", **row, outcome=str(outcome), fields=text)

    def read(self, without: str | None = None) -> list[dict[str, Any]]:
        """All events, oldest first. ``without`` leaves out uploads with this outcome."""
        rows = self.database.rows("events", "WHERE outcome IS NOT ? ORDER BY number", [without])
        return [
            {**json.loads(fields), "number": number, "at": at, "event": event}
            for number, at, event, _, fields in rows
        ]

    def delete(self, before: float, most: int) -> int:
        """Delete events from before a time, and the oldest beyond a number; returns how many."""
        with self.database.transaction():
            last = self.database.next("events") - 1 - most
            query = "DELETE FROM events WHERE at < ? OR number <= ?"
            return self.database.sql.execute(query, (before, last)).rowcount


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
