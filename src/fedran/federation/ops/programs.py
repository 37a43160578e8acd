"""The two programs: ``fedran federation server`` and ``fedran federation client``."""

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

from fedran.core.errors import Refused
from fedran.federation.ops import flower
from fedran.federation.ops.nodes import Registry
from fedran.federation.ops.supervisor import Kept
from fedran.federation.ops.tls import days_left
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.logs import Tail, log_to
from fedran.federation.server.settings import ServerPaths
from fedran.federation.site.settings import SitePaths

log = logging.getLogger(__name__)
Say = Callable[[str], None]
WARN_DAYS = 30.0
NODE_HINTS = {
    "CERTIFICATE_VERIFY_FAILED": "ca.crt is not that of this server, or the address not its name",
    "Failed to activate SuperNode": "the server does not let this node in: has its owner added "
    "card.toml? After a crash it takes a minute",
}


def run_server(place: ServerPaths, *, insecure: bool, say: Say) -> None:
    """Run the server until it is asked to end."""
    settings = place.settings()
    make = partial(flower.superlink, place, insecure=insecure)
    make()  # refuses here what is wrong with the folder
    with _program(place.folder, say, insecure=insecure, address=settings.address) as asked:
        _greet(place, insecure=insecure)
        link = Kept("SuperLink", make, place.folder / "log" / "superlink.log")
        link.end_left_over()
        if flower.listening(settings.address):
            hint = "another server? change `address` in server.toml"
            raise Refused(settings.address, "a free port", "one in use", hint=hint)
        registry = Registry(place, named=not insecure)
        look, looking = 0.0, threading.Thread()
        try:
            while not asked.wait(0.5):
                link.tend()
                due = time.monotonic() >= look and not looking.is_alive()
                if link.running and due and flower.listening(settings.address):
                    how = {"catch_up": settings.catch_up > 0}
                    looking = threading.Thread(target=registry.look, kwargs=how, daemon=True)
                    looking.start()
                    look = time.monotonic() + (settings.catch_up or 3600.0)
        finally:
            link.stop()


def run_site(place: SitePaths, *, insecure: bool, say: Say) -> None:
    """Run a site until it is asked to end."""
    settings = place.settings()
    make = partial(flower.supernode, place, insecure=insecure)
    make()
    with _program(place.folder, say, insecure=insecure) as asked:
        how = "WITHOUT ENCRYPTION" if insecure else "over TLS"
        log.info("site %s connects to %s %s", settings.client, settings.server, how)
        node = Kept("SuperNode", make, place.folder / "log" / "supernode.log", NODE_HINTS)
        node.end_left_over()
        try:
            while not asked.wait(0.5):
                node.tend()
        finally:
            node.stop()


@contextmanager
def _program(folder: Path, say: Say, **facts: Any) -> Iterator[threading.Event]:
    """Logs to the folder's file and to the terminal, until SIGTERM or Ctrl-C sets the event."""
    asked = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    with locked(folder / "log", 2.0, **facts):
        tail = Tail(log_to(folder))
        before = {s: signal.signal(s, ask) for s in (signal.SIGTERM, signal.SIGINT)}
        echo = threading.Thread(target=_echo, args=(tail, say, asked), daemon=True)
        echo.start()
        try:
            yield asked
        finally:
            asked.set()
            echo.join(5)
            for number, handler in before.items():
                signal.signal(number, handler)


def _echo(tail: Tail, say: Say, asked: threading.Event) -> None:
    while not asked.wait(0.3):
        for line in tail.lines():
            say(line)
    for line in tail.lines():
        say(line)


def _greet(place: ServerPaths, *, insecure: bool) -> None:
    settings = place.settings()
    if insecure:
        log.warning("federation %s at %s WITHOUT ENCRYPTION", settings.federation, settings.address)
        return
    log.info("federation %s at %s over TLS", settings.federation, settings.address)
    left = days_left(place.tls / "server.crt")
    if left < WARN_DAYS:
        log.warning("the certificate expires in %.0f days: `fedran federation renew`", left)
