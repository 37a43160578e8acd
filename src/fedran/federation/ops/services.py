"""The two services, a server with its SuperLink and a site's SuperNode: in the foreground, or
started and stopped as background processes.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fedran.federation.flower import control, programs
from fedran.federation.ops.nodes import NodeRegistry
from fedran.federation.ops.supervisor import Command, SupervisedProcess
from fedran.federation.protocol.connection import why_unreachable
from fedran.federation.protocol.limits import (
    LEFTOVER_SECONDS,
    SETTLE_SECONDS,
    START_SECONDS,
    START_SECONDS_PER_SITE,
)
from fedran.federation.protocol.lockfile import (
    lock_holder,
    locked,
    require_space,
    terminate,
    wait_until,
)
from fedran.federation.protocol.logs import Tail, log_file, log_to
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.database import Database
from fedran.federation.site.settings import CONNECTION, SitePaths, local_sites
from fedran.wire.files import write_atomically

log = logging.getLogger(__name__)


class AddressInUse(OSError):
    """Another program listens at the server's address."""


class StartFailed(OSError):
    """A service ended, or did not start in time."""


def run_server(paths: ServerPaths, *, say: Callable[[str], None]) -> None:
    """Run a server until SIGTERM or Ctrl-C; ``say`` gets its log lines."""
    settings = paths.settings()
    make_command = partial(programs.superlink, paths)
    with _service(paths.folder, say, address=settings.address) as running:
        make_command()  # an error in the folder ends the program before the first start
        with closing(Database(paths.state)) as database:
            database.require_sound()
        log.info("federation %s at %s over TLS", settings.federation, settings.address)
        link = SupervisedProcess("SuperLink", make_command, paths.folder / "log" / "superlink.log")
        # The SuperLink of a killed supervisor may still be ending.
        if not wait_until(lambda: not programs.is_listening(settings.address), LEFTOVER_SECONDS):
            raise AddressInUse(
                f"{settings.address} is in use by another program, maybe another server; change "
                "`address` in server.toml"
            )
        executor = partial(programs.server_executor, paths)
        app = SupervisedProcess("app", executor, paths.folder / "log" / "executor.log")
        registry = NodeRegistry(paths)
        next_update, update = 0.0, threading.Thread()
        certificate = paths.tls / "server.crt"
        loaded = _changed(certificate)
        with closing(_supervise(running, link, app, lambda: settings.address)) as states:
            for listening in states:
                if (now := _changed(certificate)) != loaded and lock_holder(paths.state) is None:
                    log.info("the certificate was renewed; the SuperLink is started again")
                    loaded = now
                    link.stop()
                elif listening and time.monotonic() >= next_update and not update.is_alive():
                    options = {"catch_up": settings.catch_up > 0}
                    update = threading.Thread(target=registry.update, kwargs=options, daemon=True)
                    update.start()
                    next_update = time.monotonic() + (settings.catch_up or 3600.0)


def _changed(path: Path) -> int:
    """When a file was written last; 0 without one."""
    return path.stat().st_mtime_ns if path.is_file() else 0


def run_site(paths: SitePaths, *, say: Callable[[str], None]) -> None:
    """Run a site until SIGTERM or Ctrl-C; ``say`` gets its log lines."""
    settings, port = paths.settings(), 0

    def supernode() -> Command:
        nonlocal port
        port = programs.free_port()
        return programs.supernode(paths, port)

    with _service(paths.folder, say) as running:
        supernode()  # an error in the folder ends the program before the first start
        log.info("site %s connects to %s over TLS", settings.client, settings.server)
        logs = paths.folder / "log"
        node = SupervisedProcess(
            "SuperNode", supernode, logs / "supernode.log", programs.SUPERNODE_HINTS
        )
        app = SupervisedProcess(
            "app", lambda: programs.site_executor(paths, port), logs / "executor.log"
        )
        connection = Connection(paths)
        with closing(_supervise(running, node, app, lambda: f"127.0.0.1:{port}")) as states:
            for _ in states:
                settled = node.running and time.monotonic() - node.started > SETTLE_SECONDS
                connection.check(running=settled, why_ended=node.why_ended)


def _supervise(
    running: Callable[[], bool],
    program: SupervisedProcess,
    app: SupervisedProcess,
    address: Callable[[], str],
) -> Generator[bool, None, None]:
    """Keep a program of Flower running, and our app that connects to it.

    Yields twice per second whether the program listens at its address. Both are ended at the end.
    """
    try:
        while running():
            before = program.started
            program.check()
            if program.started != before:  # with another secret, and maybe another port
                app.stop()
            listening = program.running and programs.is_listening(address())
            if listening:
                app.check()
            yield listening
    finally:
        app.stop()
        program.stop()


class Connection:
    """Logs whether a site reaches its server, whenever this changes, and notes it in its folder."""

    def __init__(self, paths: SitePaths) -> None:
        self.paths, settings = paths, paths.settings()
        self.server, self.client = settings.server, settings.client
        self.ca = paths.folder / settings.ca
        self.state, self.next_check = "", 0.0

    def check(self, *, running: bool, why_ended: str = "") -> None:
        """Try the connection from time to time. Call this every second or so."""
        now = time.monotonic()
        if now < self.next_check:
            return
        reason, _ = why_unreachable(self.server, self.ca)
        if reason:
            state, delay = f"cannot reach {self.server} ({reason})", 5.0
        elif not running and not why_ended:  # it was started a moment ago
            self.next_check = now + 1.0
            return
        elif not running:
            state, delay = f"{self.server} answers, but the SuperNode ended: {why_ended}", 2.0
        else:
            state, delay = f"connected to {self.server}", 60.0
        self.next_check, connected = now + delay, running and not reason
        if state != self.state and (connected or reason):  # the supervisor logs why it ended
            level, said = logging.INFO if connected else logging.WARNING, {"site": self.client}
            log.log(level, "%s", state, extra=said)
        self.state = state
        with suppress(OSError):
            path = self.paths.state / CONNECTION
            path.parent.mkdir(exist_ok=True, mode=0o700)
            note = {"at": time.time(), "state": state, "connected": connected}
            write_atomically(path, json.dumps(note).encode())


@contextmanager
def _service(
    folder: Path, say: Callable[[str], None], **facts: Any
) -> Iterator[Callable[[], bool]]:
    """Lock the folder and log to its file.

    Yields a function that waits half a second, and passes new lines of the log on to ``say``.
    It returns whether no signal to stop has arrived.
    """
    stopping = threading.Event()

    def running() -> bool:
        with suppress(OSError):  # a closed terminal or a full disk must not end the service
            for line in tail.lines():
                say(line)
        return not stopping.wait(0.5)

    require_space(folder)
    with locked(folder / "log", 2.0, **facts):
        tail = Tail(log_to(folder))
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {s: signal.signal(s, lambda *_: stopping.set()) for s in numbers}
        try:
            yield running
        finally:
            stopping.set()
            running()
            for number, handler in before.items():
                signal.signal(number, handler)


def start_federation(folder: Path, *, say: Callable[[str], None]) -> None:
    """Start the server and all sites that do not run yet, and wait until they are connected."""
    server, sites = ServerPaths.find(folder), local_sites(folder)
    if not sites:
        raise FileNotFoundError(
            f"{folder}/sites: no sites; run the server alone with `fedran federation server`"
        )

    seconds = START_SECONDS + START_SECONDS_PER_SITE * len(sites)

    def start(command: str, folders: Iterable[Path], what: str, *statuses: str) -> None:
        """Start services, and wait until Flower lists all nodes with one of these statuses."""
        started = {place: start_service(command, place) for place in folders}
        running = {place: process for place, process in started.items() if process is not None}

        def ended() -> list[Path]:
            return [place for place, process in running.items() if process.poll() is not None]

        def listed() -> bool:
            try:
                nodes = control.list_nodes(server)
            except (control.FlowerError, FileNotFoundError):  # the SuperLink does not listen yet
                return False
            return sum(node.status in statuses or not statuses for node in nodes) >= len(sites)

        ready = wait_until(lambda: bool(ended()) or listed(), seconds, 0.5, what=what)
        for place in ended():
            reason = _last_line(place / "log" / "start.log")
            raise StartFailed(f"{place}: the service did not start: {reason}")
        if not ready:
            last = _last_line(log_file(server.folder))
            raise StartFailed(f"no {what} in time; see the logs below {folder}: {last}")
        for process in running.values():
            process.returncode = 0  # it runs on after this program; nothing waits for it

    say(f"starting the server and {len(sites)} sites, which takes up to a minute")
    start("server", [server.folder], "server that knows its sites")
    say(f"server listens at {server.settings().address} (TLS)")
    start("client", [site.folder for site in sites], "connection of every site", "online")
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


def start_service(command: str, folder: Path) -> subprocess.Popen[bytes] | None:
    """Run ``fedran federation COMMAND FOLDER`` in the background; None if it runs already."""
    if lock_holder(folder / "log") is not None:
        return None
    path = log_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    arguments = [sys.executable, "-m", "fedran", "federation", command, str(folder)]
    with (path.parent / "start.log").open("wb") as output:
        return subprocess.Popen(  # noqa: S603
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n") if path.is_file() else []
    return next((line for line in reversed(lines) if line.strip()), "nothing in its log")
