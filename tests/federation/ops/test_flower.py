"""The answers of ``flwr``, and what they mean."""

import socket
import subprocess
import sys

import pytest

pytest.importorskip("cryptography")

from fedran.federation.ops import flower
from fedran.federation.ops.scaffold import make_server
from fedran.federation.server.settings import WITHOUT_KEYS, ServerPaths, ServerSettings


@pytest.fixture
def place(tmp_path):
    (tmp_path / "flower" / "app").mkdir(parents=True)
    return ServerPaths(tmp_path)


def test_no_answer_within_the_time_limit_is_an_error(place, monkeypatch):
    hanging = [sys.executable, "-S", "-c", "import time; time.sleep(30)"]
    run = subprocess.run
    monkeypatch.setattr(flower, "_executable", lambda name: name)
    monkeypatch.setattr(flower.subprocess, "run", lambda command, **how: run(hanging, **how))
    with pytest.raises(flower.FlowerError, match=r"flwr list: no answer within 0\.2 s"):
        flower.flwr(place, "list", timeout=0.2)


def test_a_run_is_active_until_it_is_finished_in_any_way():
    for status in ("finished:completed", "finished:failed", "finished:stopped"):
        assert not flower.is_active({"status": status})
    for status in ("pending", "starting", "running"):
        assert flower.is_active({"status": status})


def test_a_run_without_measured_traffic_has_zero_bytes():
    assert flower.traffic({"run-id": 3, "status": "running"}) == (0, 0)


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ('print(\'{"success": false, "error-message": "no\\\\n such"}\')', 1, "failed: no such"),
        ("import sys; sys.stderr.write('cannot\\nconnect')", 1, "failed: cannot connect"),
        ("print('nothing like it')", 0, "failed: nothing like it"),
        ("print('')", 0, "failed: no answer"),
        ("print('[1]')", 0, "failed: no answer"),
        ("print('{\"nodes\": []}')", 0, "failed: no answer"),
    ],
)
def test_an_error_of_flwr_is_one_sentence(said, code, words, place, monkeypatch):
    run = subprocess.run

    def fake(command, **how):
        return run([sys.executable, "-S", "-c", f"{said}\nraise SystemExit({code})"], **how)

    monkeypatch.setattr(flower, "_executable", lambda name: name)
    monkeypatch.setattr(flower.subprocess, "run", fake)
    with pytest.raises(flower.FlowerError, match=words) as caught:
        flower.flwr(place, "supernode", "list", flower.CONNECTION)
    assert str(caught.value).startswith("flwr supernode list failed: ")
    assert "\n" not in str(caught.value)


def test_output_around_the_json_answer_is_skipped(place, monkeypatch):
    run = subprocess.run

    def fake(command, **how):
        said = "print('Loading ...'); print('{\"success\": true, \"runs\": [1]}'); print('done')"
        return run([sys.executable, "-S", "-c", said], **how)

    monkeypatch.setattr(flower, "_executable", lambda name: name)
    monkeypatch.setattr(flower.subprocess, "run", fake)
    assert flower.flwr(place, "list")["runs"] == [1]


def test_addresses_of_both_kinds_are_reached(tmp_path, monkeypatch):
    """A server on all interfaces, and one on an IPv6 address, is reached from its own machine."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    for family, given, host in (
        (socket.AF_INET, "0.0.0.0", "127.0.0.1"),
        (socket.AF_INET6, "[::]", "::1"),
        (socket.AF_INET6, "[::1]", "::1"),
    ):
        with socket.socket(family) as listener:
            try:
                listener.bind((host, 0))
            except OSError:
                pytest.skip("no IPv6 loopback here")
            port = listener.getsockname()[1]
            address = f"{given}:{port}"
            assert not flower.is_listening(address)
            listener.listen()
            assert flower.is_listening(address)


def test_a_server_on_an_ipv6_address_gets_flowers_arguments(tmp_path, monkeypatch):
    paths = make_server(tmp_path / "s", ServerSettings("trial", 4, address="[::1]:9443"))
    monkeypatch.setattr(flower, "_executable", lambda name: name)
    command, _ = flower.superlink(paths, insecure=False)
    assert command[command.index("--host") + 1 : command.index("--host") + 4] == [
        "::1",
        "--port",
        "9443",
    ]
    assert 'address = "[::1]:9443"' in (paths.flower / "config.toml").read_text()
    assert command[command.index("--isolation") + 1] == "process"
    secret = paths.runtime / "secret"
    assert command[command.index("--superexec-auth-secret-file") + 1] == str(secret)
    assert secret.stat().st_mode & 0o077 == 0
    for insecure in (False, True):
        program, given = flower.server_executor(paths, insecure=insecure)
        assert given[WITHOUT_KEYS] == str(int(insecure))
        assert given["FEDRAN_SERVER"] == str(paths.settings_file)
        assert (str(paths.tls / "ca.crt") in program) != insecure
        assert secret.read_bytes().hex() not in " ".join(program)  # other users see the command
