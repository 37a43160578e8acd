"""One run of one method: a line of results, the same schema for every method."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import scipy

import fedran

SCHEMA = 1


@dataclass(frozen=True)
class TaskRecord:
    """What one task cost, measured around the method's calls."""

    bytes_up: list[int]
    """Per client, over all rounds."""
    bytes_down: list[int]
    seconds_client: list[float]
    seconds_server: float
    f: float | None = None
    lam: float | None = None


@dataclass(frozen=True)
class Result:
    """Accuracy after each task, bytes, seconds, and what is needed to repeat the run."""

    method: str
    params: dict[str, Any]
    claims: dict[str, bool]
    seeds: dict[str, int]
    hashes: dict[str, str]
    acc: list[list[float]]
    """acc[t][j]: accuracy on the classes of task j after task t, in 0 .. 1."""
    test_rows: list[int]
    """Test rows of each task's classes."""
    tasks: list[TaskRecord]
    bytes_down_final: int
    """The head after the last task, once to each client."""
    machine: str
    """System, processor family and, where one was used, the accelerator."""
    versions: dict[str, str] = field(default_factory=lambda: library_versions())
    schema: int = SCHEMA

    @property
    def run_id(self) -> str:
        """Hash of configuration, stream and code version: equal for repeated runs."""
        parts = [self.method, self.params, self.seeds, self.hashes, self.versions["fedran"]]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def A(self) -> list[float]:
        """A_t in percent: accuracy over all test rows of the classes seen after task t."""
        return [
            100.0 * float(np.average(row, weights=self.test_rows[: len(row)])) for row in self.acc
        ]

    @property
    def A_avg(self) -> float:
        """Mean of A_t."""
        return float(np.mean(self.A))

    @property
    def A_T(self) -> float:
        """Accuracy after the last task."""
        return self.A[-1]

    @property
    def max_upload(self) -> int:
        """The paper's communication: the largest upload of any client in any task, bytes."""
        return max(max(t.bytes_up) for t in self.tasks)

    @property
    def client_seconds(self) -> float:
        """Mean over tasks and clients."""
        return float(np.mean([s for t in self.tasks for s in t.seconds_client]))

    @property
    def server_seconds(self) -> float:
        """Mean over tasks."""
        return float(np.mean([t.seconds_server for t in self.tasks]))

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"run_id": self.run_id, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, line: str) -> Result:
        """Inverse of ``to_json``; ValueError when the line is not such a result."""
        try:
            fields = json.loads(line)
            fields.pop("run_id")
            if fields["schema"] != SCHEMA:
                raise ValueError(f"results of schema {fields['schema']}, this reads {SCHEMA}")
            fields["tasks"] = [TaskRecord(**t) for t in fields["tasks"]]
            return cls(**fields)
        except (KeyError, TypeError) as reason:
            raise ValueError(f"not a line of results: {reason}") from None


def library_versions() -> dict[str, str]:
    """Versions of this package and the libraries that compute."""
    return {"fedran": fedran.__version__, "numpy": np.__version__, "scipy": scipy.__version__}
