"""Runs one after the other in this process, or side by side in several."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fedran.bench.results.result import Result
from fedran.bench.run.checkpoint import Checkpoint
from fedran.bench.run.job import Job
from fedran.bench.run.machine import cores
from fedran.bench.run.memory import Needs
from fedran.bench.run.progress import Reporter
from fedran.bench.run.runner import run

Steps: TypeAlias = "multiprocessing.Queue[Any]"
"""Pairs of a run and what it did; a run that begins has done nothing."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Planned(NamedTuple):
    """A run to do: its settings, where it saves itself, its steps, the memory it may need."""

    job: Job
    checkpoint: Path
    steps: int
    needs: Needs


def run_all(
    todo: list[Planned], workers: int, reporter: Reporter
) -> Iterator[tuple[Planned, Result | str]]:
    """Each run with its result, or with a sentence that says why there is none."""
    if workers <= 1 or len(todo) <= 1:
        yield from _one_by_one(todo, reporter)
    else:
        yield from _side_by_side(todo, workers, reporter)


def _one_by_one(todo: list[Planned], reporter: Reporter) -> Iterator[tuple[Planned, Result | str]]:
    for planned in todo:
        reporter.start(str(planned.job))
        outcome: Result | str
        try:
            checkpoint = Checkpoint(planned.checkpoint)
            progress = partial(reporter.step, str(planned.job))
            outcome = run(planned.job.prepare(), progress=progress, checkpoint=checkpoint)
        except Exception as reason:  # whatever it is, the other runs go on
            outcome = sentence(reason)
        yield planned, outcome


def _side_by_side(
    todo: list[Planned], workers: int, reporter: Reporter
) -> Iterator[tuple[Planned, Result | str]]:
    with _few_threads(max(1, cores() // workers)):
        context = multiprocessing.get_context("spawn")
        steps: Steps = context.Queue()
        pool = ProcessPoolExecutor(workers, context, _begin_worker, (os.getpid(), steps))
        try:
            futures: dict[Future[str], Planned] = {
                pool.submit(_work, p.job, p.checkpoint, workers): p for p in todo
            }
            open_ = set(futures)
            while open_:
                over, open_ = wait(open_, timeout=0.2, return_when=FIRST_COMPLETED)
                _pass_on(steps, reporter)
                for future in over:
                    outcome: Result | str
                    try:
                        outcome = Result.from_json(future.result())
                    except Exception as reason:
                        outcome = sentence(reason)
                    yield futures[future], outcome
        finally:
            # After an interruption nothing new starts; what is done is on disk already.
            pool.shutdown(wait=True, cancel_futures=True)


def _pass_on(steps: Steps, reporter: Reporter) -> None:
    """Tell the reporter what the workers have done since the last time."""
    while True:
        try:
            run_, what = steps.get_nowait()
        except queue.Empty:
            return
        reporter.step(run_, what) if what else reporter.start(run_)


_steps: Steps | None = None
"""In a worker: where it tells its steps."""


def _begin_worker(parent: int, steps: Steps) -> None:
    """A worker whose parent was killed would compute on for nobody."""
    global _steps
    _steps = steps

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(job: Job, checkpoint: Path, side_by_side: int) -> str:
    name, steps = str(job), _steps
    assert steps is not None
    steps.put((name, ""))
    prepared = replace(job.prepare(), side_by_side=side_by_side)
    found = run(
        prepared,
        progress=lambda what: steps.put((name, what)),
        checkpoint=Checkpoint(checkpoint),
    )
    return found.to_json()


def sentence(reason: BaseException) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(reason).split())
    if isinstance(reason, (ValueError, OSError, ImportError)) and text:
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
