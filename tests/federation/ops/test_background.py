"""Services in the background: errors while they start and stop."""

import subprocess
import sys

import pytest

pytest.importorskip("cryptography")

from fedran.federation.flower import control
from fedran.federation.ops import services
from fedran.federation.ops.scaffold import make_federation
from fedran.federation.ops.services import (
    StartFailed,
    start_federation,
    start_service,
    stop_federation,
)
from fedran.federation.protocol.lockfile import locked


@pytest.fixture
def folder(tmp_path):
    make_federation(tmp_path / "trial", n_sites=1, in_features=6)
    return tmp_path / "trial"


def test_a_folder_without_a_server_or_sites_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no server\.toml here or in server/"):
        start_federation(tmp_path, say=print)
    make_federation(tmp_path / "alone", n_sites=0, in_features=6)
    with pytest.raises(
        FileNotFoundError, match="no sites; run the server alone with `fedran federation server`"
    ):
        start_federation(tmp_path / "alone", say=print)


def test_a_service_that_ends_at_once_is_an_error_with_its_last_line(folder, monkeypatch):
    monkeypatch.setattr(control, "list_nodes", lambda _: [control.FlowerNode("1", "registered")])
    (folder / "sites" / "site-1" / "node.key").chmod(0o644)
    with (
        locked(folder / "server" / "log"),
        pytest.raises(StartFailed, match="site-1: the service did not start: fedran: ") as caught,
    ):
        start_federation(folder, say=print)
    assert "run `chmod 600" in str(caught.value)


def test_a_running_service_is_not_started_again(folder):
    with locked(folder / "server" / "log"):
        assert start_service("server", folder / "server") is None


def test_a_server_that_is_not_ready_in_time_is_an_error_with_its_last_line(folder, monkeypatch):
    monkeypatch.setattr(services, "START_SECONDS", 0.1)
    monkeypatch.setattr(services, "START_SECONDS_PER_SITE", 0.0)
    monkeypatch.setattr(control, "list_nodes", lambda _: [])
    (folder / "server" / "log").mkdir()
    (folder / "server" / "log" / "fedran.log").write_text("first\nSuperLink ended with code 1\n\n")
    with (
        locked(folder / "server" / "log"),
        pytest.raises(
            StartFailed, match=r"no server that knows its sites in time; see .*ended with"
        ),
    ):
        start_federation(folder, say=print)


def test_flower_is_asked_again_until_it_answers(folder, monkeypatch):
    online = control.FlowerNode("1", "online")
    away = control.FlowerError("no answer")
    answers = iter(
        [FileNotFoundError(), away, [control.FlowerNode("1", "registered")], away, [online]]
    )

    def ask(*_):
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(control, "list_nodes", ask)
    with locked(folder / "server" / "log"), locked(folder / "sites" / "site-1" / "log"):
        start_federation(folder, say=lambda _: None)
    assert not list(answers)


def test_stopping_where_nothing_runs_does_nothing(folder, tmp_path):
    said = []
    for place in (folder, folder / "server"):
        assert stop_federation(place, say=said.append) == []
    with pytest.raises(FileNotFoundError, match="none: no such folder"):
        stop_federation(tmp_path / "none", say=said.append)
    assert said == []


def test_running_services_are_stopped_and_named(folder):
    program = (
        "import signal, sys, time; from pathlib import Path\n"
        "from fedran.federation.protocol.lockfile import locked\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "with locked(Path(sys.argv[1])):\n    print('up', flush=True); time.sleep(60)"
    )
    log = folder / "sites" / "site-1" / "log"
    said = []
    with subprocess.Popen(
        [sys.executable, "-c", program, str(log)], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"up\n"
            assert stop_federation(folder, say=said.append) == ["site-1"]
            assert process.wait(10) == 0
        finally:
            process.kill()
    assert said == ["stopped: site-1"]
