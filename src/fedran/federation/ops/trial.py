"""A trial on one machine: server and sites as processes in the background."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedran.core.errors import Refused
from fedran.federation.ops import flower
from fedran.federation.protocol.lockfile import lock_holder, terminate
from fedran.federation.protocol.logs import log_file
from fedran.federation.server.settings import ServerPaths
from fedran.federation.site.settings import SitePaths, trial_sites

Say = Callable[[str], None]
PATIENCE = 120.0
"""Seconds until everyone must be connected, ..."""
PATIENCE_SITE = 8.0
"""... and so many more for each site: each is several processes on this one machine."""


def bring_up(folder: Path, *, insecure: bool, say: Say) -> None:
    """Start what does not run yet, each in a process of its own, and wait for the connections."""
    server, sites = ServerPaths.find(folder), trial_sites(folder)
    if not sites:
        raise FileNotFoundError(f"{folder}/sites: no sites; `fedran federation server` runs alone")
    deadline = time.monotonic() + PATIENCE + PATIENCE_SITE * len(sites)
    if lock_holder(server.folder / "log") is not None:
        say("the server runs already; starting what does not")
    started(start("server", server.folder, insecure=insecure), server.folder)
    _wait(lambda: _registered(server, sites, insecure), deadline, server.folder, "the server")
    say(f"server listens at {server.settings().address} {'(no TLS)' if insecure else '(TLS)'}")
    starts = [start("client", site.folder, insecure=insecure) for site in sites]
    for site, process in zip(sites, starts, strict=True):
        started(process, site.folder)
    _wait(lambda: _online(server) >= len(sites), deadline, sites[0].folder, "all sites")
    say(f"{len(sites)} sites are connected; logs: {folder}/*/log, {folder}/sites/*/log")


def bring_down(folder: Path, *, say: Say) -> list[str]:
    """End what runs in a trial's, a server's or a site's folder; the names of what ran."""
    folder = Path(folder).absolute()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    places = [p.folder for p in trial_sites(folder)] + [folder / "server", folder]
    ended = [p.parent.name for p in terminate(*(p / "log" for p in places), patience=60.0)]
    if ended:
        say(f"ended: {', '.join(ended)}")
    return ended


def start(program: str, folder: Path, *, insecure: bool) -> subprocess.Popen[bytes] | None:
    """Start a program of a folder, unless it runs."""
    if lock_holder(folder / "log") is not None:
        return None
    path = log_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-m", "fedran", "federation", program, str(folder)]
    with (path.parent / "start.log").open("wb") as output:
        return subprocess.Popen(  # noqa: S603
            command + (["--insecure"] if insecure else []),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def started(process: subprocess.Popen[bytes] | None, folder: Path) -> None:
    """Wait until a program has its folder's lock; its last words if it has ended."""
    deadline = time.monotonic() + 2 * PATIENCE
    while lock_holder(folder / "log") is None:
        if process is None or process.poll() is not None or time.monotonic() > deadline:
            raise Refused(str(folder), "one that runs", _last_line(folder / "log" / "start.log"))
        time.sleep(0.1)
    if process is not None:
        process.returncode = 0  # it lives on: nobody waits for it


def _registered(server: ServerPaths, sites: list[SitePaths], insecure: bool) -> bool:
    if not flower.listening(server.settings().address):
        return False
    if insecure:
        return True
    known = set(server.node_owners().values())
    return all(s.settings().client in known for s in sites)


def _online(server: ServerPaths) -> int:
    try:
        nodes = flower.ask(server, "supernode", "list", flower.LINK)["nodes"]
    except Refused:
        return 0
    return sum(n["status"] == "online" for n in nodes)


def _wait(ready: Callable[[], bool], deadline: float, folder: Path, what: str) -> None:
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{what}: not there in time; see {folder / 'log'}: {_last_line(log_file(folder))}"
            )
        time.sleep(0.5)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n") if path.is_file() else []
    return next((line for line in reversed(lines) if line.strip()), "nothing in its log")
