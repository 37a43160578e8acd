"""Which sites are connected, as the server last recorded it from Flower's list of nodes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Connections:
    """What the server last recorded about Flower's nodes."""

    at: float | None = None
    fresh: bool = False
    nodes: list[dict[str, Any]] = field(default_factory=list)
    foreign_runs: list[str] = field(default_factory=list)
    """Runs whose app is not ours."""
    answered: frozenset[str] = frozenset()
    """Sites that have answered since then, so they are connected too."""

    @classmethod
    def read(cls, text: str, oldest: float, seen: Mapping[str, float]) -> Connections:
        """The server's last record; everything is unknown without one.

        ``seen`` says when sites last answered.
        """
        if not text:
            return cls()
        found = json.loads(text)
        at, foreign = found["at"], found.get("foreign_runs", [])
        answered = frozenset(client for client, when in seen.items() if when > at)
        return cls(at, at >= oldest, found["nodes"], foreign, answered)

    @property
    def online(self) -> int | None:
        """Number of connected nodes; None: unknown."""
        later = 0 if "" in self._online else len(self.answered - self._online.keys())
        return sum(self._online.values()) + later if self.fresh else None

    def connected(self, client: str) -> bool | None:
        """Whether a node of this site is connected; None: unknown."""
        if not self.fresh:
            return None
        if client in self._online or client in self.answered:
            return True
        return None if "" in self._online else False  # a node of an unknown site may be its own

    def last_seen(self, client: str) -> float | None:
        """When Flower last heard from a node of this site."""
        return self.at if self.connected(client) else self._last_seen.get(client)

    @cached_property
    def _online(self) -> Counter[str]:
        return Counter(n["client"] for n in self.nodes if n["status"] == "online")

    @cached_property
    def _last_seen(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for node in self.nodes:
            at = _timestamp(node["last_seen"])
            if at is not None:
                found[node["client"]] = max(at, found.get(node["client"], at))
        return found


def _timestamp(text: object) -> float | None:
    """Unix seconds of an ISO 8601 time with a time zone."""
    try:
        found = datetime.fromisoformat(str(text))
        return found.timestamp() if found.tzinfo else None
    except (ValueError, OverflowError):
        return None
