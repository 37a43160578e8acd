"""Runs one method over one stream and measures bytes and seconds around its calls."""

from __future__ import annotations

import datetime
import hashlib
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import namespace, to_device
from fedran.core.errors import shortened
from fedran.core.sums.exact_sum import ExactSum
from fedran.data.dataset import Dataset, as_images
from fedran.data.images import EncodedImages, cached_backbone
from fedran.wire.sizes import human_bytes
from fedran_bench.methods.base import BaseMethod
from fedran_bench.methods.protocol import ClientData, Spec
from fedran_bench.results.result import (
    DEFAULT_STUDY,
    Result,
    Seconds,
    TaskRecord,
    library_versions,
    run_id,
)
from fedran_bench.run.checkpoint import Checkpoint, OpenTask, RunState
from fedran_bench.run.machine import describe_machine, peak_memory, reset_peak_memory
from fedran_bench.streams.stream import Stream

_with_pixels = lru_cache(maxsize=2)(as_images)
"""A dataset with its images decoded, once per process."""
Progress = Callable[[str], None]
"""Called after each step with a description of the step."""


@dataclass(frozen=True)
class TaskDone:
    """The figures of a task right after it was tested."""

    task: int
    """From 1 to ``tasks``."""
    tasks: int
    accuracy: float
    """A_t: accuracy over all classes seen so far, in percent."""
    upload: int
    """The largest upload of a client in this task, bytes."""
    seconds: float
    """Mean client plus server."""

    def __str__(self) -> str:
        return (
            f"task {self.task} of {self.tasks}: accuracy {self.accuracy:.2f}, "
            f"upload {human_bytes(self.upload)}, {self.seconds:.3g} s"
        )


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
    budgets: dict[str, float] = field(default_factory=dict)
    gram_error: bool = False
    seconds_per_row: float | None = None
    """Forward pass of the backbone, where the dataset does not know it."""
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
            if not len(_rows_of(self.dataset.y_test, task.classes)):
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
        """Hashes of the stream, of the features or images, and of the weights where known."""
        weights = self.dataset.source.get("weights") or getattr(self.method, "weights_hash", None)
        known = {"stream": self.stream.hash, self.dataset.kind: self.dataset.hash}
        outside = _code_hash(type(self.method))
        if outside:
            known["method"] = outside
        return {**known, "weights": weights} if weights else known

    @property
    def run_id(self) -> str:
        """The id of the result, before there is a result."""
        version = library_versions()["fedran"]
        return run_id(self.key, self.method.params(), self.seeds, self.hashes, version)

    @property
    def row_shape(self) -> tuple[int, int] | None:
        """Training rows of the stream and their features; None for methods on images."""
        if self.dataset.kind == "images":
            return None
        rows = sum(len(r) for task in self.stream.tasks for r in task.rows)
        return rows, self.dataset.X_train.shape[1]

    @property
    def steps(self) -> int:
        """How often ``run`` reports progress."""
        rounds = sum(self.method.rounds(t) for t in range(len(self.stream.tasks)))
        return rounds * self.stream.n_clients + len(self.stream.tasks)


def run(
    prepared: PreparedJob,
    *,
    progress: Progress = lambda _: None,
    task_done: Callable[[TaskDone], None] = lambda _: None,
    checkpoint: Checkpoint | None = None,
) -> Result:
    """In every task: the clients one after the other, then the server, then a test.

    The test covers all classes seen so far. With a ``checkpoint`` the run continues where it was
    interrupted, after any round. Remove the checkpoint once the result is on disk. ``task_done`` is
    called after the test of each task that this call computes.
    """
    return _Runner(prepared, progress, task_done, checkpoint or Checkpoint()).run()


def _code_hash(kind: type[Any]) -> str | None:
    """Hash of the file of a class from outside this package; None where it has no file."""
    if kind.__module__.partition(".")[0] == "fedran_bench":
        return None  # the version of the package covers it
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:
        return None
    if file is None or not Path(file).is_file():  # a class typed into a notebook
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


class _Runner:
    """The loop over tasks, rounds and clients."""

    def __init__(
        self,
        prepared: PreparedJob,
        progress: Progress,
        task_done: Callable[[TaskDone], None],
        checkpoint: Checkpoint,
    ) -> None:
        self.prepared, self.method = prepared, prepared.method
        self.data, self.stream = prepared.dataset, prepared.stream
        self.progress, self.task_done, self.checkpoint = progress, task_done, checkpoint
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
        self.exact = _ExactGrams(self.data, self.stream) if prepared.gram_error else None

    def run(self) -> Result:
        reset_peak_memory()
        current = self.checkpoint.load(self.method, self.spec, self.prepared.seed)
        if current is None:
            state = self.method.init(self.spec, self.prepared.seed)
            current = RunState(state, dict.fromkeys(self.clients))
        for t in range(len(self.stream.tasks)):
            if t < len(current.tasks):
                for _ in range(self.method.rounds(t) * len(self.clients) + 1):
                    self.progress(f"task {t + 1}: already done")
                continue
            self._rounds(current, t)
            current.tasks.append(self._record(current, t))
            current.open_task = None
            self._test(current, t)
            self._drift(current, t)
            self.checkpoint.save(self.method, current)
            self.progress(f"task {t + 1}: solved and tested")
            self.task_done(self._done(current, t))
        return self._result(current)

    def _rounds(self, current: RunState, t: int) -> None:
        task = current.open_task or OpenTask.start(len(self.clients))
        current.open_task = task
        for _ in range(task.rounds * len(self.clients)):
            self.progress(f"task {t + 1}: already done")
        for round_ in range(task.rounds, self.method.rounds(t)):
            if round_:
                self.checkpoint.save(self.method, current)
            message = self.method.broadcast(current.state, t, round_)
            uploads = {}
            for k, name in enumerate(self.clients):
                data = self._client_data(t, k)
                start = time.perf_counter()
                current.clients[name], uploads[name] = self.method.client(
                    current.clients[name], message, data, self.prepared.seed
                )
                task.busy[k] += time.perf_counter() - start
                task.bytes_up[k] += len(uploads[name])
                task.bytes_down[k] += len(message)
                self.progress(
                    f"task {t + 1}, round {round_ + 1}: {name} sent {len(uploads[name])} bytes"
                )
            start = time.perf_counter()
            current.state = self.method.aggregate(current.state, t, round_, uploads)
            task.server += time.perf_counter() - start
            task.rounds += 1

    def _done(self, current: RunState, t: int) -> TaskDone:
        record, rows = current.tasks[t], [len(r) for r in self.test[: t + 1]]
        accuracy = 100.0 * float(np.average(current.acc[t], weights=rows))
        seconds = float(np.mean(record.seconds.client)) + record.seconds.server
        return TaskDone(t + 1, len(self.stream.tasks), accuracy, max(record.bytes_up), seconds)

    def _client_data(self, t: int, k: int) -> ClientData:
        task = self.stream.tasks[t]
        rows = task.rows[k]
        y: Any = self.data.y_train[rows]
        if task.labelled:
            y = [c if has else None for c, has in zip(y.tolist(), task.labelled[k], strict=True)]
        images = None if self.data.images is None else EncodedImages(self.data.images, rows)
        return ClientData(self.clients[k], str(t), self.data.X_train[rows], y, images)

    def _record(self, current: RunState, t: int) -> TaskRecord:
        measured, task = current.open_task, self.stream.tasks[t]
        assert measured is not None
        per_row = self.data.seconds_per_row
        per_row = self.prepared.seconds_per_row if per_row is None else per_row
        timed = per_row is not None and self.method.input == "features"
        rates = [
            float(task.has_label(k).mean()) if len(r) else None for k, r in enumerate(task.rows)
        ]
        found = None if self.exact is None else self.method.gram(current.state)
        diagnosis = getattr(getattr(current.state, "head", None), "diagnosis", None)
        extraction = [(per_row or 0.0) * len(r) for r in task.rows] if timed else None
        peak, gram_error = peak_memory(), None  # the comparison of Grams is not the method's work
        if self.exact is not None and found is not None:
            gram_error = self.exact.error(*found, t, getattr(self.method, "device", None))
        return TaskRecord(
            measured.bytes_up,
            measured.bytes_down,
            Seconds(measured.busy, measured.server, extraction),
            measured.rounds,
            formula_bytes=self.method.formula(self.spec.in_features, len(self.stream.seen(t))),
            peak_rss=peak,
            f=getattr(diagnosis, "f", None),
            lam=getattr(diagnosis, "lam", None),
            label_rate=rates,
            gram_error=gram_error,
            **self._pseudo_labels(current.clients, t),
        )

    def _pseudo_labels(self, client_states: dict[str, Any], t: int) -> dict[str, Any]:
        """Acceptance and precision of the clients' pseudo-labels, where there are any."""
        accepted: list[float | None] = [None] * len(self.clients)
        precision: list[float | None] = [None] * len(self.clients)
        for k, name in enumerate(self.clients):
            pseudo = getattr(client_states[name], "pseudo", None)
            if pseudo is None or not pseudo.n_candidates:
                continue
            accepted[k] = pseudo.acceptance
            rows = np.flatnonzero(pseudo.accepted)
            if len(rows):
                truth = self.data.y_train[self.stream.tasks[t].rows[k]]
                precision[k] = float(np.mean([pseudo.labels[i] == truth[i] for i in rows]))
        figures = {"accepted": accepted, "precision": precision}
        return {name: v for name, v in figures.items() if any(x is not None for x in v)}

    def _test(self, current: RunState, t: int) -> None:
        """Accuracy on the classes of every task so far, and right rows of every class."""
        rows = np.concatenate(self.test[: t + 1])
        truth = self.data.y_test[rows]
        right = self.method.predict(current.state, self.data.X_test[rows]) == truth
        parts = np.split(right, np.cumsum([len(r) for r in self.test[:t]]))
        current.acc.append([float(p.mean()) if len(p) else 0.0 for p in parts])
        classes = [c for task in self.stream.tasks[: t + 1] for c in task.classes]
        current.class_right.append([int(np.sum(right[truth == c])) for c in classes])

    def _drift(self, current: RunState, t: int) -> None:
        """On client 1's rows of task 2: accuracy, and mean distance from their first features."""
        first = min(1, len(self.stream.tasks) - 1)
        rows = self.stream.tasks[first].rows[0]
        if t < first or not len(rows):
            return
        X = self.data.X_train[rows]
        right = self.method.predict(current.state, X) == self.data.y_train[rows]
        current.reference_acc.append(float(right.mean()))
        now = self.method.embed(current.state, X)
        if now is None:
            return
        if current.reference is None:
            current.reference = now
        drift = float(np.linalg.norm(now - current.reference, axis=1).mean())
        if not np.isfinite(drift):
            raise ValueError(f"{self.method.name} diverged: its features are no longer finite")
        current.drift.append(drift)

    def _result(self, current: RunState) -> Result:
        prepared = self.prepared
        classes = [c for t in self.stream.tasks for c in t.classes]
        last = self.method.broadcast(current.state, len(self.stream.tasks), 0)
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
            acc=current.acc,
            test_rows=[len(r) for r in self.test],
            class_right=current.class_right,
            classes=classes,
            class_rows=[int(np.sum(self.data.y_test == c)) for c in classes],
            tasks=current.tasks,
            bytes_down_final=len(last),
            machine=describe_machine(getattr(self.method, "device", None)),
            date=datetime.date.today().isoformat(),
            side_by_side=prepared.side_by_side,
            study=prepared.study,
            config=prepared.config,
            arguments=None if prepared.arguments is None else list(prepared.arguments),
            drift=current.drift,
            reference_acc=current.reference_acc,
            budgets=prepared.budgets,
        )


class _ExactGrams:
    """The exact Gram matrix of all labelled rows so far, grown task by task."""

    def __init__(self, dataset: Dataset, stream: Stream) -> None:
        self.dataset, self.stream = dataset, stream
        self.total: ExactSum | None = None
        self.done = 0

    def error(self, phi: Callable[[Any], Any], found: Any, task: int, device: str | None) -> float:
        """||G_found - G||_F / ||G||_F over tasks 0 .. ``task``; M^2 n operations per task."""
        if self.total is None:
            self.total = ExactSum(int(found.shape[0]), device=device, stack=False)
        for t in range(self.done, task + 1):
            for k, rows in enumerate(self.stream.tasks[t].rows):
                labelled = rows[self.stream.tasks[t].has_label(k)]
                for i in range(0, len(labelled), 4096):
                    X = to_device(self.dataset.X_train[labelled[i : i + 4096]], device)
                    self.total.add_factor(phi(X).T)
        self.done = task + 1
        exact = self.total.gram()
        norm = namespace(exact).linalg.vector_norm
        return float(norm(found - exact)) / (float(norm(exact)) or 1.0)


def _rows_of(labels: NDArray[Any], classes: Sequence[Any]) -> NDArray[np.int64]:
    return np.flatnonzero(np.isin(labels, list(classes)))
