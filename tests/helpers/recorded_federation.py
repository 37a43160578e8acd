"""A federation on disk whose events and Flower state are written by tests."""

import json
import time
from functools import cached_property

from fedran.federation.protocol.identity import Statement
from fedran.federation.protocol.lockfile import locked
from fedran.federation.server.database import Database
from fedran.federation.server.events import EventLog
from helpers.made_federation import Sites

NAMES = ("site-1", "site-2", "site-3")


class RecordedFederation:
    """A folder as ``fedran federation init`` creates it, with methods that record events."""

    def __init__(self, folder):
        self.folder, self.server = folder, folder / "server"
        self.state = self.server / "state"
        self.state.mkdir(parents=True)
        toml = 'federation = "trial"\nin_features = 6\nout_features = 48\n'
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
        self.events.write("task", task=task, state=state, **{**fields, **changes})

    def upload(self, client, task, outcome="accepted", **changes):
        fields = {"verified": True, "bytes": 100, "rows": 7, "classes": [["cat", 7]], "members": 0}
        fields |= {"digest": f"{client}{task}", "reason": ""}
        self.events.write(
            "upload", client=client, task=task, outcome=outcome, **{**fields, **changes}
        )

    def flower(self, nodes=(), runs=(), at=None):
        nodes = [dict(zip(("client", "status", "last_seen"), n, strict=True)) for n in nodes]
        fields = {"at": time.time() if at is None else at, "nodes": nodes, "runs": list(runs)}
        self.database.set_fact("flower", json.dumps(fields))

    def quarantine(self, client, task, reason):
        statement = Statement("trial", client, task, "f" * 64, "d" * 64)
        self.database.add_waiting(statement, f"{client}, {task}".encode(), reason)
