"""The status page's server: reads, shows, and listens to this machine only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedran.core.errors import Refused
from fedran.federation.status.page import page, policy, sections
from fedran.federation.status.reader import Reader, Status

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
"""Hosts that a browser may ask for; any other name that leads here is a trick (DNS rebinding)."""
HTML, JSON = "text/html; charset=utf-8", "application/json"
ROUTES: dict[str, tuple[str, Callable[[Status], bytes]]] = {
    "/": (HTML, page),
    "/sections": (HTML, lambda status: sections(status).encode()),
    "/status.json": (JSON, lambda status: json.dumps(asdict(status), indent=2).encode()),
}


class StatusServer(ThreadingHTTPServer):
    """Serves the status of one federation on the loopback address until it is shut down."""

    daemon_threads = True

    def __init__(self, reader: Reader, port: int = 0) -> None:
        self.reader, self.lock = reader, threading.Lock()
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as reason:
            raise Refused(
                "port", "a free one", f"{port}: {reason}", hint="--port 0 takes any that is free"
            ) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    def status(self) -> Status:
        """Where things stand; one reader at a time."""
        with self.lock:
            return self.reader.read()


class _Handler(BaseHTTPRequestHandler):
    """GET of three fixed addresses; there is no other way in."""

    server: StatusServer
    timeout = 30
    server_version, sys_version = "fedran", ""

    def do_GET(self) -> None:
        if not self._asked_for_this_host():
            self._answer(403, "text/plain", b"This page answers to 127.0.0.1 and localhost only.\n")
            return
        route = ROUTES.get(self.path)
        if route is None:
            self._answer(404, "text/plain", b"There is no such page; try /.\n")
            return
        try:
            body = route[1](self.server.status())
        except (OSError, ValueError) as reason:
            self._answer(500, "text/plain", f"The state cannot be read: {reason}\n".encode())
            return
        self._answer(200, route[0], body)

    def _asked_for_this_host(self) -> bool:
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and hosts[0].partition(":")[0] in NAMES

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy()),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A line every two seconds would help nobody."""
