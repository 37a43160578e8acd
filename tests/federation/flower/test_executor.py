"""Only the installed app runs at a site, and only its own user can answer for it."""

import json
import socket
import ssl
import threading
import time

import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_files
from flwr.proto.runtime_pb2 import AcquireTaskRequest

from fedran.core.errors import Refused
from fedran.federation.flower import clientapp, executor, programs
from fedran.federation.flower.executor import CLAIM, check_app, check_or_alarm, end_with
from fedran.federation.ops.scaffold import make_site
from fedran.federation.protocol.keys import make_certificates
from fedran.federation.site.settings import ALARMS, SitePaths

OURS = programs.APP_TEXT.encode()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's libraries


@pytest.fixture
def paths(tmp_path):
    make_certificates(tmp_path / "tls")
    ca = tmp_path / "tls" / "ca.crt"
    make_site(tmp_path / "site", federation="trial", client="site-1", server="127.0.0.1:9", ca=ca)
    return SitePaths(tmp_path / "site")


def test_a_foreign_app_raises_an_alarm_that_is_kept(paths, caplog, monkeypatch):
    def check(fab):
        raise Refused("app", "ours", "evil\x1b[31m")

    monkeypatch.setattr(executor, "check_app", check)
    with pytest.raises(Refused):
        check_or_alarm(b"", paths.state)
    assert "ALARM: a run brought an app that is not fedran's" in caplog.text
    (line,) = (paths.folder / "state" / ALARMS).read_text().splitlines()
    assert "\\x1b[31m" in json.loads(line)["reason"]


def test_the_port_between_node_and_app_needs_a_secret_and_has_a_certificate(paths, monkeypatch):
    """A SuperNode as the site starts it: other users can neither claim messages nor pose as it."""
    pytest.importorskip("uvicorn")
    monkeypatch.setattr(programs, "_executable", lambda name: name)
    port = programs.free_port()
    command, _ = programs.supernode(paths, port)
    assert command[command.index("--isolation") + 1] == "process"
    assert (paths.runtime / "secret").stat().st_mode & 0o077 == 0
    first = (paths.runtime / "secret").read_bytes()
    programs.supernode(paths, port)
    assert (paths.runtime / "secret").read_bytes() != first
    server, thread = real_runtime(paths, port)
    try:
        for secret, allowed in ((None, False), (b"x" * 32, False), (True, True)):
            assert claims(paths, port, secret) == allowed
        other = ssl.create_default_context()
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            other.wrap_socket(plain, server_hostname="127.0.0.1")
    finally:
        server.should_exit = True
        thread.join(30)


def real_runtime(paths, port):
    """Flower's own runtime API with the certificate and secret of a site."""
    import uvicorn
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode.main import create_app
    from flwr.supernode.nodestate import NodeStateFactory

    app = create_app(
        NodeStateFactory(objectstore_factory=ObjectStoreFactory()),
        (paths.runtime / "secret").read_bytes(),
    )
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=port,
            ssl_certfile=str(paths.runtime / "server.crt"),
            ssl_keyfile=str(paths.runtime / "server.key"),
            log_level="error",
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.05)
    return server, thread


def claims(paths, port, secret):
    """Whether a program with this secret may claim messages (True: the site's own)."""
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    interceptors = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    if secret is not None:
        known = (paths.runtime / "secret").read_bytes() if secret is True else secret
        interceptors.append(
            SuperExecAuthHttpInterceptor(master_secret=known, protected_methods={CLAIM})
        )
    client = RuntimeHttpClient.from_server_address(
        f"127.0.0.1:{port}",
        insecure=False,
        root_certificates=(paths.runtime / "ca.crt").read_bytes(),
        interceptors=interceptors,
    )
    try:
        client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
    except Exception:
        return False
    finally:
        client.close()
    return True


@pytest.mark.parametrize("ours", [True, False])
def test_a_site_checks_the_app_of_a_run_and_never_loads_it(ours, paths, monkeypatch):
    """Flower's own function for a message, with its connection replaced; the app is not run."""
    task, steps = executor.client_task, []
    changes = {"pyproject.toml": OURS if ours else OURS.replace(b"clientapp:", b"evil:")}
    fab = build_fab_from_files(changes)[0]

    def run(address, token, insecure, authority, parent, **how):
        steps.append((insecure, how))
        try:
            task.install_from_fab(fab, skip_prompt=True)
            steps.append(task.get_load_client_app_fn(default_app_ref="")("id", "1", "hash"))
        except Refused:
            steps.append("refused")
        raise SystemExit(0)

    for name in ("install_from_fab", "get_load_client_app_fn"):
        monkeypatch.setattr(task, name, getattr(task, name))
    monkeypatch.setattr(task, "run_clientapp", run)
    monkeypatch.setattr("os._exit", lambda code: steps.append(code))
    end_with(
        lambda: executor.answer_message(clientapp.app, paths.state, "127.0.0.1:1", "token", b"")
    )
    assert steps[0] == (False, {"runtime_dependency_install": False})
    assert steps[1:] == [clientapp.app if ours else "refused", 0]
    assert (paths.folder / "state" / ALARMS).is_file() != ours


def test_a_version_of_flower_without_these_steps_answers_nothing(paths, monkeypatch):
    monkeypatch.delattr(executor.client_task, "install_from_fab")
    with pytest.raises(NotImplementedError, match=r"\.install_from_fab"):
        executor.answer_message(clientapp.app, paths.state, "127.0.0.1:1", "token", b"")


@pytest.mark.parametrize("ours", [True, False])
def test_the_server_checks_the_app_of_a_run_and_never_loads_it(ours, monkeypatch, caplog, tmp_path):
    """Flower's own function for a run, with its connection replaced."""
    task, steps = executor.server_task, []
    changed = {"pyproject.toml": OURS if ours else OURS.replace(b"serverapp:", b"evil:")}
    fab = build_fab_from_files(changed)[0]

    def run(address, queue, token, insecure, authority, parent, **how):
        steps.append((token, insecure, how))
        task.install_from_fab(fab, skip_prompt=True)
        steps.append(task.run_(grid="grid", context="context", server_app_attr="evil:app"))

    monkeypatch.setattr(task, "install_from_fab", lambda fab, **_: steps.append("installed"))
    monkeypatch.setattr(task, "run_", None.__init__)
    monkeypatch.setattr(task, "run_serverapp", run)

    def app(grid, context):
        steps.append((grid, context))

    if ours:
        executor.run_task(app, tmp_path, "127.0.0.1:1", "token", b"authority")
        assert steps[1:] == ["installed", ("grid", "context"), "context"]
    else:
        with pytest.raises(Refused, match="evil"):
            executor.run_task(app, tmp_path, "127.0.0.1:1", "token", b"authority")
        assert "ALARM: a run brought an app that is not fedran's" in caplog.text
        assert (tmp_path / ALARMS).is_file()
        assert len(steps) == 1
    assert steps[0] == ("token", False, {"runtime_dependency_install": False})


def test_a_version_of_flower_without_these_steps_runs_nothing(monkeypatch, tmp_path):
    monkeypatch.delattr(executor.server_task, "run_")
    with pytest.raises(NotImplementedError, match=r"\.run_,"):
        executor.run_task(print, tmp_path, "127.0.0.1:1", "token", b"")


def test_our_own_app_is_accepted():
    check_app(build_fab_from_files({"pyproject.toml": OURS})[0])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"pyproject.toml": OURS.replace(b"clientapp:app", b"clientapp:other")}, "clientapp:other"),
        ({"pyproject.toml": OURS, "fedran/code.py": b"boom = 1"}, "code.py"),
        ({"pyproject.toml": OURS.replace(b"fedran.federation.flower.server", b"evil")}, "evil"),
    ],
)
def test_any_other_app_is_refused(files, words):
    with pytest.raises(Refused, match=f"an app that only names the apps of fedran, got .*{words}"):
        check_app(build_fab_from_files(files)[0])


@pytest.mark.parametrize("fab", [b"", b"PK", b"\0" * 1000])
def test_an_app_that_cannot_be_read_is_refused(fab):
    with pytest.raises(Refused, match="an app that only names the apps of fedran"):
        check_app(fab)
