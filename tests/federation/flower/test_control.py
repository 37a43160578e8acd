"""The owner's questions to a SuperLink, answered by Flower's own app."""

import json

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.supercore import control as flower_control
from flwr.superlink import main as flower_app

from fedran.federation.flower import control, programs
from fedran.federation.flower.executor import check_app
from fedran.federation.flower.superlink import add_gate
from fedran.federation.protocol.keys import make_certificates, make_node_key
from fedran.federation.server.settings import APP, OWNER, ServerPaths

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's libraries


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """A server whose SuperLink is in this process, without a network."""
    from starlette.testclient import TestClient  # its import warns

    found = ServerPaths(tmp_path)
    make_certificates(found.tls)
    programs.write_interface(found, "127.0.0.1:9")
    app = add_gate(flower_app.create_app(), found.runtime)
    link = TestClient(app, raise_server_exceptions=False)
    connect = flower_control.ControlHttpClient.from_server_address

    def answer(request):
        reply = link.post(request.url.path, content=request.content, headers=request.headers)
        return httpx.Response(reply.status_code, content=reply.content)

    def connected(address, **options):
        client = connect(address, **options)
        client._client = httpx.Client(transport=httpx.MockTransport(answer))
        return client

    monkeypatch.setattr(flower_control.ControlHttpClient, "from_server_address", connected)
    return found


def test_runs_are_started_and_listed(paths):
    assert control.list_runs(paths) == []
    first, second = control.start_run(paths, "may", deadline=9.0), control.start_run(paths)
    assert [run.run_id for run in control.list_runs(paths)] == [second, first]
    (run,) = control.list_runs(paths, first)
    assert (run.status, run.active, run.received, run.sent) == ("pending", True, 0, 0)
    check_app((paths.flower / APP).read_bytes())


def test_nodes_are_registered_listed_and_unregistered(paths, tmp_path):
    public = make_node_key(tmp_path / "node.key")
    node = control.register_node(paths, public, "site-1")
    assert control.list_nodes(paths) == [control.FlowerNode(node, "registered")]
    with pytest.raises(control.FlowerError, match=r"refused to register a node: .*in use"):
        control.register_node(paths, public, "site-2")
    control.unregister_node(paths, node)
    assert control.list_nodes(paths) == []
    with pytest.raises(control.FlowerError, match="refused to unregister a node"):
        control.unregister_node(paths, node)


@pytest.mark.parametrize("key", ["nonsense", "ssh-ed25519 AAAA", ""])
def test_a_key_that_is_none_is_an_error_of_one_sentence(key, paths):
    with pytest.raises(control.FlowerError, match="the public key of site-1") as caught:
        control.register_node(paths, key, "site-1")
    assert "\n" not in str(caught.value)


def test_a_wrong_secret_is_refused(paths):
    known = json.loads((paths.runtime / OWNER).read_text())
    (paths.runtime / OWNER).write_text(json.dumps({**known, "secret": "guess"}))
    with pytest.raises(control.FlowerError, match="Flower refused to list runs"):
        control.list_runs(paths)


def test_a_superlink_that_does_not_listen_is_an_error_of_one_sentence(tmp_path):
    paths = ServerPaths(tmp_path)
    make_certificates(paths.tls)
    programs.write_interface(paths, f"127.0.0.1:{programs.free_port()}")
    with pytest.raises(control.FlowerError, match=r"no answer of Flower to list nodes: .*refused"):
        control.list_nodes(paths)


def test_a_run_is_active_until_it_is_finished_in_any_way():
    for status in ("finished:completed", "finished:failed", "finished:stopped"):
        assert not control.FlowerRun("1", status, 0, 0).active
    for status in ("pending", "starting", "running"):
        assert control.FlowerRun("1", status, 0, 0).active
