"""The state of a run on disk, so that it can continue after an interruption.

A checkpoint is an index file and a folder of parts below 16 MB each, which are named by the SHA-256
of their content. Parts are written first, then the index that names them is replaced, then parts
that it no longer names are deleted. After a crash at any time the index therefore describes
complete parts. Equal tensors, for instance the teacher that every client keeps, are stored once.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from fedran.bench.results.result import TaskRecord, read_record, record_fields
from fedran.methods.base import BaseMethod
from fedran.methods.protocol import Spec
from fedran.wire.container import pack, unpack
from fedran.wire.files import write_atomically
from fedran.wire.validation import FILE_LIMITS

KIND = "checkpoint"
PART_BYTES = 15 * 2**20
"""Largest part, so that it can be carried where files are limited to 16 MB."""
SECONDS = 30.0
"""Seconds between two saves. A run that is done sooner writes nothing."""


@dataclass
class OpenTask:
    """Measurements of the current task over its finished rounds, one entry per client."""

    bytes_up: list[int]
    bytes_down: list[int]
    busy: list[float]
    server: float = 0.0
    rounds: int = 0

    @classmethod
    def start(cls, n_clients: int) -> OpenTask:
        """Nothing measured yet."""
        return cls([0] * n_clients, [0] * n_clients, [0.0] * n_clients)


@dataclass
class RunState:
    """A run between two rounds: the states of server and clients, and the measurements so far."""

    state: Any
    clients: dict[str, Any]
    acc: list[list[float]] = field(default_factory=list)
    class_right: list[list[int]] = field(default_factory=list)
    tasks: list[TaskRecord] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    reference_acc: list[float] = field(default_factory=list)
    open_task: OpenTask | None = None
    reference: NDArray[Any] | None = None
    """The first features of the reference rows, from which the drift is measured."""


INDEXED = ("acc", "class_right", "tasks", "drift", "reference_acc", "open_task")
"""Measurements that are in the index. The rest of a run's state is in the parts."""


class Checkpoint:
    """Saves and loads the state of a run. With ``path=None`` nothing is saved."""

    def __init__(self, path: Path | None = None, seconds: float = SECONDS) -> None:
        self.path, self.seconds = path, seconds
        self._last = time.monotonic()
        self._written: set[str] = set()

    @property
    def parts(self) -> Path:
        """The folder of the parts."""
        assert self.path is not None
        return self.path.with_name(f"{self.path.name}.parts")

    def load(self, method: BaseMethod, spec: Spec, seed: int) -> RunState | None:
        """The saved state, or None if there is no complete and undamaged one."""
        if self.path is None or not self.path.exists():
            return None
        try:
            index = unpack(self.path.read_bytes(), FILE_LIMITS)
            if index.kind != KIND:
                return None
            blobs = self._read_parts(index.header.fields)
            state = method.load(blobs["state"], spec, seed)
            clients = {c: method.load_client(blobs[f"client {c}"]) for c in spec.clients}
            current = RunState(state, clients, **{n: index.header.fields[n] for n in INDEXED})
            current.tasks = [read_record(t) for t in index.header.fields["tasks"]]
            if index.header.fields["open_task"] is not None:
                current.open_task = OpenTask(**index.header.fields["open_task"])
            if "reference" in blobs:
                current.reference = load_arrays(blobs["reference"])["reference"]
            return current
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OSError):
            return None  # incomplete, damaged or of another kind: the run starts again

    def save(self, method: BaseMethod, current: RunState) -> None:
        """Write the state, unless the last save is too recent."""
        if self.path is None or time.monotonic() - self._last < self.seconds:
            return
        blobs = {f"client {c}": method.dump_client(s) for c, s in current.clients.items()}
        if current.reference is not None:
            blobs["reference"] = save_arrays({"reference": current.reference})
        # The state comes last: it changes in every round, and the parts before it do not.
        blobs["state"] = method.dump(current.state)
        self.parts.mkdir(parents=True, exist_ok=True)
        layout = self._write_parts(blobs)
        known = {name: getattr(current, name) for name in INDEXED}
        known["tasks"] = [record_fields(t) for t in current.tasks]
        known["open_task"] = None if current.open_task is None else asdict(current.open_task)
        write_atomically(self.path, pack(KIND, {**known, **layout}, {}))
        for part in self.parts.iterdir():
            if part.name not in layout["parts"]:
                part.unlink()
        self._written &= set(layout["parts"])
        self._last = time.monotonic()

    def remove(self) -> None:
        """Delete the files, and what is left of a save during which the process was killed."""
        if self.path is None:
            return
        self.path.unlink(missing_ok=True)
        for unfinished in self.path.parent.glob(f".{self.path.name}.*.part"):
            unfinished.unlink(missing_ok=True)
        if self.parts.is_dir():
            for part in self.parts.iterdir():
                part.unlink()
            self.parts.rmdir()

    def _write_parts(self, blobs: Mapping[str, bytes]) -> dict[str, Any]:
        """Write the parts that are not on disk yet.

        Returns the names of all parts; the pieces, each as part, offset and length; and the
        numbers of the pieces of each blob.
        """
        parts: list[list[memoryview]] = []
        pieces: list[tuple[int, int, int]] = []
        known: dict[bytes, int] = {}
        numbers: dict[str, list[int]] = {}
        filled = PART_BYTES
        for name, blob in blobs.items():
            numbers[name] = []
            for piece in cut(blob):
                digest = hashlib.sha256(piece).digest()
                if digest not in known:
                    if filled + len(piece) > PART_BYTES:
                        parts.append([])
                        filled = 0
                    known[digest] = len(pieces)
                    pieces.append((len(parts) - 1, filled, len(piece)))
                    parts[-1].append(piece)
                    filled += len(piece)
                numbers[name].append(known[digest])
        names = []
        for part in parts:
            content = b"".join(part)
            names.append(hashlib.sha256(content).hexdigest())
            if names[-1] not in self._written:
                write_atomically(self.parts / names[-1], content)
                self._written.add(names[-1])
        return {"parts": names, "pieces": pieces, "blobs": numbers}

    def _read_parts(self, layout: Mapping[str, Any]) -> dict[str, bytes]:
        """The blobs. A part whose content does not fit its name is an error."""
        parts = []
        for name in layout["parts"]:
            parts.append((self.parts / name).read_bytes())
            if hashlib.sha256(parts[-1]).hexdigest() != name:
                raise ValueError(f"{self.parts / name}: the content does not fit the name")
        pieces = [parts[part][start : start + n] for part, start, n in layout["pieces"]]
        return {name: b"".join(pieces[i] for i in ids) for name, ids in layout["blobs"].items()}


def cut(blob: bytes) -> Iterator[memoryview]:
    """The header and the tensors of a safetensors file, or the whole of anything else.

    No piece is longer than a part.
    """
    start = min(len(blob), 8 + int.from_bytes(blob[:8], "little"))
    ends = {0, len(blob)}
    try:
        entries = json.loads(blob[8:start])
        tensors = (e for name, e in entries.items() if name != "__metadata__")
        ends |= {start + int(e["data_offsets"][0]) for e in tensors}
    except (ValueError, TypeError, KeyError, AttributeError):
        pass  # no safetensors file
    view, places = memoryview(blob), sorted(ends)
    for begin, end in pairwise(places):
        for i in range(begin, end, PART_BYTES):
            yield view[i : min(end, i + PART_BYTES)]
