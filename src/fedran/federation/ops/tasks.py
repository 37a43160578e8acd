"""Runs tasks: on a deployed federation, or over the folders of all sites on this machine.

Flower does not resume a run after a restart of its SuperLink. A run that did not complete is
started again; uploads that already arrived are in the store and are not asked for twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe, get_context
from pathlib import Path

from fedran.core.errors import check_id
from fedran.federation.flower import control, programs
from fedran.federation.flower.control import FlowerRun
from fedran.federation.protocol.limits import EXTRA_SECONDS, MAX_RUNS, POLL_SECONDS, START_SECONDS
from fedran.federation.protocol.lockfile import lock_holder, locked, require_space, wait_until
from fedran.federation.protocol.logs import Tail, log_file, log_to
from fedran.federation.protocol.messages import Question
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.server.secure_round import run_round
from fedran.federation.server.head.head import JUDGED
from fedran.federation.server.head.validation import ValidationSet
from fedran.federation.server.round.messenger import Incoming
from fedran.federation.server.round.quorum import CLOSED, HOW_TO_CLOSE, Quorum
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.database import Database
from fedran.federation.site.app import Blobs, Fields, respond
from fedran.federation.site.settings import SitePaths, local_sites
from fedran.wire.sizes import human_bytes


class TaskError(OSError):
    """A task cannot begin, or not be closed, or Flower did not complete its run."""


ENOUGH = "complete", "quorum"
"""States of a task in which enough sites took part. The others are "short", and "unknown" if the
server recorded nothing."""


def run_task(
    paths: ServerPaths,
    task: str,
    *,
    deadline: float | None = None,
    say: Callable[[str], None],
) -> str:
    """Run a task to its end on a running server; returns its state.

    ``say`` gets the server's log lines. ``deadline`` counts instead of that of the settings.
    """
    check_id(task, "task")
    require_space(paths.folder)
    if lock_holder(paths.folder / "log") is None:
        raise TaskError(
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
        what, hint = ("task {} is open", HOW_TO_CLOSE) if is_open else ("{} is under way", "")
        raise TaskError(f"{what.format(other)}; start {task} when it has ended{hint}")
    for remaining in reversed(range(MAX_RUNS)):
        run = _run_once(paths, task, say, settings.deadline)
        if run.status == control.COMPLETED:
            with closing(Database(paths.state)) as database:
                database.set_run(run.run_id, task, run.status, run.received, run.sent)
            sizes = human_bytes(run.received), human_bytes(run.sent)
            return _finish(paths, task, "transport {} in, {} out".format(*sizes), say)
        if remaining:
            say(f"the run ended as {run.status}; it is started again, received uploads are kept")
            time.sleep(POLL_SECONDS)
            link = partial(programs.is_listening, settings.address)
            wait_until(link, START_SECONDS, 1.0, what="the SuperLink to listen")
    raise TaskError(f"task {task}: {MAX_RUNS} runs did not complete; the last is {run.status}")


def close_task(paths: ServerPaths) -> str:
    """Let the open task end with the uploads that have arrived; returns its id."""
    task, is_open = _under_way(paths)
    if not is_open:
        what = f"; {task} is under way" if task else ""
        raise TaskError(f"{paths.folder}: no task is open{what}")
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


class LocalNetwork:
    """The sites in some folders, numbered like nodes, without a transport.

    A process of its own answers each message, as in a deployment. It starts when the reply is
    taken, so that one upload is in memory at a time.
    """

    def __init__(self, sites: Sequence[SitePaths], progress: Callable[[], None]) -> None:
        self.sites, self.progress = sites, progress
        self.sent: dict[str, tuple[int, Question, str, Blobs]] = {}

    def nodes(self) -> Iterable[int]:
        """The number of every site."""
        return range(len(self.sites))

    def send(self, node: int, kind: Question, fields: Fields, blobs: Blobs, seconds: float) -> str:
        """Keep a message until its reply is taken; returns its id. It does not expire."""
        del seconds
        number = f"{kind} {node}"
        self.sent[number] = node, kind, json.dumps(dict(fields)), blobs
        return number

    def reply(self, number: str) -> Incoming:
        """Let the site answer, which takes as long as its work."""
        self.progress()
        node, kind, text, given = self.sent.pop(number)
        (reader, writer), site = Pipe(duplex=False), self.sites[node]

        def answer() -> None:  # fields are JSON, as between real sites
            fields, blobs = respond(kind, json.loads(text), given, site.settings_file)
            writer.send((json.dumps(fields), blobs))

        with reader:
            process = get_context("fork").Process(target=answer)
            process.start()
            writer.close()
            try:
                fields, blobs = reader.recv()
            except EOFError:
                return Incoming(error=f"the process of {site.folder.name} was ended")
        process.join()
        return Incoming(json.loads(fields), blobs)


def simulate(folder: Path, tasks: list[str], *, say: Callable[[str], None]) -> list[str]:
    """Run tasks over all sites in a folder, one site after the other; returns the tasks' states.

    Uploads, signatures, store and receipts are the same as in a deployment.
    """
    paths, sites = ServerPaths.find(folder), local_sites(folder)
    if not sites:
        raise FileNotFoundError(f"{folder}/sites: no sites; create them with `init`")
    results = []
    with locked(paths.folder / "log"):
        tail = Tail(log_to(paths.folder))
        network = LocalNetwork(sites, partial(_pass_on, tail, say))
        for task in tasks:
            run_round(network, paths.folder, paths.settings(), check_id(task, "task"), keyed=False)
            _pass_on(tail, say)
            results.append(_finish(paths, task, "no transport", say))
    return results


def _pass_on(tail: Tail, say: Callable[[str], None]) -> None:
    for line in tail.lines():
        say(line)


def _run_once(
    paths: ServerPaths, task: str, say: Callable[[str], None], deadline: float
) -> FlowerRun:
    """Start one run and pass on the server's log until it ends; Flower's description of it."""
    tail = Tail(log_file(paths.folder))
    say(f"task {task}: Flower starts a run, which takes some seconds")
    try:
        run_id = control.start_run(paths, task, deadline)
    except control.FlowerError as reason:  # the SuperLink may be starting
        return FlowerRun("", f"not started ({reason})", 0, 0)
    with closing(Database(paths.state)) as database:
        database.set_run(run_id, task, "started", 0, 0)
    limit = time.monotonic() + deadline + EXTRA_SECONDS
    run, trouble = FlowerRun(run_id, "unknown", 0, 0), ""
    while run.active and time.monotonic() < limit:
        time.sleep(POLL_SECONDS)
        _pass_on(tail, say)
        try:
            (run,) = control.list_runs(paths, run_id)
        except (OSError, ValueError) as reason:
            if str(reason) != trouble:
                trouble = str(reason)
                say(f"waiting for the SuperLink, which is started again if it ended: {trouble}")
    _pass_on(tail, say)
    return run


def _finish(paths: ServerPaths, task: str, transport: str, say: Callable[[str], None]) -> str:
    """Report how a task ended; returns its state."""
    with closing(Database(paths.state)) as database:
        states = [known for known in database.tasks() if known.task == task]
        aside = json.loads(database.fact(JUDGED) or "{}").get("set_aside", [])
        payload = sum(upload.bytes for upload in database.uploads() if upload.task == task)
    state = states[0].state if states and states[0].state != "open" else "unknown"
    say(f"task {task}: {state}; uploads {human_bytes(payload)}; {transport}")
    if aside:
        names = dict.fromkeys(str(found["client"]) for found in aside)
        say(f"not in the classifier: {', '.join(names)}; `fedran federation status` says why")
    if paths.settings().privacy != "none" and states and states[0].missing:
        say(f"missing: {', '.join(states[0].missing[:10])}; their rows need a new task id")
    return state
