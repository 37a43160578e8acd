"""Flower's SuperLink with an owner's interface that needs a secret.

``python -m fedran.federation.flower.superlink RUNTIME ...`` takes the arguments of
``flower-superlink``. Every user of the machine can reach the SuperLink's port. Flower lets a plugin
authenticate requests to the owner's interface (``/v1/control``), and its open distribution has no
such plugin. This one compares a bearer token with the secret in the folder RUNTIME, which only the
user of the server can read. Flower reads a request completely before it looks at the signature in
its headers, so ``BodyLimit`` looks first.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import sys
import time
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.middleware import Middleware
from fastapi.routing import iter_route_contexts
from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.supercore.auth.typing import AccountAuthLoginDetails, AccountInfo
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.routers.fleet.node_auth import authenticate_node

from fedran.core.errors import shortened
from fedran.federation.flower.private import replace_steps
from fedran.federation.protocol.limits import ALARM_SECONDS
from fedran.federation.protocol.logs import log_to
from fedran.federation.server.settings import OWNER, REFUSED_REQUESTS
from fedran.wire.files import write_atomically

Metadata = Sequence[tuple[str, str | bytes]]
log = logging.getLogger("fedran.federation.flower.superlink")
CONTROL = "/v1/control/"
"""Where the owner's interface is."""
LOGIN = {
    f"{CONTROL}{name}" for name in ("get-login-details", "get-auth-tokens", "refresh-auth-tokens")
}
"""Its routes that need no secret. They give none, because there is no login."""
KNOWN = "/v1/fleet/known"
"""Where a proxy asks whether the headers of a request are those of a node that may connect."""
SMALL_BODY, LARGEST_BODY = 2**16, 2**23
"""Bytes of a request of anybody, and of a known sender. Flower sends arrays in parts of 5 MiB."""


class OwnerOnly(NoOpControlAuthnPlugin):  # type: ignore[misc]
    """Lets whoever has the secret act as the one account of Flower's open distribution."""

    def __init__(self, runtime: Path) -> None:
        super().__init__()
        self.runtime = runtime
        self.secret = json.loads((runtime / OWNER).read_bytes())["secret"].encode()
        self.times, self.next_alarm = 0, 0.0

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        """None: there is no login."""
        return None

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        """Whether the token is the secret."""
        token = str(dict(metadata).get(ACCESS_TOKEN_KEY, "")).encode(errors="replace")
        if hmac.compare_digest(token, self.secret):
            return super().validate_tokens_in_metadata(metadata)
        self._note_refusal()
        return False, None

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
        """Refuse: a wrong secret cannot be exchanged for another one."""
        del metadata
        return None, None

    def _note_refusal(self) -> None:
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


class BodyLimit:
    """Reads a large request only from a sender that its headers prove to be known.

    ``KNOWN`` answers whether a node is, so that a proxy can ask before it reads a request.
    """

    def __init__(self, app: Any, secret: bytes) -> None:
        self.app, self.secret = app, secret

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request with the status of a refusal, or let it pass (ASGI)."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, status = Request({**scope, "state": {}}), 0
        length = request.headers.get("content-length", "0")
        size = int(length) if length.isdecimal() else math.inf
        asked = request.url.path == KNOWN
        if "transfer-encoding" in request.headers:
            status = 411
        elif size > LARGEST_BODY:
            status = 413
        elif (asked or size > SMALL_BODY) and not await run_in_threadpool(self.is_known, request):
            status = 401
        elif asked:
            status = 204
        if status:
            await Response(status_code=status)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def is_known(self, request: Request) -> bool:
        """Whether the headers have the signature of a node, the token of a run or the secret."""
        state, path = request.app.state.linkstate_factory.state(), request.url.path
        if path.startswith(CONTROL):
            given = request.headers.get("authorization", "").encode()
            return hmac.compare_digest(given, b"Bearer " + self.secret)
        if not path.startswith("/v1/fleet/"):
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


async def require_secret(app: FastAPI) -> None:
    """Raise unless every route of the owner's interface refuses a request without the secret."""
    routes = {getattr(found.route, "path", "") for found in iter_route_contexts(app.routes)}
    guarded = sorted(r for r in routes if r.startswith(CONTROL) and r not in LOGIN)
    # A request that passes the check is empty and causes an error, which is status 500 here.
    inside = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=inside, base_url="http://localhost") as client:
        headers = {"content-type": "application/protobuf"}
        replies = {route: await client.post(route, headers=headers) for route in guarded}
    answered = [route for route, reply in replies.items() if reply.status_code != 401]
    if answered or f"{CONTROL}start-run" not in guarded:
        raise NotImplementedError(
            "with these versions of Flower, FastAPI and Starlette the owner's interface of the "
            f"SuperLink cannot be protected ({shortened(answered, 3) or 'it is not found'}); "
            "install the versions in constraints.txt"
        )


def main(runtime: Path, arguments: list[str]) -> None:
    """Run a SuperLink until it is ended, unless its owner's interface would be open."""
    flower = import_module("flwr.superlink.cli.flower_superlink")
    service = import_module("flwr.superlink.main")
    log_to(runtime.parents[1])
    plugin, create = OwnerOnly(runtime), service.create_app

    def create_checked(*given: Any) -> FastAPI:
        app = create(*given)
        plugin.next_alarm = math.inf
        asyncio.run(require_secret(app))
        plugin.times, plugin.next_alarm = 0, 0.0
        app.user_middleware.insert(0, Middleware(BodyLimit, plugin.secret))
        app.middleware_stack = None  # it was made for the questions above
        return app

    try:
        replace_steps(flower, {"load_control_authn_plugin": lambda: plugin})
        replace_steps(service, {"create_app": create_checked})
        sys.argv = ["flower-superlink", *arguments]
        flower.flower_superlink()
    except NotImplementedError as reason:
        log.error("the SuperLink is not started: %s", reason)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
