"""Runs tasks: on a deployed federation, or in Flower's simulation on one machine.

Flower does not resume a run after a restart of its SuperLink. A run that did not complete is
started again; uploads that already arrived are in the store and are not asked for twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from fedran.core.errors import MissingExtra, check_id
from fedran.federation.flower import control, programs
from fedran.federation.flower.control import FlowerRun
from fedran.federation.ops.supervisor import SupervisedProcess
from fedran.federation.protocol.limits import EXTRA_SECONDS, MAX_RUNS, POLL_SECONDS, START_SECONDS
from fedran.federation.protocol.lockfile import lock_holder, locked, require_space, wait_until
from fedran.federation.protocol.logs import Tail, log_file
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.head.head import JUDGED
from fedran.federation.server.head.validation import ValidationSet
from fedran.federation.server.round.quorum import CLOSED, HOW_TO_CLOSE, Quorum
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.database import Database
from fedran.federation.site.settings import local_sites
from fedran.wire.sizes import human_bytes


class ServerNotRunning(OSError):
    """A task needs a running server."""


class TaskInProgress(OSError):
    """Another task is open. A server runs one task at a time."""


class NoOpenTask(OSError):
    """There is no task to close."""


class RunFailed(OSError):
    """Flower did not complete a task's run."""


@dataclass(frozen=True)
class TaskResult:
    """How a task ended."""

    task: str
    state: str
    """complete, quorum, short, or unknown if the server recorded nothing."""

    @property
    def successful(self) -> bool:
        """Whether enough sites took part."""
        return self.state in ("complete", "quorum")


def run_task(
    paths: ServerPaths,
    task: str,
    *,
    deadline: float | None = None,
    say: Callable[[str], None],
) -> TaskResult:
    """Run a task to its end on a running server; ``say`` gets the server's log lines.

    ``deadline`` counts instead of that of the settings.
    """
    check_id(task, "task")
    require_space(paths.folder)
    if lock_holder(paths.folder / "log") is None:
        raise ServerNotRunning(
            f"{paths.folder}: the server is not running; start it with `fedran federation up` or "
            "`fedran federation server`"
        )
    # Wrong settings would fail in every run, so they are checked before the first.
    settings, roster = paths.settings(), Roster.load(paths.roster)
    if deadline is not None:
        settings = replace(settings, deadline=deadline)
    Quorum(frozenset(roster.clients), settings.min_clients, settings.deadline)
    if settings.privacy != "none" and len(roster.clients) < settings.min_sites:
        raise ValueError(
            f"min_sites is {settings.min_sites}, but the roster has {len(roster.clients)} sites; "
            "`fedran federation add` adds a site"
        )
    ValidationSet.load(paths.folder, settings)
    other, is_open = _under_way(paths)
    if other:
        what = f"task {other} is open" if is_open else f"{other} is under way"
        hint = HOW_TO_CLOSE if is_open else ""
        raise TaskInProgress(f"{what}; start {task} when it has ended{hint}")
    for remaining in reversed(range(MAX_RUNS)):
        run = _run_once(paths, task, say, settings.deadline)
        if run.status == control.COMPLETED:
            return _finish(paths, task, run, say)
        if remaining:
            say(f"the run ended as {run.status}; it is started again, received uploads are kept")
            time.sleep(POLL_SECONDS)
            link = partial(programs.is_listening, settings.address)
            wait_until(link, START_SECONDS, 1.0, what="the SuperLink to listen")
    raise RunFailed(f"task {task}: {MAX_RUNS} runs did not complete; the last is {run.status}")


def close_task(paths: ServerPaths) -> str:
    """Let the open task end with the uploads that have arrived; returns its id."""
    task, is_open = _under_way(paths)
    if not is_open:
        what = f"; {task} is under way" if task else ""
        raise NoOpenTask(f"{paths.folder}: no task is open{what}")
    with closing(Database(paths.state)) as database:
        database.set_fact(CLOSED, task)
    return task


def _under_way(paths: ServerPaths) -> tuple[str, bool]:
    """The task or command that uses the server's state ("": none); whether it is an open task.

    The lock is also held by other commands, and by a run that has not opened its task yet.
    """
    name = str((lock_holder(paths.state) or {}).get("task", ""))
    if not name:
        return "", False
    with closing(Database(paths.state)) as database:
        return name, any(t.task == name and t.state == "open" for t in database.tasks())


def simulate(
    folder: Path, tasks: list[str], *, cpus: int = 1, say: Callable[[str], None]
) -> list[TaskResult]:
    """Run tasks over all sites in a folder in Flower's simulation, ``cpus`` cores per site.

    Ray runs as many sites in parallel as there are cores. Uploads, signatures, store and
    receipts are the same as in a deployment.
    """
    if find_spec("ray") is None:
        raise MissingExtra("the simulation needs Ray", "simulation")
    sites = local_sites(folder)
    if not sites:
        raise FileNotFoundError(f"{folder}/sites: no sites; create them with `init`")
    paths = replace(ServerPaths.find(folder), flower_name="simulation")
    results = []
    with (
        locked(paths.folder / "log", simulation=True),
        _simulator(paths, Path(folder) / "sites") as output,
    ):
        for task in tasks:
            deadline = paths.settings().deadline
            run = _run_once(paths, task, say, deadline, (len(sites), cpus))
            if run.status != control.COMPLETED:
                raise RunFailed(f"task {task}: the run ended as {run.status}; see {output}")
            results.append(_finish(paths, task, run, say))
    return results


@contextmanager
def _simulator(paths: ServerPaths, sites: Path) -> Iterator[Path]:
    """A SuperLink with the simulation engine, ended afterwards; yields its log file."""
    port = programs.free_port()
    make_command = partial(programs.simulator, paths, sites.absolute(), port)
    output = paths.folder / "log" / "simulation.log"
    link = SupervisedProcess("SuperLink", make_command, output)
    link.start()
    try:
        address = f"127.0.0.1:{port}"
        wait_until(lambda: not link.running or programs.is_listening(address), START_SECONDS)
        if not programs.is_listening(address):
            raise RunFailed(f"the simulation did not start; see {output}")
        yield output
    finally:
        link.stop()


def _run_once(
    paths: ServerPaths,
    task: str,
    say: Callable[[str], None],
    deadline: float,
    simulated: tuple[int, int] | None = None,
) -> FlowerRun:
    """Start one run and pass on the server's log until it ends; Flower's description of it."""
    tail = Tail(log_file(paths.folder))
    say(f"task {task}: Flower starts a run, which takes some seconds")
    try:
        run_id = control.start_run(paths, task, simulated, deadline)
    except control.FlowerError as reason:  # the SuperLink may be starting
        return FlowerRun("", f"not started ({reason})", 0, 0)
    with closing(Database(paths.state)) as database:
        database.set_run(run_id, task, "started", 0, 0)
    limit = time.monotonic() + deadline + EXTRA_SECONDS
    run, trouble = FlowerRun(run_id, "unknown", 0, 0), ""
    while run.active and time.monotonic() < limit:
        time.sleep(POLL_SECONDS)
        for line in tail.lines():
            say(line)
        try:
            (run,) = control.list_runs(paths, run_id)
        except (OSError, ValueError) as reason:
            if str(reason) != trouble:
                trouble = str(reason)
                say(f"waiting for the SuperLink, which is started again if it ended: {trouble}")
    for line in tail.lines():
        say(line)
    return run


def _finish(
    paths: ServerPaths, task: str, run: FlowerRun, say: Callable[[str], None]
) -> TaskResult:
    """Record the bytes of a completed run and report how the task ended."""
    with closing(Database(paths.state)) as database:
        database.set_run(run.run_id, task, run.status, run.received, run.sent)
        states = [known for known in database.tasks() if known.task == task]
        aside = json.loads(database.fact(JUDGED) or "{}").get("set_aside", [])
        payload = sum(upload.bytes for upload in database.uploads() if upload.task == task)
    transport = "transport not measured"
    if run.received + run.sent:
        transport = f"transport {human_bytes(run.received)} in, {human_bytes(run.sent)} out"
    state = states[0].state if states and states[0].state != "open" else "unknown"
    say(f"task {task}: {state}; uploads {human_bytes(payload)}; {transport}")
    if aside:
        names = dict.fromkeys(str(found["client"]) for found in aside)
        say(f"not in the classifier: {', '.join(names)}; `fedran federation status` says why")
    settings, missing = paths.settings(), list(states[0].missing) if states else []
    if settings.privacy != "none" and missing:
        asked = len(states[0].asked)
        say(f"missing: {', '.join(missing[:10])}; {late_site(asked, settings.min_sites)}")
    return TaskResult(task, state)


def late_site(sites: int, least: int) -> str:
    """What a site that misses a task's deadline means for secure sums of at least ``least`` sites.

    >>> print(late_site(5, 3))
    after a sum of 3 of 5 sites, at most 2 are left, which is too few for another: the rows of a \
late site do not count in this task, and need a new task id
    """
    if sites < 2 * least:
        left = max(0, sites - least)
        return (
            f"after a sum of {least} of {sites} sites, at most {left} are left, which is too few "
            "for another: the rows of a late site do not count in this task, and need a new task id"
        )
    return f"the rows of late sites count once {least} of them are connected together"
