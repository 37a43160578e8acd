"""Flower's SuperLink behind a gate that looks at every request first.

``python -m fedran.federation.flower.superlink RUNTIME ...`` takes the arguments of
``flower-superlink``. Every user of the machine can reach the SuperLink's port, and Flower's open
distribution protects neither its interface for the owner (``/v1/control``) nor its memory: it reads
a request completely before it looks at the signature in its headers. The gate asks for a secret in
the folder RUNTIME, which only the user of the server can read. Headers are limited by h11, which
reads at most 64 KiB of them; httptools, which uvicorn prefers, reads headers without end.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import sys
import time
from base64 import b64decode
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER
from flwr.superlink.routers.fleet.node_auth import authenticate_node

from fedran.federation.flower.private import replace_steps
from fedran.federation.protocol.limits import ALARM_SECONDS
from fedran.federation.protocol.logs import log_to
from fedran.federation.server.settings import OWNER, REFUSED_REQUESTS
from fedran.wire.files import write_atomically

log = logging.getLogger("fedran.federation.flower.superlink")
OTHERS = "/v1/fleet/", "/v1/runtime/"
"""Where Flower itself asks for the signature of a node, or the token of a run. Everything else is
the owner's, also what a later version of Flower adds."""
CONTROL = "/v1/control"
"""Where the owner's interface is."""
KNOWN = "/v1/fleet/known"
"""Where a proxy asks whether the headers of a request are those of a node that may connect."""
SMALL_BODY, LARGEST_BODY = 2**16, 2**23
"""Bytes of a request of anybody, and of a known sender. Flower sends arrays in parts of 5 MiB."""


class Gate:
    """Lets a request pass if its headers, which are all that is read, say that it may.

    All but ``OTHERS`` needs the owner's secret. A large request needs the secret, the signature of
    a node or the token of a run. ``KNOWN`` answers whether a node is known, so that a proxy can ask
    before it reads a request.
    """

    def __init__(self, app: Any, runtime: Path, secret: str) -> None:
        self.app, self.runtime, self.expected = app, runtime, f"Bearer {secret}".encode()
        self.times, self.next_alarm = 0, 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request with the status of a refusal, or let it pass (ASGI)."""
        if scope["type"] == "websocket":  # Flower has none
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, path, status = Request({**scope, "state": {}}), scope["path"], 0
        length = request.headers.get("content-length", "0")
        size = int(length) if length.isdecimal() else math.inf
        given = request.headers.get("authorization", "").encode()
        if "transfer-encoding" in request.headers:
            status = 411
        elif size > LARGEST_BODY:
            status = 413
        elif not path.startswith(OTHERS):
            if not hmac.compare_digest(given, self.expected):
                status = 401
                if path.startswith(CONTROL):
                    self.note_refusal()
        elif path == KNOWN:
            status = 204 if await run_in_threadpool(self.is_known, request) else 401
        elif size > SMALL_BODY and not await run_in_threadpool(self.is_known, request):
            status = 401
        if status:
            await Response(status_code=status)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def is_known(self, request: Request) -> bool:
        """Whether the headers have the signature of a node, or the token of a run."""
        state = request.app.state.linkstate_factory.state()
        if not request.scope["path"].startswith("/v1/fleet/"):
            token = request.headers.get(TASK_TOKEN_HEADER)
            return bool(token) and state.get_task_by_token(token) is not None
        try:
            public = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            node = state.get_node_id_by_public_key(public)
            request.state.protobuf_request = SimpleNamespace(node_id=node)
            authenticate_node(request)  # the signature, and that the key is the node's
        except (KeyError, ValueError, HTTPException):
            return False
        return node is not None

    def note_refusal(self) -> None:
        """Raise an alarm, which ``fedran federation status`` shows too."""
        self.times += 1
        if time.monotonic() < self.next_alarm:
            return
        self.next_alarm = time.monotonic() + ALARM_SECONDS
        log.error(
            "ALARM: a request to the owner's interface without the owner's secret was refused "
            "(%d since the start). Somebody else can reach the SuperLink's port.",
            self.times,
        )
        with suppress(OSError):
            note = {"at": time.time(), "times": self.times}
            write_atomically(self.runtime / REFUSED_REQUESTS, json.dumps(note).encode())


def add_gate(app: FastAPI, runtime: Path) -> FastAPI:
    """Put an app behind the gate, with the secret that is in the folder now."""
    app.add_middleware(Gate, runtime, json.loads((runtime / OWNER).read_bytes())["secret"])
    return app


def main(runtime: Path, arguments: list[str]) -> None:
    """Run a SuperLink behind the gate until it is ended."""
    flower = import_module("flwr.superlink.cli.flower_superlink")
    service = import_module("flwr.superlink.main")
    log_to(runtime.parents[1])
    create = service.create_app
    replace_steps(service, {"create_app": lambda *given: add_gate(create(*given), runtime)})
    replace_steps(flower.uvicorn, {"run": partial(flower.uvicorn.run, http="h11")})
    sys.argv = ["flower-superlink", *arguments]
    flower.flower_superlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
