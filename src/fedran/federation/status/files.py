"""The server's files as a bystander may read them: while it runs, and when it is down."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fedran.core.aggregator import check_id
from fedran.core.errors import Refused
from fedran.federation.protocol.identity import Key
from fedran.federation.server.events import plain
from fedran.federation.server.journal import HEADER, MAGIC

LATE = 60.0
"""Seconds that the supervisor's next word may be late before its last one counts for nothing."""


@dataclass(frozen=True)
class Flower:
    """What the server's supervisor last wrote about Flower's nodes and runs."""

    at: float | None = None
    fresh: bool = False
    nodes: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def online(self) -> int | None:
        """Connected nodes; None: unknown."""
        return sum(_online(n) for n in self.nodes) if self.fresh else None

    def last_seen(self, client: str) -> float | None:
        """When Flower last heard from a node of this site."""
        if self.connected(client):
            return self.at
        times = [_seconds(n.get("last_seen")) for n in self.nodes if n.get("client") == client]
        return max((t for t in times if t is not None), default=None)

    def connected(self, client: str) -> bool | None:
        """Whether a node of this site is connected; None: unknown."""
        online = {n.get("client") for n in self.nodes if _online(n)}
        if not self.fresh or (client not in online and "" in online):  # a node without a name
            return None
        return client in online


def read_flower(path: Path, oldest: float, notes: list[str]) -> Flower:
    """The supervisor's file; where it is missing or damaged all of it is unknown."""
    try:
        found = plain(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return Flower()
    except (OSError, ValueError, RecursionError):
        notes.append("flower.json is damaged: who is connected is unknown.")
        return Flower()
    at = found.get("at") if isinstance(found, dict) else None
    if not isinstance(at, (int, float)) or not 0 <= at < 1e11:
        notes.append("flower.json is damaged: who is connected is unknown.")
        return Flower()
    return Flower(at, at >= oldest, _dicts(found.get("nodes")), _dicts(found.get("runs")))


def count_records(path: Path, notes: list[str]) -> tuple[int | None, int]:
    """Whole records of a journal and its bytes, by hopping from header to header.

    Opening it as a ``Journal`` would cut off the record that the server is just writing.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if file.read(len(MAGIC)) != MAGIC:
                notes.append("The journal is not a fedran journal.")
                return None, size
            count, end = 0, len(MAGIC)
            while len(head := file.read(HEADER)) == HEADER:
                end += HEADER + int.from_bytes(head[:8], "little")
                if zlib.crc32(head[:40]).to_bytes(4, "little") != head[40:] or end > size:
                    break
                file.seek(end)
                count += 1
            return count, size
    except FileNotFoundError:
        return 0, 0
    except OSError as reason:
        notes.append(f"The journal cannot be read: {reason}")
        return None, 0


def aside(folder: Path) -> dict[Key, float]:
    """The uploads in quarantine by client and task, and when each was written."""
    found = {}
    for path in sorted(folder.glob("*@*")):
        client, _, task = path.name.partition("@")
        try:
            key = check_id(client, "client"), check_id(task, "task")
            if not (client.startswith(".") and task.endswith(".part")):  # being written
                found[key] = path.stat().st_mtime
        except (Refused, OSError):
            continue
    return found


def disk_bytes(folder: Path) -> int:
    """Bytes of everything below a folder; files may come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _online(node: dict[str, Any]) -> bool:
    return node.get("status") == "online"


def _seconds(text: object) -> float | None:
    """Unix seconds of an ISO time with its zone."""
    try:
        found = datetime.fromisoformat(str(text))
        return found.timestamp() if found.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _dicts(given: object) -> list[dict[str, Any]]:
    return [g for g in given if isinstance(g, dict)] if isinstance(given, list) else []
