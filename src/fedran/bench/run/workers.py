"""Does the runs of a sweep in this process, or in separate processes that can work side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sysconfig
import threading
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from traceback import extract_tb

from fedran.bench.results.result import Result
from fedran.bench.run.checkpoint import Checkpoint
from fedran.bench.run.machine import limited_threads, threads_per_run
from fedran.bench.run.progress import PlannedJob, Reporter
from fedran.bench.run.runner import run

PACKAGE, STANDARD_LIBRARY = Path(__file__).parents[2], Path(sysconfig.get_path("stdlib"))
RunOutcome = tuple[PlannedJob, Result | str]
"""A job with its result, or with a sentence that says why there is none."""


def run_here(todo: list[PlannedJob], reporter: Reporter) -> Iterator[RunOutcome]:
    """Do the runs one after the other in this process."""
    for planned in todo:
        reporter.start(planned.name)
        outcome: Result | str
        try:
            with limited_threads(threads_per_run(1)):
                outcome = run(
                    planned.job.prepare(),
                    progress=partial(reporter.step, planned.name),
                    task_done=partial(reporter.task_done, planned.name),
                    checkpoint=Checkpoint(planned.checkpoint),
                )
        except Exception as error:  # the other runs continue after any error
            outcome = one_line(error)
        yield planned, outcome


def run_in_processes(
    todo: list[PlannedJob], workers: int, reporter: Reporter
) -> Iterator[RunOutcome]:
    """Do ``workers`` runs at a time, each in a separate process.

    A process that is killed, for instance for lack of memory, takes only its own run with it.
    That run is tried once more when nothing else runs. An interrupt ends all processes at once.
    """
    killed = yield from _run_in_pool(todo, workers, reporter)
    for planned, _ in killed:
        reporter.note(f"{planned.name}: its process was killed; it is tried once more, alone")
        for _, reason in (yield from _run_in_pool([planned], 1, reporter)):
            yield planned, reason


def _run_in_pool(
    todo: list[PlannedJob], workers: int, reporter: Reporter
) -> Generator[RunOutcome, None, list[tuple[PlannedJob, str]]]:
    """Yield outcomes; return the jobs whose processes were killed, each with the reason."""
    waiting, killed = deque(todo), []
    workers = min(workers, len(todo))
    pool = [_Worker(workers) for _ in range(workers)]
    try:
        while waiting or any(w.planned for w in pool):
            for worker in pool:
                if worker.planned is None and waiting:
                    worker.begin(waiting.popleft())
            ready = wait([w.connection for w in pool if w.planned])
            for worker in [w for w in pool if w.connection in ready]:
                planned = worker.planned
                assert planned is not None
                try:
                    kind, content = worker.connection.recv()
                except (EOFError, OSError):
                    killed.append((planned, worker.end(wait=2)))
                    pool[pool.index(worker)] = _Worker(workers)
                    continue
                if kind == "start":
                    reporter.start(planned.name)
                elif kind == "step":
                    reporter.step(planned.name, content)
                elif kind == "task":
                    reporter.task_done(planned.name, content)
                else:
                    worker.planned = None
                    yield planned, Result.from_json(content) if kind == "result" else content
    finally:
        for worker in pool:
            worker.end()
    return killed


class _Worker:
    """A process that does one run at a time. ``planned`` is the run under way."""

    def __init__(self, side_by_side: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.side_by_side = side_by_side
        self.planned: PlannedJob | None = None
        self.connection, theirs = context.Pipe()
        threads = threads_per_run(side_by_side)
        self.process = context.Process(target=_serve, args=(theirs, threads), daemon=True)
        # An interrupt from the keyboard reaches all processes. Only the main one answers it, also
        # while this one still imports: a new process inherits the blocked signal.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with limited_threads(threads):
                self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()  # so that the end of the process closes the pipe

    def begin(self, planned: PlannedJob) -> None:
        """Start a run."""
        self.planned = planned
        try:
            self.connection.send((planned, self.side_by_side))
        except OSError:
            return  # the process has ended, which reading from the pipe will show

    def end(self, wait: float = 0.0) -> str:
        """Kill the process, unless it ends within ``wait`` seconds, and say how it ended."""
        self.process.join(wait)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.connection.close()
        if code is None or code >= 0:
            return f"its process ended without a result (exit code {code})"
        return f"its process was killed ({signal.Signals(-code).name}), perhaps for lack of memory"


def _serve(connection: Connection, threads: int) -> None:
    """The work of a process: receive jobs, send steps and outcomes."""
    threading.Thread(target=_end_with_main_process, daemon=True).start()
    with limited_threads(threads):
        while True:
            try:
                planned, side_by_side = connection.recv()
            except EOFError:
                return
            connection.send(("start", ""))
            try:
                found = run(
                    replace(planned.job.prepare(), side_by_side=side_by_side),
                    progress=lambda what: connection.send(("step", what)),
                    task_done=lambda done: connection.send(("task", done)),
                    checkpoint=Checkpoint(planned.checkpoint),
                )
                outcome = ("result", found.to_json())
            except Exception as error:
                outcome = ("failed", one_line(error))
            connection.send(outcome)


def _end_with_main_process() -> None:
    """End this process after the main process was killed: nothing would receive its results."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def one_line(error: BaseException) -> str:
    """What went wrong, in one line. Exceptions that are not ours have their type and their line.

    The line is the last one outside libraries, for example in a method of the user.
    """
    text = " ".join(str(error).split())
    frames = [(Path(f.filename), f.lineno) for f in extract_tb(error.__traceback__)]
    frames = [f for f in frames if PACKAGE in f[0].parents or not _is_library(f[0])]
    file, line = frames[-1] if frames else (PACKAGE / "x", 0)
    if isinstance(error, (ValueError, OSError, ImportError)) and text and PACKAGE in file.parents:
        return text
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{what} ({file.name}, line {line})" if line else what


def _is_library(file: Path) -> bool:
    """Whether code was installed, or belongs to Python."""
    frozen = file.name.startswith("<frozen")
    return frozen or STANDARD_LIBRARY in file.parents or "site-packages" in file.parts
