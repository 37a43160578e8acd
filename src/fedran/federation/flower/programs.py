"""Flower's programs: their command lines and their environment."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import warnings
from pathlib import Path
from typing import Literal

from fedran.core.errors import MissingExtra
from fedran.federation.protocol.configuration import check_address
from fedran.federation.protocol.identity import check_private, write_private
from fedran.federation.protocol.keys import days_left, make_certificates
from fedran.federation.server.settings import APP, OWNER, REFUSED_REQUESTS, ServerPaths
from fedran.federation.site.settings import SitePaths
from fedran.wire.files import read_json_object, write_atomically

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Addresses that mean all interfaces, and one that reaches them from this machine."""
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_INTERNAL_GRPC_CONTROL_API": "0",
    "FLWR_INTERNAL_GRPC_FLEET_API": "0",
}
"""No downloads, no telemetry, and no ports of the SuperLink beside that of the gate."""
NO_SPINNING = {"OPENBLAS_THREAD_TIMEOUT": "8"}
"""Threads of OpenBLAS sleep when they have no work. By default they wait busily after each product,
which on two cores doubles the CPU of an upload, and almost its time."""
SUPERNODE_HINTS = {
    "CERTIFICATE_VERIFY_FAILED": "ca.crt belongs to another server, or the server's certificate "
    "does not contain this address",
    "[code: 2004]": "the server does not accept this node; its owner must add enrolment.toml with "
    "`fedran federation add`. After a crash, reconnecting takes a minute",
}
"""Codes in a SuperNode's output -> explanation. Every failure has the exit code 1, so that the
output is the only source. Codes are those of OpenSSL and of Flower's API errors."""
EXECUTOR = "fedran.federation.flower.executor"
SUPERLINK = "fedran.federation.flower.superlink"
APP_TEXT = """\
[project]
name = "fedran-app"
version = "1.0.0"
description = "Names the two apps of the installed package fedran; contains no code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedran"

[tool.flwr.app.components]
serverapp = "fedran.federation.flower.serverapp:app"
clientapp = "fedran.federation.flower.clientapp:app"

[tool.flwr.app.config]
task = ""
deadline = 0.0
"""


def superlink(paths: ServerPaths) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the server's SuperLink; writes Flower's configuration."""
    address = paths.settings().address
    host, port = check_address(address)
    check_private(paths.tls / "server.key", "the server's private key")
    write_interface(paths, _reachable(address))
    command = [sys.executable, "-P", "-m", SUPERLINK, str(paths.runtime)]
    command += ["--host", host, "--port", str(port)]
    command += ["--database", str(paths.flower / "state.db")]
    command += ["--disable-runtime-dependency-installation"]
    command += ["--isolation", "process"]
    command += ["--superexec-auth-secret-file", str(_new_secret(paths.runtime))]
    command += ["--ssl-certfile", str(paths.tls / "server.crt")]
    command += ["--ssl-keyfile", str(paths.tls / "server.key")]
    command += ["--ssl-ca-certfile", str(paths.tls / "ca.crt"), "--enable-supernode-auth"]
    return command, _environment(FLWR_HOME=paths.flower)


def _executor(
    side: Literal["server", "client"], paths: ServerPaths | SitePaths, address: str, ca: Path
) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the program that runs an app for its SuperLink or SuperNode."""
    variable = "FEDRAN_SERVER" if side == "server" else "FEDRAN_SITE"
    command = [sys.executable, "-P", "-m", EXECUTOR, side, str(paths.settings_file), address]
    command += [str(paths.runtime / "secret"), str(ca)]
    home = {"FLWR_HOME": paths.folder / "flower", variable: paths.settings_file}
    return command, _environment(**home)


def server_executor(paths: ServerPaths) -> tuple[list[str], dict[str, str]]:
    """The program that runs the server's app."""
    return _executor("server", paths, _reachable(paths.settings().address), paths.tls / "ca.crt")


def site_executor(paths: SitePaths, port: int) -> tuple[list[str], dict[str, str]]:
    """The program that runs the site's app, for the SuperNode that listens at ``port``."""
    return _executor("client", paths, f"127.0.0.1:{port}", paths.runtime / "ca.crt")


def supernode(paths: SitePaths, port: int) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a site's SuperNode, whose app connects to it at ``port``.

    The port is open to all users of the machine. So the app must know a secret, which is new for
    every start, and the SuperNode proves with a certificate that it is the site's own.
    """
    settings, folder, runtime = paths.settings(), paths.folder, paths.runtime
    runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (runtime / "server.crt").is_file() or days_left(runtime / "server.crt") < 30:
        shutil.rmtree(runtime)
        make_certificates(runtime)
    _new_secret(runtime)
    command = [_executable("flower-supernode"), "--superlink", settings.server]
    command += ["--host", "127.0.0.1", "--port", str(port), "--isolation", "process"]
    command += ["--superexec-auth-secret-file", str(runtime / "secret")]
    command += ["--ssl-certfile", str(runtime / "server.crt")]
    command += ["--ssl-keyfile", str(runtime / "server.key")]
    command += ["--ssl-ca-certfile", str(runtime / "ca.crt")]
    check_private(folder / settings.node_key, "the node's private key")
    command += ["--root-certificates", str(folder / settings.ca)]
    command += ["--auth-supernode-private-key", str(folder / settings.node_key)]
    return command, _environment(FLWR_HOME=folder / "flower", FEDRAN_SITE=paths.settings_file)


def is_listening(address: str) -> bool:
    """Whether a program listens at a server's address."""
    try:
        socket.create_connection(check_address(_reachable(address)), timeout=1.0).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port of this machine on which no program listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _new_secret(folder: Path) -> Path:
    """A file with a new secret that only its owner can read."""
    return _replace_private(folder / "secret", secrets.token_bytes(32))


def _replace_private(path: Path, content: bytes) -> Path:
    """Write a file that only its owner can read, in the place of an older one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    write_private(path, content)
    return path


def _reachable(address: str) -> str:
    """The address by which programs on this machine reach a server that listens at another."""
    host, port = check_address(address)
    host = LOOPBACK.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _executable(name: str) -> str:
    """The path of one of Flower's programs: beside this Python, or on the search path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise MissingExtra(f"{name} is not installed", "flower")
    return found


def _environment(**variables: str | Path) -> dict[str, str]:
    """The environment of this process, offline, with Flower's programs on the search path.

    What it says about OpenBLAS itself counts.
    """
    search = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    added = {name: str(value) for name, value in variables.items()}
    return {**NO_SPINNING, **os.environ, **OFFLINE, "PATH": search, **added}


def write_interface(paths: ServerPaths, address: str) -> None:
    """Write what ``control.py`` needs: our app, and address and secret of the owner's interface."""
    _executable("flower-superlink")  # one sentence where Flower is not installed
    from flwr.cli.build import build_fab_from_files

    with warnings.catch_warnings():  # of a library that Flower uses
        warnings.simplefilter("ignore")
        app, _ = build_fab_from_files({"pyproject.toml": APP_TEXT.encode()})
    paths.flower.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(paths.flower / APP, app)
    known = read_json_object(paths.runtime / OWNER).get("secret")
    owner = {"address": address, "secret": known or secrets.token_hex(32)}
    _replace_private(paths.runtime / OWNER, json.dumps(owner).encode())
    (paths.runtime / REFUSED_REQUESTS).unlink(missing_ok=True)
