"""The state of a run on disk, so that it can continue after an interruption."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from fedran.wire.container import pack, unpack
from fedran.wire.files import write_atomically
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.base import BaseMethod
from fedran_bench.methods.protocol import Spec
from fedran_bench.results.result import TaskRecord, read_record, record_fields

KIND = "checkpoint"
SECONDS = 30.0
"""Seconds between two saves. A run that is done sooner writes nothing."""
USUAL_SAVE = 3.0
"""Seconds of a save. A state that takes longer is saved less often in proportion."""


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


MEASURED = ("acc", "class_right", "tasks", "drift", "reference_acc", "open_task")
"""Measurements, which are in the header of the file. The rest of a run's state is in tensors."""


class Checkpoint:
    """Saves and loads the state of a run in one file. With ``path=None`` nothing is saved."""

    def __init__(self, path: Path | None = None, seconds: float = SECONDS) -> None:
        self.path, self.seconds = path, seconds
        self._next = time.monotonic() + seconds

    def load(self, method: BaseMethod, spec: Spec, seed: int) -> RunState | None:
        """The saved state, or None if there is no complete and undamaged one."""
        if self.path is None or not self.path.exists():
            return None
        try:
            file = unpack(self.path.read_bytes(), FILE_LIMITS).of_kind(KIND)
            state = method.load(file.stream("state"), spec, seed)
            clients = {c: method.load_client(file.stream(f"client {c}")) for c in spec.clients}
            current = RunState(state, clients, **{n: file.header.fields[n] for n in MEASURED})
            current.tasks = [read_record(t) for t in file.header.fields["tasks"]]
            if file.header.fields["open_task"] is not None:
                current.open_task = OpenTask(**file.header.fields["open_task"])
            if "reference" in file.tensors:
                current.reference = load_arrays(file.stream("reference"))["reference"]
            return current
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OSError):
            return None  # incomplete, damaged or of another kind: the run starts again

    def save(self, method: BaseMethod, current: RunState) -> None:
        """Write the state, unless the last save is too recent."""
        start = time.monotonic()
        if self.path is None or start < self._next:
            return
        blobs = {f"client {c}": method.dump_client(s) for c, s in current.clients.items()}
        blobs["state"] = method.dump(current.state)
        if current.reference is not None:
            blobs["reference"] = save_arrays({"reference": current.reference})
        known = {name: getattr(current, name) for name in MEASURED}
        known["tasks"] = [record_fields(t) for t in current.tasks]
        known["open_task"] = None if current.open_task is None else asdict(current.open_task)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, pack(KIND, known, blobs))
        end = time.monotonic()
        self._next = end + self.seconds * max(1.0, (end - start) / USUAL_SAVE)

    def remove(self) -> None:
        """Delete the file, and what is left of a save during which the process was killed."""
        if self.path is None:
            return
        self.path.unlink(missing_ok=True)
        for unfinished in self.path.parent.glob(f".{self.path.name}.*.part"):
            unfinished.unlink(missing_ok=True)
