"""Flower's interface for the owner answers only to the owner's secret."""

import asyncio
import json
import sys
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from importlib import import_module

import pytest

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)
from fastapi.routing import APIRoute, iter_route_contexts
from flwr.superlink import main as flower_app

from fedran.federation.flower import programs, superlink
from fedran.federation.protocol.keys import make_node_key
from fedran.federation.server.settings import REFUSED_REQUESTS, ServerPaths

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's libraries
LOGIN = {"get-login-details", "get-auth-tokens", "refresh-auth-tokens"}


@pytest.fixture
def paths(tmp_path):
    found = ServerPaths(tmp_path)
    programs.write_interface(found, "127.0.0.1:9443")
    return found


@pytest.fixture
def app(paths):
    return superlink.add_gate(flower_app.create_app(), paths.runtime)


def ask(app, path, token=None, content=b"", **headers):
    from starlette.testclient import TestClient  # its import warns

    headers["Content-Type"] = "application/protobuf"
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    client = TestClient(app, raise_server_exceptions=False)
    return client.post(path, content=content, headers=headers)


def test_every_route_of_the_owner_needs_the_secret(app, paths, caplog):
    routes = [context.route for context in iter_route_contexts(app.routes)]
    names = {
        route.path.removeprefix("/v1/control/")
        for route in routes
        if isinstance(route, APIRoute) and route.path.startswith("/v1/control/")
    }
    assert {"start-run", "stop-run", "register-node", "unregister-node", *LOGIN} <= names
    for name in sorted(names):
        assert ask(app, f"/v1/control/{name}").status_code == 401, name
        assert ask(app, f"/v1/control/{name}", "guess").status_code == 401, name
    assert caplog.text.count("ALARM: a request to the owner's interface") == 1
    assert json.loads((paths.runtime / REFUSED_REQUESTS).read_text())["times"] >= 1


@pytest.mark.parametrize("host", ["x?", "x#", "x/v1/fleet?", "x:1/"])
def test_no_header_moves_a_request_past_the_gate(host, app):
    assert ask(app, "/v1/control/list-runs", Host=host).status_code == 401
    assert ask(app, "/v1/contro%6C/list-runs", Host=host).status_code == 401


def test_a_restart_keeps_the_secret_so_that_a_question_meanwhile_is_no_alarm(paths, app):
    before = json.loads((paths.runtime / "owner.json").read_text())["secret"]
    programs.write_interface(paths, "127.0.0.1:9443")
    assert ask(app, "/v1/control/list-runs", before).status_code == 200


def sent(app, path, size, headers):
    """The status of a request, and how many bytes of it were read."""
    taken = 0

    async def body():
        nonlocal taken
        for _ in range(size // 2**16):
            taken += 2**16
            yield bytes(2**16)

    async def ask():
        inside = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=inside, base_url="http://localhost") as client:
            given = {"content-type": "application/protobuf", **headers}
            if not headers.keys() & {"content-length", "transfer-encoding"}:
                return (await client.get(path, headers=given)).status_code
            return (await client.post(path, content=body(), headers=given)).status_code

    return asyncio.run(ask()), taken


@pytest.mark.parametrize(
    "path", ["/v1/fleet/push-object", "/v1/runtime/push-object", "/v1/control/start-run", "/docs"]
)
def test_a_large_request_of_a_stranger_is_refused_before_it_is_read(path, app, tmp_path):
    forged = {"authorization": "Bearer guess", "flwr-task-token": "guess"}
    forged |= signed(make_ssh_key(tmp_path))
    for headers in ({}, forged):
        given = {**headers, "content-length": str(2**20)}
        assert sent(app, path, 2**20, given) == (401, 0)
    assert sent(app, path, 2**20, {"transfer-encoding": "chunked"}) == (411, 0)
    assert sent(app, path, 2**20, {"content-length": str(600 * 2**20)}) == (413, 0)


def make_ssh_key(folder):
    public = make_node_key(folder / "node.key")
    return load_ssh_private_key((folder / "node.key").read_bytes(), None), public


def signed(key):
    """The headers with which a SuperNode proves its key, as Flower makes them."""
    now = datetime.now(UTC).isoformat()
    pem = key[0].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = key[0].sign(now.encode(), ec.ECDSA(SHA256()))
    return {
        "flwr-public-key": b64encode(pem).decode(),
        "flwr-timestamp": now,
        "flwr-signature": b64encode(signature).decode(),
    }


def test_a_node_that_was_admitted_may_send_and_one_that_was_removed_may_not(app, tmp_path):
    key, state = make_ssh_key(tmp_path), app.state.linkstate_factory.state()
    headers = signed(key)
    assert sent(app, superlink.KNOWN, 0, headers) == (401, 0)
    node = state.create_node("1", "one", b64decode(headers["flwr-public-key"]), 0)
    assert sent(app, superlink.KNOWN, 0, headers) == (204, 0)
    given = {**headers, "content-length": str(2**20)}
    assert sent(app, "/v1/fleet/push-object", 2**20, given)[1] == 2**20
    broken = {**headers, "flwr-timestamp": datetime.now(UTC).isoformat()}
    assert sent(app, superlink.KNOWN, 0, broken) == (401, 0)
    state.delete_node("1", node)
    assert sent(app, superlink.KNOWN, 0, headers) == (401, 0)


def test_the_program_starts_flowers_behind_the_gate(paths, monkeypatch):
    program = import_module("flwr.superlink.cli.flower_superlink")
    started = []

    def start():
        started.append((flower_app.create_app(), sys.argv))

    monkeypatch.setattr(program, "flower_superlink", start)
    monkeypatch.setattr(flower_app, "create_app", flower_app.create_app)
    monkeypatch.setattr(sys, "argv", [])
    superlink.main(paths.runtime, ["--port", "9443"])
    ((app, arguments),) = started
    assert ask(app, "/v1/control/list-runs").status_code == 401
    assert arguments == ["flower-superlink", "--port", "9443"]
