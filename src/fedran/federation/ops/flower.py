"""Flower's own programs: how they are started here, and what its command line says."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import check_private
from fedran.federation.protocol.settings import check_address
from fedran.federation.server.settings import ServerPaths
from fedran.federation.site.settings import SitePaths
from fedran.wire.files import write_atomically

LINK = "fedran"
"""The name of the connection in Flower's configuration."""
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Nothing is fetched and nobody is told."""
_APP = """\
[project]
name = "fedran-app"
version = "1.0.0"
description = "Names the two apps of the installed package fedran; holds no code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedran"

[tool.flwr.app.components]
serverapp = "fedran.federation.server.app:app"
clientapp = "fedran.federation.site.app:app"

[tool.flwr.app.config]
task = ""
"""


def program(name: str) -> str:
    """The path of one of Flower's programs: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise ImportError(f"{name} is not installed: pip install 'fedran[flower]'")
    return found


def environment(**more: str | Path) -> dict[str, str]:
    """The environment of this process, offline, with Flower's programs on the path."""
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join((beside, os.environ.get("PATH", os.defpath)))
    return {**os.environ, **OFFLINE, "PATH": path, **{k: str(v) for k, v in more.items()}}


def superlink(place: ServerPaths, *, insecure: bool) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the server's SuperLink; its folder is made ready."""
    host, port = check_address(place.settings().address)
    _make_ready(place, f"{_reachable(host)}:{port}", insecure=insecure)
    command = [program("flower-superlink"), "--host", host, "--port", str(port)]
    command += ["--database", str(place.flower / "state.db")]
    command += ["--disable-runtime-dependency-installation"]
    if insecure:
        command += ["--insecure"]
    else:
        check_private(place.tls / "server.key", "the server's private key")
        command += ["--ssl-certfile", str(place.tls / "server.crt")]
        command += ["--ssl-keyfile", str(place.tls / "server.key")]
        command += ["--ssl-ca-certfile", str(place.tls / "ca.crt"), "--enable-supernode-auth"]
    more = {"FLWR_HOME": place.flower, "FEDRAN_SERVER": place.settings_file}
    return command, environment(**more)


def simulator(place: ServerPaths, sites: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a SuperLink that runs the sites itself, on this machine."""
    _make_ready(place, f"127.0.0.1:{port}", insecure=True)
    command = [program("flower-superlink"), "--simulation", "--insecure", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--disable-runtime-dependency-installation"]
    more = {"FLWR_HOME": place.flower, "FEDRAN_SERVER": place.settings_file, "FEDRAN_SITE": sites}
    return command, environment(**more)


def supernode(place: SitePaths, *, insecure: bool) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a site's SuperNode."""
    settings, folder = place.settings(), place.folder
    home = folder / "flower"
    home.mkdir(exist_ok=True, mode=0o700)
    command = [program("flower-supernode"), "--superlink", settings.server]
    command += ["--host", "127.0.0.1", "--port", str(free_port())]
    if insecure:
        command += ["--insecure"]
    else:
        check_private(folder / settings.node_key, "the node's private key")
        command += ["--root-certificates", str(folder / settings.ca)]
        command += ["--auth-supernode-private-key", str(folder / settings.node_key)]
    return command, environment(FLWR_HOME=home, FEDRAN_SITE=place.settings_file)


def ask(place: ServerPaths, *arguments: str, timeout: float = 60.0) -> dict[str, Any]:
    """What ``flwr ... --format json`` answers about this server's SuperLink."""
    command = [program("flwr"), *arguments, "--format", "json"]
    question = f"flwr {' '.join(arguments[:2])}"
    try:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=place.flower / "app",
            env=environment(FLWR_HOME=place.flower),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise Refused(question, f"an answer within {timeout:g} s", "none") from None
    start = done.stdout.find("{")
    try:
        found, _ = json.JSONDecoder().raw_decode(done.stdout[max(start, 0) :])
    except ValueError:
        found = {"success": False, "error-message": (done.stderr or done.stdout)[-500:]}
    answer = dict(found) if isinstance(found, Mapping) else {}
    if not answer.get("success"):
        reason = " ".join(str(answer.get("error-message", "")).split())
        raise Refused(question, "an answer", reason or "none")
    return answer


def listening(address: str) -> bool:
    """Whether something listens at a server's address."""
    host, port = check_address(address)
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((_reachable(host), port)) == 0


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in EVERYWHERE else host


def _make_ready(place: ServerPaths, address: str, *, insecure: bool) -> None:
    """Write Flower's configuration and our thin app."""
    (place.flower / "app").mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(place.flower / "app" / "pyproject.toml", _APP.encode())
    how = "insecure = true"
    if not insecure:
        how = f"root-certificates = {json.dumps(str(place.tls / 'ca.crt'))}"
    where = f"[superlink.{LINK}]\naddress = {json.dumps(address)}"
    text = f'[superlink]\ndefault = "{LINK}"\n\n{where}\n{how}\n'
    write_atomically(place.flower / "config.toml", text.encode())
