"""A stream as a JSON file, so that others can run on exactly the same rows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.labels import canonical
from fedran.wire.files import write_atomically
from fedran.wire.validation import FILE_LIMITS, Header
from fedran_bench.streams.stream import Stream, Task

FORMAT, VERSION = "fedran stream", 1
ALTERED = "the file was altered"


def save_stream(stream: Stream, path: str | Path) -> None:
    """Write the stream, its settings and its hash. The file holds row numbers, no data."""
    made = {"settings": dict(stream.settings), "seeds": stream.seeds}
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "hash": stream.hash,
        "made": made,
        "made_hash": _digest(made),
        "tasks": [
            {
                "classes": list(task.classes),
                "rows": [rows.tolist() for rows in task.rows],
                "unlabelled": [np.flatnonzero(~mask).tolist() for mask in task.labelled],
            }
            for task in stream.tasks
        ],
    }
    write_atomically(Path(path), json.dumps(fields, separators=(",", ":")).encode())


def load_stream(path: str | Path, labels: NDArray[Any] | None = None) -> Stream:
    """The stream in a file, checked: rows occur once, and the hash is the one it was saved with.

    With the training ``labels`` of a dataset, every row must also be in the task of its class.
    """
    path = Path(path)
    try:
        header = Header.parse(path.read_text(encoding="utf-8"))
        if header.text("format", 32) != FORMAT or header.integer("version") != VERSION:
            raise Refused("format", f"{FORMAT} {VERSION}", header.text("format", 32))
        made = header.section("made")
        if header.text("made_hash", 64) != _digest(made.fields):
            raise Refused(
                "made_hash", "the hash of seeds and settings", "another hash", hint=ALTERED
            )
        seeds, settings = made.section("seeds"), made.section("settings").fields
        for name, value in settings.items():
            if value is not None and not isinstance(value, (int, float, str)):
                raise Refused(f"settings.{name}", "a number or text", value)
        stream = Stream(
            tuple(_read_task(t) for t in header.items("tasks", FILE_LIMITS.classes)),
            {name: seeds.integer(name) for name in seeds.fields},
            settings,
        )
        _check_rows(stream)
        if labels is not None:
            _check_labels(stream, labels)
        if stream.hash != header.text("hash", 64):
            raise Refused("hash", header.text("hash", 64), stream.hash, hint=ALTERED)
    except (ValueError, TypeError, OverflowError) as reason:
        raise ValueError(f"{path}: not a usable stream file: {reason}") from None
    return stream


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
        limit = "" if below is None else f" and below {below}"
        raise Refused(name, f"numbers of at least 0{limit}", f"{found.min()} .. {found.max()}")
    return found


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _check_labels(stream: Stream, labels: NDArray[Any]) -> None:
    """Refuse a stream whose rows do not have the classes of their task in this dataset."""
    hint = "made for another dataset"
    for t, task in enumerate(stream.tasks, 1):
        rows = np.concatenate(task.rows)
        if len(rows) and rows.max() >= len(labels):
            raise Refused("rows", f"numbers below {len(labels)}", int(rows.max()), hint=hint)
        found = {canonical(c) for c in np.unique(labels[rows])}
        if not found <= set(task.classes):
            got = sorted(map(str, found - set(task.classes)))[:3]
            raise Refused("rows", f"rows of the classes of task {t}", f"classes {got}", hint=hint)


def _check_rows(stream: Stream) -> None:
    """Refuse tasks with different clients, and rows or classes that occur twice."""
    if (
        not stream.tasks
        or not stream.n_clients
        or any(len(t.rows) != stream.n_clients for t in stream.tasks)
    ):
        raise Refused("tasks", "at least one, all with the same clients", len(stream.tasks))
    rows = np.concatenate([r for t in stream.tasks for r in t.rows])
    if len(np.unique(rows)) != len(rows):
        raise Refused("rows", "every row at most once", "a row twice")
    classes = [c for t in stream.tasks for c in t.classes]
    if len(set(classes)) != len(classes):
        raise Refused("classes", "every class in one task", "a class twice")
