"""The two services that run in the foreground: a server with its SuperLink, a site's SuperNode."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from fedran.federation.ops import flower
from fedran.federation.ops.keys import days_left
from fedran.federation.ops.nodes import NodeRegistry
from fedran.federation.ops.supervisor import SupervisedProcess
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.logs import Tail, log_to
from fedran.federation.server.settings import ServerPaths
from fedran.federation.site.settings import SitePaths

log = logging.getLogger(__name__)
WARN_DAYS = 30.0
"""Days before the expiry of the server's certificate from which on there is a warning."""


class AddressInUse(OSError):
    """Another program listens at the server's address."""


def run_server(paths: ServerPaths, *, insecure: bool, say: Callable[[str], None]) -> None:
    """Run a server until SIGTERM or Ctrl-C; ``say`` gets its log lines."""
    settings = paths.settings()
    make_command = partial(flower.superlink, paths, insecure=insecure)
    make_command()  # an error in the folder ends the program before the first start
    with _service(paths.folder, say, insecure=insecure, address=settings.address) as stopping:
        where = f"federation {settings.federation} at {settings.address}"
        if insecure:
            log.warning("%s WITHOUT ENCRYPTION", where)
        else:
            log.info("%s over TLS", where)
            left = days_left(paths.tls / "server.crt")
            if left < WARN_DAYS:
                log.warning("the certificate expires in %.0f days: `fedran federation renew`", left)
        link = SupervisedProcess("SuperLink", make_command, paths.folder / "log" / "superlink.log")
        link.end_leftover()
        if flower.is_listening(settings.address):
            raise AddressInUse(
                f"{settings.address} is in use by another program, maybe another server; change "
                "`address` in server.toml"
            )
        registry = NodeRegistry(paths, authenticated=not insecure)
        next_update, update = 0.0, threading.Thread()
        try:
            while not stopping.wait(0.5):
                link.check()
                due = time.monotonic() >= next_update and not update.is_alive()
                if link.running and due and flower.is_listening(settings.address):
                    options = {"catch_up": settings.catch_up > 0}
                    update = threading.Thread(target=registry.update, kwargs=options, daemon=True)
                    update.start()
                    next_update = time.monotonic() + (settings.catch_up or 3600.0)
        finally:
            link.stop()


def run_site(paths: SitePaths, *, insecure: bool, say: Callable[[str], None]) -> None:
    """Run a site until SIGTERM or Ctrl-C; ``say`` gets its log lines."""
    settings = paths.settings()
    make_command = partial(flower.supernode, paths, insecure=insecure)
    make_command()  # an error in the folder ends the program before the first start
    with _service(paths.folder, say, insecure=insecure) as stopping:
        security = "WITHOUT ENCRYPTION" if insecure else "over TLS"
        log.info("site %s connects to %s %s", settings.client, settings.server, security)
        output = paths.folder / "log" / "supernode.log"
        node = SupervisedProcess("SuperNode", make_command, output, flower.SUPERNODE_HINTS)
        node.end_leftover()
        try:
            while not stopping.wait(0.5):
                node.check()
        finally:
            node.stop()


@contextmanager
def _service(folder: Path, say: Callable[[str], None], **facts: Any) -> Iterator[threading.Event]:
    """Lock the folder and log to its file and to ``say``. A signal to stop sets the event."""
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    def pass_on_lines() -> None:
        while not stopping.wait(0.3):
            for line in tail.lines():
                say(line)
        for line in tail.lines():
            say(line)

    with locked(folder / "log", 2.0, **facts):
        tail = Tail(log_to(folder))
        before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
        echo = threading.Thread(target=pass_on_lines, daemon=True)
        echo.start()
        try:
            yield stopping
        finally:
            stopping.set()
            echo.join(5)
            for number, handler in before.items():
                signal.signal(number, handler)
