"""All runs of an experiment: which there are, which are done, one by one or side by side."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedran.bench.checkpoint import Checkpoint
from fedran.bench.config import Experiment, MethodChoice
from fedran.bench.machine import available_memory, cores
from fedran.bench.reporter import Reporter
from fedran.bench.result import Result
from fedran.bench.runner import Run, run
from fedran.data.catalogue import load_dataset
from fedran.data.dataset import Dataset
from fedran.data.stream import Stream, make_stream
from fedran.data.stream_file import load_stream, save_stream
from fedran.methods.gram_based import GramMethod
from fedran.methods.registry import make_method

BASE_MEMORY = 400 * 2**20
"""Interpreter, libraries, and what the allocator keeps."""
SHOWN = ("clients", "beta", "label_rate", "seed", "file", "projection_seed")
"""Settings of a stream that tell one run from another."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """One run, by its settings alone: it can be sent to another process."""

    dataset: str
    stream: tuple[tuple[str, Any], ...]
    choice: MethodChoice
    projection_seed: int
    config: str
    gram_error: bool
    seconds_per_row: float | None
    budgets: Mapping[str, float]
    device: str | None

    def __str__(self) -> str:
        where = ", ".join(
            f"{k.replace('_', ' ')} {v}"
            for k, v in (*self.stream, ("projection_seed", self.projection_seed or None))
            if k in SHOWN and v is not None
        )
        params = "".join(f", {k.replace('_', ' ')} {v}" for k, v in self.choice.params.items())
        return f"{self.choice.label}{params} on {self.dataset} ({where})"

    @property
    def dataset_name(self) -> str:
        """The dataset without folder and suffix."""
        return Path(self.dataset).stem

    def prepare(self) -> Run:
        """Dataset, stream and method, ready to run."""
        method = make_method(self.choice.key, self.choice.params, self.device)
        return Run(
            self.choice.key,
            method,
            dataset(self.dataset),
            stream(self.dataset, self.stream),
            self.projection_seed,
            self.choice.label,
            self.config,
            dict(self.budgets),
            self.gram_error,
            self.seconds_per_row,
        )


def jobs(experiment: Experiment, device: str | None = None) -> list[Job]:
    """Every combination of dataset, stream, projection seed and method, in that order."""
    return [
        Job(
            name,
            tuple(settings.items()),
            choice,
            seed,
            experiment.source,
            experiment.gram_error,
            experiment.seconds_per_row,
            experiment.budgets,
            device,
        )
        for name in experiment.datasets
        for settings in experiment.streams
        for seed in experiment.projection_seeds
        for choice in experiment.methods
        if all(
            settings.get(k) in (v if isinstance(v, list) else [v]) for k, v in choice.only.items()
        )
    ]


@lru_cache(maxsize=2)
def dataset(name: str) -> Dataset:
    """Loaded once a process."""
    return load_dataset(name)


@lru_cache(maxsize=16)
def stream(name: str, settings: tuple[tuple[str, Any], ...]) -> Stream:
    """Made once a process."""
    data, given = dataset(name), dict(settings)
    if "file" in given:
        return load_stream(given["file"], len(data.X_train))
    names = {"tasks": "n_tasks", "clients": "n_clients"}
    options = {names.get(k, k): v for k, v in given.items()}
    return make_stream(data.y_train, groups=data.groups, **options)


@dataclass(frozen=True)
class Outcome:
    """What a sweep left behind."""

    file: Path
    done: int
    skipped: int
    failed: tuple[str, ...]


def execute(
    experiment: Experiment,
    out: Path,
    reporter: Reporter,
    *,
    device: str | None = None,
    workers: int = 1,
    streams: Path | None = None,
) -> Outcome:
    """Run what is not done yet; every result is on disk before the next run starts.

    A run that fails is reported and the others go on. ``streams`` is a folder for the streams,
    one file each, so that others can run on the same rows.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{Path(experiment.source).stem or experiment.name}.jsonl"
    known = finished(file)
    todo, memory = [], [BASE_MEMORY]
    for job in jobs(experiment, device):
        prepared = job.prepare()
        if streams is not None:
            streams.mkdir(parents=True, exist_ok=True)
            _keep(prepared.stream, streams / f"{job.dataset_name}-{prepared.stream.hash[:12]}.json")
        if prepared.run_id not in known:
            todo.append((job, prepared.run_id, prepared.steps))
            memory.append(estimated_memory(prepared))
    skipped = len(jobs(experiment, device)) - len(todo)
    reporter.begin([(str(job), job.choice.label, steps) for job, _, steps in todo], skipped)
    for result in known.values():
        reporter.learn(result)
    failed: list[str] = []
    workers = _workers(workers, max(memory), reporter)
    for job, outcome in _run_all(todo, out / "checkpoints", workers, reporter):
        if isinstance(outcome, Result):
            append(file, outcome)
            reporter.finished(str(job), outcome)
        else:
            failed.append(f"{job}: {outcome}")
            reporter.failed(str(job), outcome)
    return Outcome(file, len(todo) - len(failed), skipped, tuple(failed))


def _keep(made: Stream, path: Path) -> None:
    if not path.exists():
        save_stream(made, path)


def finished(file: Path) -> dict[str, Result]:
    """Results in the file by run id; a last line that was cut off by a crash is removed."""
    if not file.exists():
        return {}
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
        file.write_text("".join(lines), encoding="utf-8")
    found = {}
    for number, line in enumerate(lines, 1):
        try:
            result = Result.from_json(line)
        except (ValueError, json.JSONDecodeError) as reason:
            raise ValueError(
                f"{file}, line {number}: {reason}; move the file away to start anew"
            ) from None
        found[result.run_id] = result
    return found


def append(file: Path, result: Result) -> None:
    """One more line, synced."""
    with file.open("a", encoding="utf-8") as handle:
        handle.write(result.to_json() + "\n")
        handle.flush()
        os.fsync(handle.fileno())


def estimated_memory(prepared: Run) -> int:
    """Bytes a run may take at its peak: data, three (M, M) matrices, the widest client's rows."""
    data = prepared.dataset
    M = prepared.method.params().get("out_features") or int(data.X_train.shape[-1])
    sizes = [[len(r) for r in t.rows] for t in prepared.stream.tasks]
    pooled = prepared.method.family == "reference"
    rows = max(sum(s) if pooled else max(s) for s in sizes)
    clients = prepared.stream.n_clients
    uploads = 2 * M * M * clients if isinstance(prepared.method, GramMethod) else 0
    arrays = data.X_train.nbytes + data.X_test.nbytes
    return BASE_MEMORY + 2 * arrays + 4 * (3 * M * M + 4 * rows * M) + uploads


def _workers(wanted: int, memory: int, reporter: Reporter) -> int:
    free = available_memory()
    fit = wanted if free is None else max(1, int(0.9 * free) // memory)
    if fit < wanted:
        reporter.note(
            f"{fit} of {wanted} processes: a run may take {memory / 2**30:.1f} GiB of "
            f"{(free or 0) / 2**30:.1f} GiB available"
        )
    return min(wanted, fit)


def _run_all(
    todo: list[tuple[Job, str, int]], folder: Path, workers: int, reporter: Reporter
) -> Iterator[tuple[Job, Result | str]]:
    if workers <= 1 or len(todo) <= 1:
        for job, run_id, _ in todo:
            reporter.start(str(job))
            try:
                checkpoint = Checkpoint(folder / run_id)
                yield job, run(job.prepare(), progress=reporter.step, checkpoint=checkpoint)
            except (ValueError, OSError, MemoryError, np.linalg.LinAlgError) as reason:
                yield job, _sentence(reason)
        return
    with _few_threads(max(1, cores() // workers)):
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            futures: dict[Future[str], Job] = {
                pool.submit(_work, job, folder / run_id, workers): job for job, run_id, _ in todo
            }
            for future in as_completed(futures):
                try:
                    yield futures[future], Result.from_json(future.result())
                except (ValueError, OSError, MemoryError, RuntimeError) as reason:
                    yield futures[future], _sentence(reason)


def _work(job: Job, checkpoint: Path, side_by_side: int) -> str:
    prepared = replace(job.prepare(), side_by_side=side_by_side)
    return run(prepared, checkpoint=Checkpoint(checkpoint)).to_json()


@contextmanager
def _few_threads(n: int) -> Iterator[None]:
    """Processes started within get n threads of linear algebra each."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(n)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _sentence(reason: BaseException) -> str:
    return " ".join(str(reason).split()) or type(reason).__name__
