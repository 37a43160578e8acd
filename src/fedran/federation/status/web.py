"""The status as a web page on this machine. It refreshes itself and loads nothing from elsewhere.

The templates escape every value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedran.core.labels import sort_key
from fedran.federation.protocol.limits import TABLE_CLASSES, TABLE_SITES
from fedran.federation.server.store.schema import SolvedHead
from fedran.federation.status import format as text
from fedran.federation.status.metrics import CONTENT_TYPE, render_metrics
from fedran.federation.status.model import SiteStatus, Status
from fedran.federation.status.reader import Reader

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
"""Host names that are answered. Another name that leads here is an attack (DNS rebinding)."""
POLICY = "default-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; " + (
    "frame-ancestors 'none'; object-src 'none'"
)
"""Allows what this server serves, which is nothing inline and nothing from elsewhere."""
_HTML, _JSON = "text/html; charset=utf-8", "application/json"
_TYPES = {
    "/": _HTML,
    "/sections": _HTML,
    "/status.json": _JSON,
    "/metrics": CONTENT_TYPE,
    "/page.css": "text/css; charset=utf-8",
    "/page.js": "text/javascript; charset=utf-8",
}
_ENVIRONMENT = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals["text"] = text


def render(path: str, status: Status) -> bytes:
    """What a path of the page answers.

    ``/sections`` is the part of the page that changes; its script asks for it every two seconds.
    """
    if path == "/status.json":
        return status.to_json().encode()
    if path == "/metrics":
        return render_metrics(status)
    parts = {"matrix": _class_matrix(status.sites), "chart": _accuracy_chart(status.history)}
    template = "page.html" if path == "/" else "sections.html"
    return _ENVIRONMENT.get_template(template).render(status=status, **parts).encode()


def _accuracy_chart(history: Sequence[SolvedHead]) -> dict[str, Any] | None:
    """The accuracy of all heads as points of a line in a unit square; None with fewer than two.

    The vertical axis ends at the nearest multiples of 10 %, so that changes can be seen.
    """
    heads = [(head.task, head.accuracy) for head in history if head.accuracy is not None]
    if len(heads) < 2:
        return None
    high = math.ceil(10 * max(accuracy for _, accuracy in heads)) / 10
    low = min(math.floor(10 * min(accuracy for _, accuracy in heads)) / 10, high - 0.1)
    points = [
        {"x": n / (len(heads) - 1), "y": (high - a) / (high - low), "accuracy": a, "task": task}
        for n, (task, a) in enumerate(heads)
    ]
    return {"points": points, "low": low, "high": high}


def _class_matrix(sites: Sequence[SiteStatus]) -> dict[str, Any]:
    """Rows of each class at each site, with a shade from 0 to 5.

    The largest classes and the sites with the most rows are shown.
    """
    every = sorted((site for site in sites if site.classes), key=lambda s: -(s.rows or 0))
    totals = Counter[str | int]()
    for site in every:
        totals.update(dict(site.classes))
    shown = sorted(every[:TABLE_SITES], key=lambda site: site.client)
    columns = [dict(site.classes) for site in shown]
    largest = max((n for column in columns for n in column.values()), default=0)
    rows = []
    for label in sorted((label for label, _ in totals.most_common(TABLE_CLASSES)), key=sort_key):
        numbers = [column.get(label, 0) for column in columns]
        cells = [(n, -(-5 * n // largest) if n > 0 else 0) for n in numbers]
        rows.append({"label": label, "total": totals[label], "cells": cells})
    hidden = len(totals) - len(rows), len(every) - len(shown)
    return {"clients": [site.client for site in shown], "rows": rows, "hidden": hidden}


class StatusServer(ThreadingHTTPServer):
    """Serves the status of one federation on the loopback address until it is shut down."""

    daemon_threads = True

    def __init__(self, reader: Reader, port: int = 0) -> None:
        self.reader = reader
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as reason:
            text = f"port {port} cannot be used ({reason}); --port 0 takes any free port"
            raise OSError(text) from None

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers GET requests for a few fixed paths and nothing else."""

    server: StatusServer
    timeout = 30
    server_version, sys_version = "fedran", ""

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].partition(":")[0] not in HOSTS:
            self._answer(403, "text/plain", b"This page answers to 127.0.0.1 and localhost only.\n")
        elif self.path not in _TYPES:
            self._answer(404, "text/plain", b"There is no such page; try /.\n")
        elif self.path in ("/page.css", "/page.js"):
            file = resources.files(__package__) / "templates" / self.path[1:]
            self._answer(200, _TYPES[self.path], file.read_bytes())
        else:
            try:
                body = render(self.path, self.server.reader.read())
            except (OSError, ValueError) as reason:
                self._answer(500, "text/plain", f"The state cannot be read: {reason}\n".encode())
            else:
                self._answer(200, _TYPES[self.path], body)

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No log: the page makes a request every two seconds."""
