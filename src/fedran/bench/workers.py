"""Runs one after the other in this process, or side by side in several."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedran.bench.checkpoint import Checkpoint
from fedran.bench.job import Job
from fedran.bench.machine import available_memory, cores
from fedran.bench.reporter import Reporter
from fedran.bench.result import Result
from fedran.bench.runner import Run, run
from fedran.methods.gram_based import GramMethod

BASE_MEMORY = 400 * 2**20
"""Interpreter, libraries, and what the allocator keeps."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Planned(NamedTuple):
    """A run to do: its settings, where it saves itself, its steps, the memory it may take."""

    job: Job
    checkpoint: Path
    steps: int
    memory: int


def run_all(
    todo: list[Planned], workers: int, reporter: Reporter
) -> Iterator[tuple[Planned, Result | str]]:
    """Each run with its result, or with a sentence that says why there is none."""
    if workers <= 1 or len(todo) <= 1:
        yield from _one_by_one(todo, reporter)
    else:
        yield from _side_by_side(todo, workers)


def _one_by_one(todo: list[Planned], reporter: Reporter) -> Iterator[tuple[Planned, Result | str]]:
    for planned in todo:
        reporter.start(str(planned.job))
        outcome: Result | str
        try:
            checkpoint = Checkpoint(planned.checkpoint)
            outcome = run(planned.job.prepare(), progress=reporter.step, checkpoint=checkpoint)
        except Exception as reason:  # whatever it is, the other runs go on
            outcome = sentence(reason)
        yield planned, outcome


def _side_by_side(todo: list[Planned], workers: int) -> Iterator[tuple[Planned, Result | str]]:
    with _few_threads(max(1, cores() // workers)):
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, context, _end_with_parent, (os.getpid(),))
        try:
            futures: dict[Future[str], Planned] = {
                pool.submit(_work, p.job, p.checkpoint, workers): p for p in todo
            }
            for future in as_completed(futures):
                outcome: Result | str
                try:
                    outcome = Result.from_json(future.result())
                except Exception as reason:
                    outcome = sentence(reason)
                yield futures[future], outcome
        finally:
            # After an interruption nothing new starts; what is done is on disk already.
            pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent(parent: int) -> None:
    """A worker whose parent was killed would compute on for nobody."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(job: Job, checkpoint: Path, side_by_side: int) -> str:
    prepared = replace(job.prepare(), side_by_side=side_by_side)
    return run(prepared, checkpoint=Checkpoint(checkpoint)).to_json()


def estimated_memory(prepared: Run) -> int:
    """Bytes a run may take at its peak: data, three (M, M) matrices, the widest client's rows."""
    data = prepared.dataset
    M = prepared.method.params().get("out_features") or int(data.X_train.shape[-1])
    sizes = [[len(r) for r in t.rows] for t in prepared.stream.tasks]
    pooled = prepared.method.family == "reference"
    rows = max(sum(s) if pooled else max(s) for s in sizes)
    clients = prepared.stream.n_clients
    uploads = 4 * M * M * clients if isinstance(prepared.method, GramMethod) else 0
    arrays = data.X_train.nbytes + data.X_test.nbytes
    return BASE_MEMORY + 2 * arrays + 4 * (3 * M * M + 4 * rows * M) + uploads


def affordable(wanted: int, memory: int, reporter: Reporter) -> int:
    """As many processes as wanted, or as fit into the memory that is available."""
    free = available_memory()
    fit = wanted if free is None else max(1, int(0.9 * free) // memory)
    if fit < wanted:
        reporter.note(
            f"{fit} of {wanted} processes: a run may take {memory / 2**30:.1f} GiB of "
            f"{(free or 0) / 2**30:.1f} GiB available"
        )
    return min(wanted, fit)


def sentence(reason: BaseException) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(reason).split())
    if isinstance(reason, (ValueError, OSError)) and text:
        return text
    return f"{type(reason).__name__}: {text}" if text else type(reason).__name__


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
