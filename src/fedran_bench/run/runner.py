"""Runs one method over one stream and measures bytes and seconds around its calls."""

from __future__ import annotations

import datetime
import hashlib
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import shortened
from fedran.data.dataset import Dataset, as_images
from fedran.wire.sizes import human_bytes
from fedran_bench.methods.protocol import (
    BaseMethod,
    ClientData,
    EncodedImages,
    Spec,
    cached_backbone,
)
from fedran_bench.results.result import (
    DEFAULT_STUDY,
    Result,
    Seconds,
    TaskRecord,
    library_versions,
    run_id,
)
from fedran_bench.streams import Stream

_with_pixels = lru_cache(maxsize=2)(as_images)
"""A dataset with its images decoded, once per process."""
Progress = Callable[[str], None]
"""Called after each step with a description of the step."""


class TaskDone(str):
    """The description of the step in which a task was tested: its figures."""

    __slots__ = ()


@dataclass(frozen=True)
class PreparedJob:
    """One method on one stream of one dataset, ready to run, and its names in tables."""

    key: str
    method: BaseMethod
    dataset: Dataset
    stream: Stream
    seed: int = 0
    """Of the random features, and of everything that a client draws."""
    label: str = ""
    study: str = DEFAULT_STUDY
    config: str = ""
    arguments: tuple[str, ...] | None = None
    """What followed ``fedran bench run``, where a command made the job."""
    side_by_side: int = 1
    """Runs that share the machine."""

    def __post_init__(self) -> None:
        if hasattr(self.method, "require_possible"):
            self.method.require_possible(len(self.stream.tasks))
        if self.method.input == "images":
            size = getattr(self.method, "image_size", None)
            object.__setattr__(self, "dataset", _with_pixels(self.dataset, size))
        elif self.dataset.kind != "features":
            raise ValueError(
                f"{self.method.name} takes features, but {self.dataset.name} holds images: make "
                "features with `fedran features`"
            )
        if getattr(self.method, "kind", "") is None:  # of random features, not yet chosen
            chosen = replace(self.method, kind=self.dataset.feature_kind)  # type: ignore[type-var]
            object.__setattr__(self, "method", chosen)
        for t, task in enumerate(self.stream.tasks, 1):
            if task.classes and not len(_rows_of(self.dataset.y_test, task.classes)):
                raise ValueError(
                    f"{self.dataset.name}: task {t} cannot be tested, because no test row has one "
                    f"of its classes {shortened([repr(c) for c in task.classes], 5)}"
                )

    @property
    def seeds(self) -> dict[str, int]:
        """Seeds of the class order, the partition, the label mask and the projection."""
        return {**self.stream.seeds, "projection": self.seed}

    @property
    def hashes(self) -> dict[str, str]:
        """Hashes of the stream, of the features or images, of the weights where known, and of the
        file of a method from outside this package, whose version covers its own methods.
        """
        found = {"stream": self.stream.hash, self.dataset.kind: self.dataset.hash}
        weights = self.dataset.source.get("weights") or getattr(self.method, "weights_hash", None)
        if weights:
            found["weights"] = weights
        module = type(self.method).__module__
        file = getattr(sys.modules.get(module), "__file__", None)  # none in a notebook
        if file and not module.startswith("fedran_bench."):
            found["method"] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        return found

    @property
    def run_id(self) -> str:
        """The id of the result, before there is a result."""
        version = library_versions()["fedran"]
        return run_id(self.key, self.method.params(), self.seeds, self.hashes, version)


def run(prepared: PreparedJob, *, progress: Progress = lambda _: None) -> Result:
    """In every task: the clients one after the other, then the server, then a test.

    The test covers all classes seen so far.
    """
    return _Runner(prepared, progress).run()


class _Runner:
    """The loop over tasks, rounds and clients, and the measurements so far."""

    def __init__(self, prepared: PreparedJob, progress: Progress) -> None:
        self.prepared, self.method, self.progress = prepared, prepared.method, progress
        self.data, self.stream = prepared.dataset, prepared.stream
        self.clients = tuple(f"client-{k}" for k in range(self.stream.n_clients))
        backbone = image_side = None
        if self.data.kind == "images":
            height, width = self.data.X_train.shape[1:3]
            image_side = int(height) if height == width else None
        elif self.data.images is not None:
            backbone = cached_backbone(self.data.images, self.data.X_train)
        self.spec = Spec(
            self.data.X_train.shape[-1],
            tuple(t.classes for t in self.stream.tasks),
            self.clients,
            backbone,
            image_side,
        )
        self.test = [_rows_of(self.data.y_test, t.classes) for t in self.stream.tasks]
        self.state: Any = self.method.init(self.spec, prepared.seed)
        self.client_states: dict[str, Any] = dict.fromkeys(self.clients)
        self.acc: list[list[float]] = []
        self.tasks: list[TaskRecord] = []
        self.drift: list[float] = []
        self.reference: NDArray[Any] | None = None
        """The first features of the reference rows, from which the drift is measured."""

    def run(self) -> Result:
        for t in range(len(self.stream.tasks)):
            record = self._learn(t)
            self.tasks.append(record)
            accuracy = 100.0 * self._test(t)
            self._measure_drift(t)
            seconds = float(np.mean(record.seconds.client)) + record.seconds.server
            self.progress(
                TaskDone(
                    f"task {t + 1} of {len(self.stream.tasks)}: accuracy {accuracy:.2f}, "
                    f"upload {human_bytes(max(record.bytes_up))}, {seconds:.3g} s"
                )
            )
        return self._result()

    def _learn(self, t: int) -> TaskRecord:
        """All rounds of a task, and what they cost."""
        up, down, server = [0] * len(self.clients), [0] * len(self.clients), 0.0
        busy = [0.0] * len(self.clients)
        for round_ in range(self.method.rounds(t)):
            message = self.method.broadcast(self.state, t, round_)
            uploads = {}
            for k, name in enumerate(self.clients):
                data = self._client_data(t, k)
                start = time.perf_counter()
                self.client_states[name], uploads[name] = self.method.client(
                    self.client_states[name], message, data, self.prepared.seed
                )
                busy[k] += time.perf_counter() - start
                up[k] += len(uploads[name])
                down[k] += len(message)
                self.progress(
                    f"task {t + 1}, round {round_ + 1}: {name} sent {len(uploads[name])} bytes"
                )
            start = time.perf_counter()
            self.state = self.method.aggregate(self.state, t, round_, uploads)
            server += time.perf_counter() - start
        task, per_row, extraction = self.stream.tasks[t], self.data.seconds_per_row, None
        if per_row is not None and self.method.input == "features":
            extraction = [per_row * len(r) for r in task.rows]
        return TaskRecord(
            up,
            down,
            Seconds(busy, server, extraction),
            self.method.rounds(t),
            formula_bytes=self.method.formula(self.spec.in_features, len(self.stream.seen(t))),
            peak_rss=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            label_rate=[
                float(task.has_label(k).mean()) if len(r) else None for k, r in enumerate(task.rows)
            ],
            **self._pseudo_labels(t),
        )

    def _client_data(self, t: int, k: int) -> ClientData:
        task = self.stream.tasks[t]
        rows = task.rows[k]
        y: Any = self.data.y_train[rows]
        if task.labelled:
            y = [c if has else None for c, has in zip(y.tolist(), task.labelled[k], strict=True)]
        images = None if self.data.images is None else EncodedImages(self.data.images, rows)
        return ClientData(self.clients[k], str(t), self.data.X_train[rows], y, images)

    def _pseudo_labels(self, t: int) -> dict[str, Any]:
        """Acceptance and precision of the clients' pseudo-labels, where there are any."""
        accepted: list[float | None] = [None] * len(self.clients)
        precision: list[float | None] = [None] * len(self.clients)
        for k, state in enumerate(self.client_states.values()):
            pseudo = getattr(state, "pseudo", None)
            if pseudo is None or not pseudo.n_candidates:
                continue
            accepted[k] = pseudo.acceptance
            rows = np.flatnonzero(pseudo.accepted)
            if len(rows):
                truth = self.data.y_train[self.stream.tasks[t].rows[k]]
                precision[k] = float(np.mean([pseudo.labels[i] == truth[i] for i in rows]))
        figures = {"accepted": accepted, "precision": precision}
        return {name: v for name, v in figures.items() if any(x is not None for x in v)}

    def _test(self, t: int) -> float:
        """Accuracy on all classes so far. Those of every task are kept."""
        rows = np.concatenate(self.test[: t + 1])
        right = self.method.predict(self.state, self.data.X_test[rows]) == self.data.y_test[rows]
        parts = np.split(right, np.cumsum([len(r) for r in self.test[:t]]))
        self.acc.append([float(p.mean()) if len(p) else 0.0 for p in parts])
        return float(right.mean())

    def _measure_drift(self, t: int) -> None:
        """Of client 1's rows of task 2: the mean distance from their first features."""
        first = min(1, len(self.stream.tasks) - 1)
        rows = self.stream.tasks[first].rows[0]
        if t < first or not len(rows):
            return
        now = self.method.embed(self.state, self.data.X_train[rows])
        if now is None:
            return
        if self.reference is None:
            self.reference = now
        drift = float(np.linalg.norm(now - self.reference, axis=1).mean())
        if not np.isfinite(drift):
            raise ValueError(f"{self.method.name} diverged: its features are no longer finite")
        self.drift.append(drift)

    def _result(self) -> Result:
        prepared = self.prepared
        last = self.method.broadcast(self.state, len(self.stream.tasks), 0)
        return Result(
            key=prepared.key,
            label=prepared.label or self.method.name,
            family=self.method.family,
            params=self.method.params(),
            claims=asdict(self.method.claims),
            sends=self.method.sends,
            dataset=self.data.name,
            stream=dict(self.stream.settings),
            seeds=prepared.seeds,
            hashes=prepared.hashes,
            acc=self.acc,
            test_rows=[len(r) for r in self.test],
            classes=[c for t in self.stream.tasks for c in t.classes],
            tasks=self.tasks,
            bytes_down_final=len(last),
            machine=describe_machine(getattr(self.method, "device", None)),
            date=datetime.date.today().isoformat(),
            side_by_side=prepared.side_by_side,
            study=prepared.study,
            config=prepared.config,
            arguments=None if prepared.arguments is None else list(prepared.arguments),
            drift=self.drift,
        )


def usable_cores() -> int:
    """Cores that this process may use, including the limits of containers."""
    return int(joblib.cpu_count())


def describe_machine(device: str | None) -> str:
    """System, processor family, cores and, where one was used, the accelerator."""
    if device is not None and device.startswith("cuda"):
        import torch

        device = torch.cuda.get_device_name(device)
    where = f"{platform.system()} {platform.machine()}, {usable_cores()} cores"
    return where if device is None else f"{where}, {device}"


def _rows_of(labels: NDArray[Any], classes: Sequence[Any]) -> NDArray[np.int64]:
    return np.flatnonzero(np.isin(labels, list(classes)))
