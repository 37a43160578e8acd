"""Flower's interface for the owner answers only to the owner's secret."""

import asyncio
import json
import sys
from importlib import import_module

import pytest

pytest.importorskip("flwr")

from fastapi.routing import APIRoute, iter_route_contexts
from flwr.superlink import main as flower_app

from fedran.federation.flower import programs, superlink
from fedran.federation.server.settings import REFUSED_REQUESTS, ServerPaths

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's libraries
LOGIN = {"get-login-details", "get-auth-tokens", "refresh-auth-tokens"}


@pytest.fixture
def paths(tmp_path):
    found = ServerPaths(tmp_path)
    programs._superlink_program(found, "127.0.0.1:9443", None)
    return found


@pytest.fixture
def app(paths, monkeypatch):
    monkeypatch.setattr(
        flower_app, "load_control_authn_plugin", lambda: superlink.OwnerOnly(paths.runtime)
    )
    return flower_app.create_app()


def ask(app, path, token=None, content=b""):
    from starlette.testclient import TestClient  # its import warns

    headers = {"Content-Type": "application/protobuf"}
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
    for name in sorted(names - LOGIN):
        assert ask(app, f"/v1/control/{name}").status_code == 401, name
        assert ask(app, f"/v1/control/{name}", "guess").status_code == 401, name
    assert caplog.text.count("ALARM: a request to the owner's interface") == 1
    assert json.loads((paths.runtime / REFUSED_REQUESTS).read_text())["times"] >= 1


def test_nobody_can_log_in_or_exchange_a_wrong_secret(app):
    for name in LOGIN:
        reply = ask(app, f"/v1/control/{name}", content=b"\n\x05guess")
        assert reply.status_code >= 400 or not reply.content, name


@pytest.mark.parametrize("name", ["secret", "previous"])
def test_a_question_of_the_owner_during_a_restart_is_refused_without_an_alarm(
    name, paths, app, caplog
):
    """Each start has another secret, and a question may be sent with the one before."""
    programs._superlink_program(paths, "127.0.0.1:9443", None)
    token = json.loads((paths.runtime / "owner.json").read_text())[name]
    if name == "previous":  # the SuperLink has started again
        app.state.account_access_dep.authn_plugin.secret = b"newer"
    assert ask(app, "/v1/control/list-runs", token).status_code == 401
    assert "ALARM" not in caplog.text
    assert not (paths.runtime / REFUSED_REQUESTS).exists()


def test_every_route_is_asked_before_the_superlink_listens(app):
    asyncio.run(superlink.require_secret(app))


def test_an_open_route_ends_the_superlink_before_it_listens(paths, app, monkeypatch, caplog):
    """Another version of Starlette may call the check of the secret differently, or never."""
    program = import_module("flwr.superlink.cli.flower_superlink")
    monkeypatch.setattr(program, "load_control_authn_plugin", lambda: None)
    monkeypatch.setattr(program, "flower_superlink", lambda: flower_app.create_app())
    monkeypatch.setattr(flower_app, "create_app", lambda: app)
    monkeypatch.setattr(sys, "argv", [])
    app.user_middleware = [m for m in app.user_middleware if "Authentication" not in str(m.cls)]
    with pytest.raises(SystemExit):
        superlink.main(paths.runtime, [])
    assert "the SuperLink is not started: with these versions of Flower, FastAPI and" in caplog.text
    assert "install the versions in constraints.txt" in caplog.text


def test_the_program_starts_flowers_with_this_plugin(paths, monkeypatch):
    program = import_module("flwr.superlink.cli.flower_superlink")
    started = []

    def start():
        started.append((program.load_control_authn_plugin(), sys.argv))

    monkeypatch.setattr(program, "flower_superlink", start)
    monkeypatch.setattr(flower_app, "create_app", flower_app.create_app)
    monkeypatch.setattr(program, "load_control_authn_plugin", lambda: None)
    monkeypatch.setattr(sys, "argv", [])
    superlink.main(paths.runtime, ["--port", "9443"])
    ((plugin, arguments),) = started
    assert isinstance(plugin, superlink.OwnerOnly)
    assert arguments == ["flower-superlink", "--port", "9443"]
