"""Runs one method over one stream, measuring bytes and seconds around its calls."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.bench.results.result import (
    DEFAULT_STUDY,
    Result,
    Seconds,
    TaskRecord,
    library_versions,
    run_id,
)
from fedran.bench.run.checkpoint import Checkpoint, OpenTask, Position, SoFar
from fedran.bench.run.client_images import Encoded, cached_backbone
from fedran.bench.run.gram_error import ExactGrams
from fedran.bench.run.machine import machine, peak_rss, reset_peak
from fedran.data.dataset import Dataset, as_images
from fedran.data.stream import Stream
from fedran.methods.protocol import ClientData, Method, Spec

Progress = Callable[[str], None]
"""Called after each step with what was done."""


@dataclass(frozen=True)
class Run:
    """One method on one stream of one dataset, with what names it in a table."""

    key: str
    method: Method[Any]
    dataset: Dataset
    stream: Stream
    seed: int = 0
    """Of the random features, and of whatever a client draws."""
    label: str = ""
    study: str = DEFAULT_STUDY
    config: str = ""
    budgets: dict[str, float] = field(default_factory=dict)
    gram_error: bool = False
    seconds_per_row: float | None = None
    """The backbone's forward pass, where the dataset does not know it."""
    side_by_side: int = 1
    """Runs that share the machine."""

    def __post_init__(self) -> None:
        if self.method.input == "images":
            size = getattr(self.method, "image_size", None)
            object.__setattr__(self, "dataset", pixels_of(self.dataset, size))
        elif self.dataset.kind != "features":
            raise ValueError(
                f"{self.method.name} takes features, {self.dataset.name} holds images: make "
                "features with `fedran features`"
            )
        for t, task in enumerate(self.stream.tasks, 1):
            if not len(_rows_of(self.dataset.y_test, task.classes)):
                raise ValueError(
                    f"{self.dataset.name}: task {t} cannot be tested, no test row has one of its "
                    f"classes {list(task.classes)[:5]}"
                )

    @property
    def seeds(self) -> dict[str, int]:
        """Of the class order, the partition, the label mask and the projection."""
        return {**self.stream.seeds, "projection": self.seed}

    @property
    def hashes(self) -> dict[str, str]:
        """What the run depends on besides its settings."""
        weights = self.dataset.source.get("weights") or getattr(self.method, "weights_hash", None)
        known = {"stream": self.stream.hash, self.dataset.kind: self.dataset.hash}
        return {**known, "weights": weights} if weights else known

    @property
    def run_id(self) -> str:
        """The result's id, before there is a result."""
        version = library_versions()["fedran"]
        return run_id(self.key, self.method.params(), self.seeds, self.hashes, version)

    @property
    def steps(self) -> int:
        """How often ``run`` reports progress."""
        rounds = sum(self.method.rounds(t) for t in range(len(self.stream.tasks)))
        return rounds * self.stream.n_clients + len(self.stream.tasks)


def run(
    job: Run, *, progress: Progress = lambda _: None, checkpoint: Checkpoint | None = None
) -> Result:
    """Every task: clients one after the other, then the server, then a test over all classes.

    With a ``checkpoint`` the run goes on where it was interrupted, after any round; remove it
    once the result is safe.
    """
    return _Runner(job, progress, checkpoint or Checkpoint()).run()


class _Runner:
    """The loop over tasks, rounds and clients."""

    def __init__(self, job: Run, progress: Progress, checkpoint: Checkpoint) -> None:
        self.job, self.method = job, job.method
        self.progress, self.checkpoint = progress, checkpoint
        self.clients = tuple(f"client-{k}" for k in range(job.stream.n_clients))
        data = job.dataset
        self.spec = Spec(
            data.X_train.shape[-1],
            tuple(t.classes for t in job.stream.tasks),
            self.clients,
            None
            if data.images is None or data.kind == "images"
            else cached_backbone(data.images, data.X_train),
            _side(data.X_train) if data.kind == "images" else None,
        )
        self.test = [_rows_of(data.y_test, t.classes) for t in job.stream.tasks]
        self.exact = ExactGrams(data, job.stream) if job.gram_error else None

    def run(self) -> Result:
        reset_peak()
        at = self.checkpoint.load(self.method, self.spec, self.job.seed)
        if at is None:
            state = self.method.init(self.spec, self.job.seed)
            at = Position(state, dict.fromkeys(self.clients), SoFar())
        for t in range(len(self.job.stream.tasks)):
            if t < len(at.so_far.tasks):
                self._skipped(t)
                continue
            self._rounds(at, t)
            at.so_far.tasks.append(self._record(at, t))
            at.so_far.open_task = None
            self._test(at, t)
            self.checkpoint.save(self.method, at)
            self.progress(f"task {t + 1}: solved and tested")
        return self._result(at)

    def _skipped(self, t: int) -> None:
        for _ in range(self.method.rounds(t) * len(self.clients) + 1):
            self.progress(f"task {t + 1}: done before")

    def _rounds(self, at: Position, t: int) -> None:
        task = at.so_far.open_task = at.so_far.open_task or OpenTask.start(len(self.clients))
        for _ in range(task.rounds * len(self.clients)):
            self.progress(f"task {t + 1}: done before")
        for round_ in range(task.rounds, self.method.rounds(t)):
            if round_:
                self.checkpoint.save(self.method, at)
            message = self.method.broadcast(at.state, t, round_)
            uploads = {}
            asked = self.method.participants(t, round_, self.clients, self.job.seed)
            for k, name in enumerate(self.clients):
                if name not in asked:
                    self.progress(f"task {t + 1}: {name} does not take part in this round")
                    continue
                data = self._data(t, k)
                start = time.perf_counter()
                at.clients[name], uploads[name] = self.method.client(
                    at.clients[name], message, data, self.job.seed
                )
                task.busy[k] += time.perf_counter() - start
                task.bytes_up[k] += len(uploads[name])
                task.bytes_down[k] += len(message)
                self.progress(
                    f"task {t + 1}, round {round_ + 1}: {name} sent {len(uploads[name])} bytes"
                )
            start = time.perf_counter()
            at.state = self.method.aggregate(at.state, t, round_, uploads)
            task.server += time.perf_counter() - start
            task.rounds += 1

    def _record(self, at: Position, t: int) -> TaskRecord:
        measured, task = at.so_far.open_task, self.job.stream.tasks[t]
        assert measured is not None
        per_row = self.job.dataset.seconds_per_row
        per_row = self.job.seconds_per_row if per_row is None else per_row
        frozen = self.method.input == "features"
        extraction = (
            None if per_row is None or not frozen else [per_row * len(r) for r in task.rows]
        )
        rates = [
            float(task.has_label(k).mean()) if len(r) else None for k, r in enumerate(task.rows)
        ]
        return TaskRecord(
            measured.bytes_up,
            measured.bytes_down,
            Seconds(measured.busy, measured.server, extraction),
            measured.rounds,
            formula_bytes=self.method.formula(self.spec.in_features, len(self.job.stream.seen(t))),
            peak_rss=peak_rss(),
            label_rate=rates,
            gram_error=self._gram_error(at.state, t),
            **_diagnosis(at.state),
            **self._pseudo_labels(at.clients, t),
        )

    def _data(self, t: int, k: int) -> ClientData:
        data, task = self.job.dataset, self.job.stream.tasks[t]
        rows = task.rows[k]
        y: Any = data.y_train[rows]
        if task.labelled:
            y = [c if has else None for c, has in zip(y.tolist(), task.labelled[k], strict=True)]
        images = None if data.images is None else Encoded(data.images, rows)
        return ClientData(self.clients[k], str(t), data.X_train[rows], y, images)

    def _pseudo_labels(self, cstates: dict[str, Any], t: int) -> dict[str, Any]:
        found = [getattr(cstates[name], "pseudo", None) for name in self.clients]
        accepted: list[float | None] = [None] * len(found)
        precision: list[float | None] = [None] * len(found)
        for k, pseudo in enumerate(found):
            if pseudo is None or not pseudo.n_candidates:
                continue
            accepted[k] = pseudo.acceptance
            rows = np.flatnonzero(pseudo.accepted)
            if len(rows):
                truth = self.job.dataset.y_train[self.job.stream.tasks[t].rows[k]]
                precision[k] = float(np.mean([pseudo.labels[i] == truth[i] for i in rows]))
        figures = {"accepted": accepted, "precision": precision}
        return {name: v for name, v in figures.items() if any(x is not None for x in v)}

    def _gram_error(self, state: Any, t: int) -> float | None:
        if self.exact is None:
            return None
        found = self.method.gram(state)
        return None if found is None else self.exact.error(*found, t, self.method)

    def _test(self, at: Position, t: int) -> None:
        data, stream, so_far = self.job.dataset, self.job.stream, at.so_far
        rows = np.concatenate(self.test[: t + 1])
        right = self.method.predict(at.state, data.X_test[rows]) == data.y_test[rows]
        parts = np.split(right, np.cumsum([len(r) for r in self.test[:t]]))
        so_far.acc.append([float(p.mean()) if len(p) else 0.0 for p in parts])
        truth = data.y_test[rows]
        classes = [c for task in stream.tasks[: t + 1] for c in task.classes]
        so_far.class_right.append([int(np.sum(right[truth == c])) for c in classes])
        self._drift(at, t)

    def _drift(self, at: Position, t: int) -> None:
        """On client 1's task-2 rows: accuracy, and mean distance from where they were first."""
        tasks, data = self.job.stream.tasks, self.job.dataset
        rows = tasks[min(1, len(tasks) - 1)].rows[0]
        if t < min(1, len(tasks) - 1) or not len(rows):
            return
        right = self.method.predict(at.state, data.X_train[rows]) == data.y_train[rows]
        at.so_far.reference_acc.append(float(right.mean()))
        now = self.method.embed(at.state, data.X_train[rows])
        if now is None:
            return
        first = at.so_far.reference = now if at.so_far.reference is None else at.so_far.reference
        drift = float(np.linalg.norm(now - first, axis=1).mean())
        if not np.isfinite(drift):
            raise ValueError(f"{self.method.name} diverged: its features are no longer finite")
        at.so_far.drift.append(drift)

    def _result(self, at: Position) -> Result:
        job = self.job
        classes = [c for t in job.stream.tasks for c in t.classes]
        last = self.method.broadcast(at.state, len(job.stream.tasks), 0)
        return Result(
            key=job.key,
            label=job.label or self.method.name,
            family=self.method.family,
            params=self.method.params(),
            claims=asdict(self.method.claims),
            sends=self.method.sends,
            dataset=job.dataset.name,
            stream=dict(job.stream.settings),
            seeds=job.seeds,
            hashes=job.hashes,
            acc=at.so_far.acc,
            test_rows=[len(r) for r in self.test],
            class_right=at.so_far.class_right,
            classes=classes,
            class_rows=[int(np.sum(job.dataset.y_test == c)) for c in classes],
            tasks=at.so_far.tasks,
            bytes_down_final=len(last),
            machine=machine(getattr(self.method, "device", None)),
            date=datetime.date.today().isoformat(),
            side_by_side=job.side_by_side,
            study=job.study,
            config=job.config,
            drift=at.so_far.drift,
            reference_acc=at.so_far.reference_acc,
            budgets=job.budgets,
        )


@lru_cache(maxsize=2)
def pixels_of(dataset: Dataset, size: int | None) -> Dataset:
    """The images of a dataset, decoded once a process."""
    return as_images(dataset, size)


def _side(images: NDArray[Any]) -> int | None:
    """Height and width of square images."""
    height, width = images.shape[1:3]
    return int(height) if height == width else None


def _rows_of(labels: NDArray[Any], classes: Sequence[Any]) -> NDArray[np.int64]:
    return np.flatnonzero(np.isin(labels, list(classes)))


def _diagnosis(state: Any) -> dict[str, Any]:
    diagnosis = getattr(getattr(state, "head", None), "diagnosis", None)
    return {"f": getattr(diagnosis, "f", None), "lam": getattr(diagnosis, "lam", None)}
