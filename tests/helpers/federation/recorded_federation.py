"""A federation on disk whose events and Flower state are written by tests."""

import hashlib
import json
import time
from functools import cached_property

from fedran.federation.protocol.lockfile import locked
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from helpers.federation.made_federation import Sites

NAMES = ("site-1", "site-2", "site-3")


def add_row(database, client, task, *, bytes=100, rows=7, classes=(("cat", 7),)):
    """The row of an accepted upload, without the work of the checks before it."""
    with database.transaction():
        content = f"{client}, {task}".encode()
        sha256 = hashlib.sha256(content).hexdigest()
        database.sql.execute("INSERT INTO envelopes VALUES (?, ?)", (sha256, content))
        fields = {"number": database.next("uploads"), "client": client, "task": task}
        fields |= {"digest": sha256, "at": time.time(), "bytes": bytes, "rows": rows}
        fields |= {"energy": 1.0, "cut": 0.0, "revision": 0, "classes": json.dumps(classes)}
        database.put("uploads", **fields, members="[]", sum_number=0, envelope=sha256)


class RecordedFederation:
    """A folder as ``fedran federation init`` creates it, with methods that record events."""

    def __init__(self, folder):
        self.folder, self.server = folder, folder / "server"
        self.state = self.server / "state"
        self.state.mkdir(parents=True)
        toml = 'federation = "trial"\nin_features = 6\n'
        (self.server / "server.toml").write_text(toml)
        self.sites = Sites(*NAMES)
        self.sites.roster.save(self.server / "roster.toml")

    @cached_property
    def database(self):
        return Database(self.state)

    @cached_property
    def events(self):
        return EventLog(self.database)

    def store(self):
        return self.sites.store(self.state)

    def task_running(self, task):
        return locked(self.state, task=task)

    def server_running(self):
        return locked(self.server / "log")

    def task(self, task, state="open", **changes):
        fields = {"asked": NAMES, "min_clients": 2, "deadline": 60.0, "missing": []}
        self.database.set_task(task, state, **{**fields, **changes})

    def upload(self, client, task, outcome="accepted", **changes):
        if outcome == "accepted":
            add_row(self.database, client, task, **changes)
            return
        fields = {"verified": True, "bytes": 100, "reason": "", **changes}
        self.events.write("upload", client=client, task=task, outcome=outcome, **fields)

    def head(self, task, accuracy=0.5, classes=1, digest="d"):
        fields = {"bytes": 9, "accuracy": accuracy, "seconds": 1.0}
        self.database.add_head(digest, task=task, classes=classes, **fields)

    def flower(self, nodes=(), at=None):
        nodes = [dict(zip(("client", "status"), n, strict=True)) for n in nodes]
        fields = {"at": time.time() if at is None else at, "nodes": nodes}
        self.database.set_fact("flower", json.dumps(fields))
