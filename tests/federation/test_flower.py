"""Two sites and a server on Flower: real processes, loopback only."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedran
from fedran.federation.identity import SiteKey
from fedran.federation.outbox import Outbox
from fedran.federation.roster import Roster

BIN = Path(sys.executable).parent
APP = """
[project]
name = "fedran-app"
version = "1.0.0"
description = "A federation of fedran"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedran"
[tool.flwr.app.components]
serverapp = "fedran.federation.server_app:app"
clientapp = "fedran.federation.client_app:app"
[tool.flwr.app.config]
task = ""
"""
SERVER = """
federation = "trial"
in_features = 16
out_features = 256
budget_bytes = 50000
min_clients = 2
deadline = 80
"""
LINK = """
[superlink]
default = "trial"
[superlink.trial]
address = "127.0.0.1:{port}"
insecure = true
"""
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}
WAIT = 150


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rows(task, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(60) % 3 + 3 * task
    return rng.random((60, 16)) + 2 * np.eye(16)[y], y


class Federation:
    """A SuperLink, two SuperNodes and their folders."""

    def __init__(self, folder):
        self.folder, self.port, self.processes = folder, free_port(), []
        self.environment = {
            **os.environ,
            **OFFLINE,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "home"),
        }
        roster = Roster()
        for name in ("site-1", "site-2"):
            place = folder / name
            (place / "data").mkdir(parents=True)
            key = SiteKey.generate()
            key.save(place / "site.key")
            roster = roster.with_site(name, key.public)
            (place / "site.toml").write_text(
                f'federation = "trial"\nclient = "{name}"\nfolder = "data"\n'
            )
            for task in (0, 1):
                X, y = rows(task, len(name) + task)
                np.savez(place / "data" / f"task-{task}.npz", features=X, labels=y)
        roster.save(folder / "roster.toml")
        for path, text in (
            ("server.toml", SERVER),
            ("app/pyproject.toml", APP),
            ("home/config.toml", LINK.format(port=self.port)),
        ):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)

    def start(self):
        here = f"127.0.0.1:{self.port}"
        self.run("FEDRAN_SERVER", "server.toml", "superlink", "--port", str(self.port))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.3)
        for name in ("site-1", "site-2"):
            port = ("--superlink", here, "--port", str(free_port()))
            self.run("FEDRAN_SITE", f"{name}/site.toml", "supernode", *port)

    def run(self, variable, path, program, *more):
        log = (self.folder / f"{program}-{len(self.processes)}.log").open("w")
        with log:
            process = subprocess.Popen(
                [str(BIN / f"flower-{program}"), "--host", "127.0.0.1", "--insecure", *more],
                env={**self.environment, variable: str(self.folder / path)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)

    def flwr(self, *arguments):
        return subprocess.run(
            [str(BIN / "flwr"), *arguments],
            cwd=self.folder / "app",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT,
        ).stdout

    def task(self, name):
        """Run one task to its end; Flower's record of the run."""
        before = len(self.runs())
        self.flwr("run", ".", "trial", "--run-config", f'task="{name}"')
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            runs = self.runs()
            if len(runs) > before and runs[0]["status"].startswith("finished"):
                return runs[0]
            time.sleep(1)
        raise AssertionError(self.logs())

    def runs(self):
        text = self.flwr("list", "trial", "--format", "json")
        return json.loads(text)["runs"] if text.strip().startswith("{") else []

    def logs(self):
        return "\n".join(p.read_text()[-3000:] for p in sorted(self.folder.glob("*.log")))

    def stop(self):
        for process in self.processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=10)


@pytest.fixture
def federation(tmp_path):
    found = Federation(tmp_path)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.mark.skipif(os.name != "posix", reason="the federation runs on Linux")
def test_two_sites_learn_two_tasks(federation):
    for task in (0, 1):
        done = federation.task(f"task-{task}")
        assert done["status"] == "finished:completed", federation.logs()
        assert done["network-traffic"]["total-bytes"] > 0
        for name in ("site-1", "site-2"):
            state = federation.folder / name / "state"
            receipt = Outbox(state / "outbox").receipt(f"task-{task}")
            assert (receipt.outcome, receipt.client) == ("accepted", name)
            head = fedran.load(state / "head.fedran")
            assert head.classes == tuple(range(3 * (task + 1)))
    X, y = (np.concatenate(parts) for parts in zip(rows(0, 50), rows(1, 51), strict=True))
    phi = fedran.RandomFeatures(16, 256, seed=0, source="")
    assert np.mean(head.predict(phi(X)) == y) > 0.9
