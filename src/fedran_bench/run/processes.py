"""Does the runs of a sweep, each in its own process, several side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sysconfig
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from traceback import extract_tb

from fedran_bench.results.result import Result
from fedran_bench.run.checkpoint import Checkpoint
from fedran_bench.run.machine import limited_threads, threads_per_run
from fedran_bench.run.progress import PlannedJob, Reporter
from fedran_bench.run.runner import run

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
    """Do ``workers`` runs at a time, each in a process that ends with its run.

    Not a pool of ``concurrent.futures``: one process that is killed, for instance for lack of
    memory, would break the whole pool. Here it takes only its own run with it. An interrupt ends
    all processes at once.
    """
    waiting = deque(todo)
    running: dict[Connection, tuple[PlannedJob, SpawnProcess]] = {}
    workers = min(workers, len(todo))
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                planned = waiting.popleft()
                connection, process = _start(planned, workers)
                running[connection] = (planned, process)
                reporter.start(planned.name)
            for connection in [c for c in wait(running) if isinstance(c, Connection)]:
                planned, process = running[connection]
                try:
                    kind, content = connection.recv()
                except (EOFError, OSError):
                    process.join()
                    kind, content = "failed", _how_it_ended(process.exitcode)
                if kind == "step":
                    reporter.step(planned.name, content)
                elif kind == "task":
                    reporter.task_done(planned.name, content)
                else:
                    del running[connection]
                    connection.close()
                    process.join()
                    yield planned, Result.from_json(content) if kind == "result" else content
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _start(planned: PlannedJob, side_by_side: int) -> tuple[Connection, SpawnProcess]:
    """A process that does the run, and the pipe on which it reports."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, planned, side_by_side), daemon=True)
    # An interrupt from the keyboard reaches all processes. Only the main one answers it, also
    # while this one still imports: a new process inherits the blocked signal.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with limited_threads(threads_per_run(side_by_side)):
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    theirs.close()  # so that the end of the process closes the pipe
    return ours, process


def _serve(connection: Connection, planned: PlannedJob, side_by_side: int) -> None:
    """The work of a process: one run, whose steps and outcome it sends."""
    threading.Thread(target=_end_with_main_process, daemon=True).start()
    try:
        with limited_threads(threads_per_run(side_by_side)):
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


def _how_it_ended(code: int | None) -> str:
    if code is None or code >= 0:
        return f"its process ended without a result (exit code {code})"
    return f"its process was killed ({signal.Signals(-code).name}), perhaps for lack of memory"


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
