"""Flower's interface for the owner answers only to the owner's secret."""

import asyncio
import json
import socket
import sys
import threading
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from importlib import import_module

import pytest

pytest.importorskip("flwr")

import httpx
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)
from fastapi.routing import iter_route_contexts
from flwr.superlink import main as flower_app

from fedran.federation.flower import programs, superlink
from fedran.federation.protocol.keys import make_node_key
from fedran.federation.protocol.lockfile import wait_until
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


def ask(app, path, token=None, content=b"", method="POST", **headers):
    from starlette.testclient import TestClient  # its import warns

    headers["Content-Type"] = "application/protobuf"
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    client = TestClient(app, raise_server_exceptions=False)
    return client.request(method, path, content=content, headers=headers)


def test_no_route_answers_a_stranger(app, paths, caplog):
    app.state.superexec_auth_secret = b"of the executor"  # as the SuperLink's command line sets it
    app.add_api_route("/v2/added-by-flower", lambda: "open", methods=["GET", "POST"])
    app.middleware_stack = None
    found = [context.route for context in iter_route_contexts(app.routes)]
    owned = {f"/v1/control/{name}" for name in ("start-run", "stop-run", "register-node", *LOGIN)}
    assert owned <= {route.path for route in found}
    for route in found:
        for method in sorted({*route.methods, "OPTIONS"}):
            for token in (None, "guess"):
                status = ask(app, route.path, token, method=method).status_code
                known = route.path.startswith(superlink.OTHERS)
                assert 400 <= status < 500 if known else status == 401, (method, route.path)
    assert caplog.text.count("ALARM: a request to the owner's interface") == 1
    assert json.loads((paths.runtime / REFUSED_REQUESTS).read_text())["times"] >= 1


def test_websockets_are_closed(app):
    from starlette.testclient import TestClient, WebSocketDenialResponse
    from starlette.websockets import WebSocketDisconnect

    app.add_api_websocket_route("/v1/control/listen", lambda socket: socket.accept())
    with (
        pytest.raises((WebSocketDisconnect, WebSocketDenialResponse)),
        TestClient(app).websocket_connect("/v1/control/listen"),
    ):
        pass


@pytest.mark.parametrize("host", ["x", "x?", "x#", "x/v1/fleet?", "x:1/"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs/",
        "/v1/contro%6C/list-runs",
        "/v1/control%2Flist-runs",
        "/v1/control%00/list-runs",
        "//v1/control/list-runs",
        "/V1/CONTROL/list-runs",
    ],
)
def test_no_spelling_of_a_request_passes_the_gate(path, host, app):
    assert ask(app, path, Host=host).status_code == 401


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
    """Over a socket, because a stranger's headers are limited before the gate sees them."""
    program = import_module("flwr.superlink.cli.flower_superlink")
    running = []

    def start():
        port = programs.free_port()
        uvicorn.run(flower_app.create_app(), port=port, log_level="error", lifespan="off")

    def run(app, **settings):
        running.append(server := uvicorn.Server(uvicorn.Config(app, **settings)))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            address = ("127.0.0.1", settings["port"])
            wait_until(lambda: server.started, 30.0, what="a server")
            assert reply_to(address, b"") == b"401"
            with pytest.raises(ConnectionError):
                reply_to(address, b"x: " + bytes(range(97, 123)) * 2**18)
        finally:
            server.should_exit = True
            thread.join(30)

    monkeypatch.setattr(uvicorn, "run", run)
    monkeypatch.setattr(program, "flower_superlink", start)
    monkeypatch.setattr(flower_app, "create_app", flower_app.create_app)
    monkeypatch.setattr(sys, "argv", [])
    superlink.main(paths.runtime, ["--port", "9443"])
    assert len(running) == 1
    assert sys.argv == ["flower-superlink", "--port", "9443"]


def reply_to(address, header):
    """The status of a request that has one more header. A server that reads on does not answer."""
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(b"POST /v1/control/list-runs HTTP/1.1\r\nhost: x\r\n")
        client.sendall((header and header + b"\r\n") + b"\r\n")
        answer = client.recv(100)
        if b" 400 " in answer:
            raise ConnectionError
        return answer[9:12]
