"""Does the runs of a sweep, each in its own process, several side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from traceback import extract_tb

import fedran
from fedran_bench.results.result import Result
from fedran_bench.run.job import Job
from fedran_bench.run.progress import Reporter
from fedran_bench.run.runner import run, usable_cores

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that linear algebra libraries read when they are loaded."""
RunOutcome = tuple[Job, Result | str]
"""A job with its result, or with a sentence that says why there is none."""


def run_here(todo: list[Job], reporter: Reporter) -> Iterator[RunOutcome]:
    """Do the runs one after the other in this process."""
    for job in todo:
        reporter.start(job)
        yield job, _outcome(job, 1, partial(reporter.step, job))


def _outcome(job: Job, side_by_side: int, progress: Callable[[str], None]) -> Result | str:
    try:
        return run(replace(job.prepare(), side_by_side=side_by_side), progress=progress)
    except Exception as error:  # the other runs continue after any error
        return one_line(error)


def run_in_processes(todo: list[Job], workers: int, reporter: Reporter) -> Iterator[RunOutcome]:
    """Do ``workers`` runs at a time, each in a process that ends with its run.

    Not a pool of ``concurrent.futures`` or joblib: one process that is killed, for instance for
    lack of memory, would break the whole pool. Here it takes only its own run with it. An interrupt
    ends all processes at once.
    """
    workers, waiting = min(workers, len(todo)), iter(todo)
    running: dict[Connection, tuple[Job, SpawnProcess]] = {}
    try:
        while True:
            for job in islice(waiting, workers - len(running)):
                connection, process = _start(job, workers)
                running[connection] = job, process
                reporter.start(job)
            if not running:
                return
            ready = wait(running)
            for connection in [c for c in running if c in ready]:
                job, process = running[connection]
                try:
                    is_step, content = connection.recv()
                except (EOFError, OSError):
                    process.join()
                    code, how = process.exitcode or 0, "ended without a result"
                    if code < 0:
                        name = signal.Signals(-code).name
                        how = f"was killed ({name}), perhaps by lack of memory"
                    is_step, content = False, f"its process {how} (exit code {code})"
                if is_step:
                    reporter.step(job, content)
                else:
                    del running[connection]
                    connection.close()
                    process.join()
                    yield job, content
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _start(job: Job, side_by_side: int) -> tuple[Connection, SpawnProcess]:
    """A process that does the run, and the pipe on which it reports.

    Linear algebra in it uses its share of the cores: each library would otherwise start one thread
    per core in every process, and such threads use the CPU while they wait.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, job, side_by_side), daemon=True)
    # An interrupt from the keyboard reaches all processes. Only the main one answers it, also
    # while this one still imports: a new process inherits the blocked signal.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads_per_run(side_by_side))))
    try:
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    theirs.close()  # so that the end of the process closes the pipe
    return ours, process


def threads_per_run(side_by_side: int) -> int:
    """An equal share of the cores. Environment variables may ask for fewer threads."""
    share = max(1, usable_cores() // max(1, side_by_side))
    asked = [os.environ.get(name, "") for name in THREAD_VARIABLES]
    return min([share, *(int(n) for n in asked if n.isdecimal() and int(n) > 0)])


def _serve(connection: Connection, job: Job, side_by_side: int) -> None:
    """The work of a process: one run, whose steps and outcome it sends.

    After the main process was killed, the next step ends this one.
    """

    def send(is_step: bool, content: Result | str) -> None:
        try:
            connection.send((is_step, content))
        except BrokenPipeError:
            os._exit(1)

    send(False, _outcome(job, side_by_side, partial(send, True)))


def one_line(error: BaseException) -> str:
    """What went wrong, in one line. Exceptions that are not ours have their type and their line.

    The line is the last one outside libraries, for example in a method of the user.
    """
    text = " ".join(str(error).split())
    packages = {Path(fedran.__file__).parent, Path(__file__).parents[1]}
    standard_library, place, ours = Path(sysconfig.get_path("stdlib")), "", True
    for frame in extract_tb(error.__traceback__):
        file = Path(frame.filename)
        own = not packages.isdisjoint(file.parents)
        library = standard_library in file.parents or "site-packages" in file.parts
        if own or not (library or frame.filename.startswith("<frozen")):
            place, ours = f" ({file.name}, line {frame.lineno})", own
    if ours and text and isinstance(error, (ValueError, OSError, ImportError)):
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ") + place
