"""Starts and stops the services of one machine as background processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from fedran.federation.ops import flower, owner
from fedran.federation.protocol.lockfile import lock_holder, terminate
from fedran.federation.protocol.logs import log_file
from fedran.federation.server.database import Database
from fedran.federation.server.settings import ServerPaths
from fedran.federation.site.settings import local_sites

START_SECONDS, START_SECONDS_PER_SITE = 120.0, 8.0
"""Time limit until all sites are connected. Each site is several processes on this machine."""


class StartFailed(OSError):
    """A service ended, or did not start in time."""


def start_federation(folder: Path, *, insecure: bool, say: Callable[[str], None]) -> None:
    """Start the server and all sites that do not run yet, and wait until they are connected."""
    server, sites = ServerPaths.find(folder), local_sites(folder)
    if not sites:
        raise FileNotFoundError(
            f"{folder}/sites: no sites; run the server alone with `fedran federation server`"
        )
    address = server.settings().address
    deadline = time.monotonic() + START_SECONDS + START_SECONDS_PER_SITE * len(sites)

    def server_is_ready() -> bool:
        if not flower.is_listening(address):
            return False
        if insecure:
            return True
        try:
            with closing(Database(server.state, read_only=True)) as database:
                registered = database.nodes()
        except OSError:  # not made yet
            return False
        return all(site.settings().client in registered for site in sites)

    def sites_are_connected() -> bool:
        try:
            nodes = owner.list_nodes(server)
        except owner.FlowerError:
            return False
        return sum(node.status == "online" for node in nodes) >= len(sites)

    if lock_holder(server.folder / "log") is not None:
        say("the server runs already; starting the sites that do not")
    else:
        say(f"starting the server and {len(sites)} sites, which takes up to a minute")
    wait_for_service(start_service("server", server.folder, insecure=insecure), server.folder)
    _wait(server_is_ready, deadline, server.folder, "the server is not ready")
    say(f"server listens at {address} {'(no TLS)' if insecure else '(TLS)'}")
    processes = [start_service("client", site.folder, insecure=insecure) for site in sites]
    for site, process in zip(sites, processes, strict=True):
        wait_for_service(process, site.folder)
    _wait(sites_are_connected, deadline, sites[0].folder, "not all sites are connected")
    say(f"{len(sites)} sites are connected; logs: {folder}/*/log, {folder}/sites/*/log")


def stop_federation(folder: Path, *, say: Callable[[str], None]) -> list[str]:
    """Stop all services in a federation's, a server's or a site's folder; returns their names."""
    folder = Path(folder).absolute()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    folders = [site.folder for site in local_sites(folder)] + [folder / "server", folder]
    stopped = [log.parent.name for log in terminate(*(f / "log" for f in folders), timeout=60.0)]
    if stopped:
        say(f"stopped: {', '.join(stopped)}")
    return stopped


def start_service(command: str, folder: Path, *, insecure: bool) -> subprocess.Popen[bytes] | None:
    """Run ``fedran federation COMMAND FOLDER`` in the background; None if it runs already."""
    if lock_holder(folder / "log") is not None:
        return None
    path = log_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    arguments = [sys.executable, "-m", "fedran", "federation", command, str(folder)]
    with (path.parent / "start.log").open("wb") as output:
        return subprocess.Popen(  # noqa: S603
            arguments + (["--insecure"] if insecure else []),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for_service(process: subprocess.Popen[bytes] | None, folder: Path) -> None:
    """Wait until a service has locked its folder and found no error in it."""
    deadline = time.monotonic() + 2 * START_SECONDS
    while True:
        holder = lock_holder(folder / "log")
        if holder is not None and (process is None or holder.get("ready")):
            break
        if process is None or process.poll() is not None or time.monotonic() > deadline:
            reason = _last_line(folder / "log" / "start.log")
            raise StartFailed(f"{folder}: the service did not start: {reason}")
        time.sleep(0.1)
    if process is not None:
        process.returncode = 0  # it runs on after this program; nothing waits for it


def _wait(ready: Callable[[], bool], deadline: float, folder: Path, problem: str) -> None:
    while not ready():
        if time.monotonic() > deadline:
            last = _last_line(log_file(folder))
            raise StartFailed(f"{problem} in time; see {folder / 'log'}: {last}")
        time.sleep(0.5)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n") if path.is_file() else []
    return next((line for line in reversed(lines) if line.strip()), "nothing in its log")
