"""The command lines of Flower's programs."""

import json
import socket

import pytest

pytest.importorskip("cryptography")

from fedran.federation.flower import programs
from fedran.federation.ops.scaffold import make_server
from fedran.federation.server.settings import OWNER, ServerSettings


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
            assert not programs.is_listening(address)
            listener.listen()
            assert programs.is_listening(address)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's libraries
def test_a_server_on_an_ipv6_address_gets_flowers_arguments(tmp_path):
    paths = make_server(tmp_path / "s", ServerSettings("trial", 4, address="[::1]:9443"))
    command, _ = programs.superlink(paths)
    assert command[command.index("--host") + 1 : command.index("--host") + 4] == [
        "::1",
        "--port",
        "9443",
    ]
    owner = json.loads((paths.runtime / OWNER).read_text())
    assert owner["address"] == "[::1]:9443"
    assert owner["secret"] not in " ".join(command)
    assert command[command.index("--isolation") + 1] == "process"
    secret = paths.runtime / "secret"
    assert (paths.runtime / OWNER).stat().st_mode & 0o077 == 0
    assert command[command.index("--superexec-auth-secret-file") + 1] == str(secret)
    assert secret.stat().st_mode & 0o077 == 0
    program, given = programs.server_executor(paths)
    assert given["FEDRAN_SERVER"] == str(paths.settings_file)
    assert str(paths.tls / "ca.crt") in program
    assert secret.read_bytes().hex() not in " ".join(program)  # other users see the command


def test_no_environment_opens_ports_of_the_superlink_beside_the_gate(tmp_path, monkeypatch):
    paths = make_server(tmp_path / "s", ServerSettings("trial", 4, address="127.0.0.1:9443"))
    for api in ("CONTROL", "FLEET"):
        monkeypatch.setenv(f"FLWR_INTERNAL_GRPC_{api}_API", "1")
        assert programs.superlink(paths)[1][f"FLWR_INTERNAL_GRPC_{api}_API"] != "1"


def test_idle_threads_of_openblas_sleep_unless_the_environment_says_otherwise(
    tmp_path, monkeypatch
):
    paths = make_server(tmp_path / "s", ServerSettings("trial", 4, address="127.0.0.1:9443"))
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    _, environment = programs.server_executor(paths)
    assert environment["OPENBLAS_THREAD_TIMEOUT"] == "8"
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "20")
    _, environment = programs.server_executor(paths)
    assert environment["OPENBLAS_THREAD_TIMEOUT"] == "20"
