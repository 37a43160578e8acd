"""A real federation on loopback: SuperLink, SuperNodes, TLS and node keys, as `up` starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil

import fedran
from fedran.federation.flower.programs import free_port
from fedran.federation.ops.scaffold import make_federation
from fedran.federation.ops.services import (
    start_federation,
    start_service,
    stop_federation,
)
from fedran.federation.ops.tasks import run_task
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from fedran.federation.server.store.schema import FILE
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import SitePaths

WAIT = 240


def wait_for(ready, what, seconds=WAIT):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = ready()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {what}")


def program(place, name):
    """The process group of a service's program that runs now, such as its ``executor``."""
    holder = lock_holder(place / "log") or {}
    for process in psutil.Process(holder["pid"]).children() if "pid" in holder else ():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if f".{name}" in command or f"flower-{name}" in command:
                return process.pid
    return None


class Federation:
    """A federation with the digits as its data: ``task-1`` and ``task-2``."""

    def __init__(self, folder, sites=2, privacy="none"):
        self.folder, self.said = folder, []
        address = f"127.0.0.1:{free_port()}"
        epsilon = 8.0 if privacy == "dp" else None
        make_federation(folder, n_sites=sites, address=address, privacy=privacy, epsilon=epsilon)
        self.server = ServerPaths(folder / "server")

    def set_server(self, **settings):
        """Add or replace lines of server.toml."""
        _set(self.server.settings_file, settings)

    def set_site(self, name, **settings):
        """Add or replace lines of a site's site.toml."""
        _set(self.site(name).settings_file, settings)

    def site(self, name):
        return SitePaths(self.folder / "sites" / name)

    def up(self):
        start_federation(self.folder, say=self.said.append)

    def start_site(self, name):
        """One more site, whether its node may connect or not."""
        place = self.site(name).folder
        process = start_service("client", place)
        wait_for(lambda: lock_holder(place / "log"), "the site to start")
        process.returncode = 0  # it runs on; stopping the federation ends it

    def task(self, name, **options):
        return run_task(self.server, name, say=self.said.append, **options)

    def command(self, *arguments):
        """A command of ``fedran federation``: exit code and what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "fedran", "federation", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=WAIT,
        )
        return done.returncode, done.stdout + done.stderr

    def outbox(self, name):
        return Outbox(self.site(name).folder / "state" / "outbox")

    def head(self, name):
        path = self.site(name).folder / "state" / "head.fedran"
        return fedran.load(path) if path.is_file() else None

    def events(self, event, **fields):
        if not (self.server.state / FILE).is_file():
            return []
        with closing(Database(self.server.state, read_only=True)) as database:
            book = EventLog(database).read()
        found = [e for e in book if e["event"] == event]
        return [e for e in found if all(e.get(k) == v for k, v in fields.items())]

    def outcomes(self, client):
        """(task, outcome) of a client's uploads, in their order."""
        return [(e["task"], e["outcome"]) for e in self.events("upload", client=client)]

    def accuracy(self, name):
        """Of a site's own copy of the head, on the validation rows of its classes."""
        head = self.head(name)
        with np.load(self.server.folder / "validation.npz") as file:
            X, y = file["features"], file["labels"]
        known = np.isin(y, head.classes)
        phi = self.server.settings().offer("any").features()
        return np.mean(head.predict(phi(X[known])) == y[known])

    def kill(self, name, number=signal.SIGKILL):
        """Send a signal to a program of Flower and all it started: ``server`` or a site."""
        place = self.server.folder if name == "server" else self.site(name).folder
        for part in ("superlink" if name == "server" else "supernode", "executor"):
            os.killpg(wait_for(lambda part=part: program(place, part), part), number)

    @contextmanager
    def other_executor(self, command, environment):
        """Another program in the place of the server's executor, as an intruder may start it."""
        log = self.server.folder / "log"
        ours = wait_for(lambda: program(self.server.folder, "executor"), "the executor")
        os.killpg(ours, signal.SIGSTOP)
        with (log / "other.log").open("ab") as output:
            other = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            yield
        finally:
            other.terminate()
            other.wait(60)
            os.killpg(ours, signal.SIGCONT)

    def logs(self):
        paths = sorted(self.folder.glob("**/log/*.log"))
        return "\n".join([*self.said, *(f"{p}:\n{p.read_text()[-3000:]}" for p in paths)])

    def down(self):
        stop_federation(self.folder, say=self.said.append)


def _set(path, settings):
    lines = path.read_text().splitlines()
    kept = [x for x in lines if x.split("=")[0].strip() not in settings]
    added = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    path.write_text("\n".join([*kept, *added]) + "\n")


@contextmanager
def federation(folder: Path, sites=2, privacy="none", disk=None, **server):
    """A federation that is up, and ended afterwards whatever happens; its logs on failure."""
    found = Federation(folder, sites, privacy)
    found.set_server(**server)
    if disk is not None:
        found.server.state.symlink_to(disk)
    try:
        found.up()
        yield found
    except BaseException:
        print(found.logs())
        raise
    finally:
        found.down()
