"""A stream as a small JSON file, so that others can run on exactly the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedran.core.errors import Refused
from fedran.data.stream import Stream, Task
from fedran.wire.files import write_atomically
from fedran.wire.header import Header
from fedran.wire.limits import FILE_LIMITS

FORMAT, VERSION = "fedran stream", 1


def save_stream(stream: Stream, path: str | Path) -> None:
    """Write the stream, its settings and its hash. Row numbers, no data."""
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "hash": stream.hash,
        "settings": dict(stream.settings),
        "seeds": stream.seeds,
        "tasks": [_task_fields(t) for t in stream.tasks],
    }
    write_atomically(Path(path), json.dumps(fields, separators=(",", ":")).encode())


def load_stream(path: str | Path, n_rows: int | None = None) -> Stream:
    """The stream of a file: complete, disjoint, within ``n_rows`` rows, and with the same hash."""
    path = Path(path)
    try:
        header = Header.parse(path.read_text(encoding="utf-8"))
        if header.text("format", 32) != FORMAT or header.integer("version") != VERSION:
            raise Refused("format", f"{FORMAT} {VERSION}", header.text("format", 32))
        stream = Stream(
            tuple(_read_task(t) for t in header.items("tasks", FILE_LIMITS.classes)),
            {name: int(value) for name, value in header.section("seeds").fields.items()},
            header.section("settings").fields,
        )
        _check_rows(stream, n_rows)
        if stream.hash != header.text("hash", 64):
            raise Refused("hash", header.text("hash", 64), stream.hash, hint="the file was altered")
    except (ValueError, TypeError) as reason:
        raise ValueError(f"{path}: not a usable stream file: {reason}") from None
    return stream


def _task_fields(task: Task) -> dict[str, Any]:
    return {
        "classes": list(task.classes),
        "rows": [r.tolist() for r in task.rows],
        "unlabelled": [np.flatnonzero(~m).tolist() for m in task.labelled],
    }


def _read_task(fields: Any) -> Task:
    header = Header({"task": fields}).section("task")
    classes = header.items("classes", FILE_LIMITS.classes)
    rows = tuple(_integers(r, "rows") for r in header.items("rows", 10**6))
    hidden = header.items("unlabelled", len(rows))
    if hidden and len(hidden) != len(rows):
        raise Refused("unlabelled", f"one list for each of {len(rows)} clients", len(hidden))
    labelled = []
    for part, positions in zip(rows, hidden, strict=False):
        mask = np.ones(len(part), dtype=bool)
        mask[_integers(positions, "unlabelled", len(part))] = False
        labelled.append(mask)
    known = Header({"classes": sorted(classes, key=lambda c: (isinstance(c, str), c))})
    known.labels("classes", FILE_LIMITS)
    return Task(tuple(classes), rows, tuple(labelled))


def _integers(values: Any, name: str, below: int | None = None) -> np.ndarray[Any, Any]:
    if not isinstance(values, list) or not all(type(v) is int for v in values):
        raise Refused(name, "a list of row numbers", type(values).__name__)
    found = np.array(values, dtype=np.int64)
    if len(found) and (found.min() < 0 or (below is not None and found.max() >= below)):
        raise Refused(name, f"numbers from 0 to {below}", f"{found.min()} .. {found.max()}")
    return found


def _check_rows(stream: Stream, n_rows: int | None) -> None:
    if not stream.tasks or any(len(t.rows) != stream.n_clients for t in stream.tasks):
        raise Refused("tasks", "at least one, all with the same clients", len(stream.tasks))
    rows = np.concatenate([r for t in stream.tasks for r in t.rows])
    if len(np.unique(rows)) != len(rows):
        raise Refused("rows", "every row at most once", "a row twice")
    if n_rows is not None and len(rows) and rows.max() >= n_rows:
        raise Refused(
            "rows", f"row numbers below {n_rows}", rows.max(), hint="made for another dataset"
        )
    classes = [c for t in stream.tasks for c in t.classes]
    if len(set(classes)) != len(classes):
        raise Refused("classes", "every class in one task", "a class twice")
