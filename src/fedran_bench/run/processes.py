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

import fedran
from fedran_bench.results.result import Result
from fedran_bench.run.machine import limited_threads, threads_per_run
from fedran_bench.run.progress import PlannedJob, Reporter
from fedran_bench.run.runner import Progress, run

OURS = {Path(fedran.__file__).parent, Path(__file__).parents[1]}
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
RunOutcome = tuple[PlannedJob, Result | str]
"""A job with its result, or with a sentence that says why there is none."""


def run_here(todo: list[PlannedJob], reporter: Reporter) -> Iterator[RunOutcome]:
    """Do the runs one after the other in this process."""
    for planned in todo:
        reporter.start(planned.name)
        yield planned, _outcome(planned, 1, partial(reporter.step, planned.name))


def _outcome(planned: PlannedJob, side_by_side: int, progress: Progress) -> Result | str:
    try:
        with limited_threads(threads_per_run(side_by_side)):
            prepared = replace(planned.job.prepare(), side_by_side=side_by_side)
            return run(prepared, progress=progress)
    except Exception as error:  # the other runs continue after any error
        return one_line(error)


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
                    is_step, content = connection.recv()
                except (EOFError, OSError):
                    process.join()
                    code, how = process.exitcode or 0, "ended without a result"
                    if code < 0:
                        how = (
                            f"was killed ({signal.Signals(-code).name}), perhaps by lack of memory"
                        )
                    is_step, content = False, f"its process {how} (exit code {code})"
                if is_step:
                    reporter.step(planned.name, content)
                else:
                    del running[connection]
                    connection.close()
                    process.join()
                    yield planned, content
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
    connection.send(
        (False, _outcome(planned, side_by_side, lambda what: connection.send((True, what))))
    )


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
    frames = [f for f in frames if _is_ours(f[0]) or not _is_library(f[0])]
    told = isinstance(error, (ValueError, OSError, ImportError)) and text
    if told and (not frames or _is_ours(frames[-1][0])):
        return text
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{what} ({frames[-1][0].name}, line {frames[-1][1]})" if frames else what


def _is_ours(file: Path) -> bool:
    return not OURS.isdisjoint(file.parents)


def _is_library(file: Path) -> bool:
    """Whether code was installed, or belongs to Python."""
    frozen = file.name.startswith("<frozen")
    return frozen or STANDARD_LIBRARY in file.parents or "site-packages" in file.parts
