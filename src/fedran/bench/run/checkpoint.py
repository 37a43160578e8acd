"""The state of a run in one file, so that it can continue after an interruption."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.bench.results.result import TaskRecord, read_record, record_fields
from fedran.methods.protocol import Method, Spec
from fedran.wire.container import pack, unpack
from fedran.wire.files import write_atomically
from fedran.wire.validation import FILE_LIMITS

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
class Measurements:
    """Measurements of a run so far."""

    acc: list[list[float]] = field(default_factory=list)
    class_right: list[list[int]] = field(default_factory=list)
    tasks: list[TaskRecord] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    reference_acc: list[float] = field(default_factory=list)
    reference: NDArray[Any] | None = None
    """The first features of the reference rows, from which the drift is measured."""
    open_task: OpenTask | None = None


@dataclass
class RunState:
    """A run between two rounds: the states of server and clients, and the measurements."""

    state: Any
    clients: dict[str, Any]
    measured: Measurements


class Checkpoint:
    """Saves and loads the state of a run. With ``path=None`` nothing is saved."""

    def __init__(self, path: Path | None = None, seconds: float = SECONDS) -> None:
        self.path, self.seconds = path, seconds
        self._last = time.monotonic()

    def load(self, method: Method[Any], spec: Spec, seed: int) -> RunState | None:
        """The saved state, or None if there is no readable one."""
        if self.path is None or not self.path.exists():
            return None
        try:
            message = unpack(self.path.read_bytes(), FILE_LIMITS)
            state = method.load(message.stream("state"), spec, seed)
            clients = {c: method.load_client(message.stream(f"client {c}")) for c in spec.clients}
            return RunState(state, clients, _read(message.header.fields, message.tensors))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # incomplete, damaged or of another kind: the run starts again

    def save(self, method: Method[Any], current: RunState) -> None:
        """Write the state, unless the last save is too recent."""
        if self.path is None or time.monotonic() - self._last < self.seconds:
            return
        measured = current.measured
        blobs = {f"client {c}": method.dump_client(s) for c, s in current.clients.items()}
        blobs["state"] = method.dump(current.state)
        tensors: dict[str, NDArray[Any]] = {
            name: np.frombuffer(blob, dtype=np.uint8) for name, blob in blobs.items()
        }
        if measured.reference is not None:
            tensors["reference"] = measured.reference
        fields = {
            "acc": measured.acc,
            "class_right": measured.class_right,
            "tasks": [record_fields(t) for t in measured.tasks],
            "drift": measured.drift,
            "reference_acc": measured.reference_acc,
            "open_task": None if measured.open_task is None else asdict(measured.open_task),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, pack("checkpoint", fields, tensors))
        self._last = time.monotonic()

    def remove(self) -> None:
        """Delete the file, and what is left of a save during which the process was killed."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            for unfinished in self.path.parent.glob(f".{self.path.name}.*.part"):
                unfinished.unlink(missing_ok=True)


def _read(fields: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Measurements:
    task = fields["open_task"]
    return Measurements(
        fields["acc"],
        fields["class_right"],
        [read_record(t) for t in fields["tasks"]],
        fields["drift"],
        fields["reference_acc"],
        tensors.get("reference"),
        None if task is None else OpenTask(**task),
    )
