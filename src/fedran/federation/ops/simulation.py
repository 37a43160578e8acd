"""The same server and sites under Flower's simulation engine: one machine, no SuperNodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from fedran.core.errors import Refused
from fedran.federation.ops import flower
from fedran.federation.ops.supervisor import Kept
from fedran.federation.ops.task_run import TaskRun, follow, report
from fedran.federation.protocol.lockfile import locked
from fedran.federation.server.settings import ServerPaths
from fedran.federation.site.settings import trial_sites

Say = Callable[[str], None]
PATIENCE = 120.0


def simulate(folder: Path, tasks: list[str], *, cpus: float = 1.0, say: Say) -> list[TaskRun]:
    """Run tasks over all sites of a trial's folder, ``cpus`` cores for each site at a time.

    Ray runs as many sites side by side as there are cores; uploads, signatures, journal and
    receipts are those of a deployment.
    """
    if find_spec("ray") is None:
        raise ImportError("the simulation needs Ray: pip install 'fedran[simulation]'")
    sites = trial_sites(folder)
    if not sites:
        raise FileNotFoundError(f"{folder}/sites: no sites; `fedran federation init` makes them")
    place = replace(ServerPaths.find(folder), flower_name="simulation")
    nodes = f"num-supernodes={len(sites)} client-resources-num-cpus={cpus:g}"
    done = []
    with locked(place.folder / "log", simulation=True), _link(place, Path(folder) / "sites"):
        for task in tasks:
            run = follow(place, task, say, "--federation-config", nodes)
            if run["status"] != "finished:completed":
                log = place.folder / "log" / "simulation.log"
                raise Refused(f"task {task}", "a run that completes", run["status"], hint=f"{log}")
            done.append(report(place, task, run, say))
    return done


@contextmanager
def _link(place: ServerPaths, sites: Path) -> Iterator[None]:
    """A SuperLink with the engine, ended afterwards with all it started."""
    port = flower.free_port()
    make = partial(flower.simulator, place, sites.absolute(), port)
    link = Kept("SuperLink", make, place.folder / "log" / "simulation.log")
    link.end_left_over()
    link.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while not flower.listening(f"127.0.0.1:{port}"):
            if not link.running or time.monotonic() > deadline:
                raise Refused("SuperLink", "one that runs", "none", hint=f"see {link.output}")
            time.sleep(0.2)
        yield
    finally:
        link.stop()
