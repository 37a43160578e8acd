"""The server's view of its SuperNodes: registers keys, records who is connected, catches up."""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedran.core.errors import Refused
from fedran.federation.flower import control
from fedran.federation.protocol.keys import load_node_key
from fedran.federation.protocol.limits import ASK_AGAIN_UPDATES, ASK_SECONDS
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.database import Database

log = logging.getLogger(__name__)


class NodeRegistry:
    """Keeps Flower's list of nodes equal to the keys in ``nodes/``. Call ``update`` regularly."""

    def __init__(self, paths: ServerPaths) -> None:
        self.paths = paths
        self.head, self.updates = "", 0
        self.ask_all = time.monotonic() + ASK_SECONDS
        """When all sites are asked, because they may have revised an upload."""
        self.lacking: dict[str, int] = {}
        """Connected nodes without ``head`` -> the update at which this was noticed."""

    def update(self, *, catch_up: bool) -> None:
        """Register new keys, record nodes and runs, send the newest head to nodes without it.

        A failure is only logged, so that the server continues. The next update tries again.
        """
        try:
            nodes = control.list_nodes(self.paths)
            with closing(Database(self.paths.state)) as database:
                self._register(database, {node.node_id for node in nodes})
                runs = control.list_runs(self.paths)
                owners = database.node_owners()
                online = {owners.get(node.node_id) for node in nodes if node.status == "online"}
                with database.transaction():  # for `fedran federation status`
                    for client in filter(None, online):
                        database.set_seen(client)
                    for run in runs[:100]:
                        database.set_run(run.run_id, "", run.status, run.received, run.sent)
                if catch_up and not any(run.active for run in runs):
                    self._catch_up(database, nodes)
        except Exception as reason:
            log.warning("nodes and runs were not updated: %s: %s", type(reason).__name__, reason)

    def _register(self, database: Database, listed: set[str]) -> None:
        """Allow exactly the nodes whose keys are in ``nodes/`` to connect; store their ids.

        ``listed`` are the nodes that Flower knows. Our list and Flower's list differ after a crash
        between the two, or with a new database of Flower. Nodes that only one of them contains, or
        whose key has changed, are removed first, and registered again if their key is present.
        """
        keys = {}
        for path in self.paths.nodes.glob("*.pub"):
            try:
                keys[path.stem] = path.read_text()
            except (OSError, ValueError) as reason:
                log.warning("%s: %s", path.name, reason)
        stored = database.nodes()
        known = {
            client: (node, key)
            for client, (node, key) in stored.items()
            if node in listed and keys.get(client) == key
        }
        if known != stored:
            database.set_nodes(known)
        names = {node: client for client, (node, _) in stored.items()}
        for node in listed - {node for node, _ in known.values()}:
            client = names.get(node, "an unknown site")
            try:
                control.unregister_node(self.paths, node)
            except control.FlowerError as reason:  # the next update tries again
                log.warning("node of %s: %s", client, reason, extra={"site": client})
            else:
                said = {"site": client, "decision": "removed"}
                log.info("the node of %s may no longer connect", client, extra=said)
        for client in sorted(keys.keys() - known.keys()):
            _free_key(self.paths.flower / "state.db", keys[client])
            try:
                node = control.register_node(self.paths, keys[client], client)
            except control.FlowerError as reason:
                log.warning("node of %s: %s", client, reason, extra={"site": client})
            else:
                said = {"site": client, "decision": "admitted"}
                log.info("the node of %s may connect", client, extra=said)
                known[client] = (node, keys[client])
                database.set_nodes(known)

    def _catch_up(self, database: Database, nodes: list[control.FlowerNode]) -> None:
        """Start a run without a task if a connected node lacks the newest head, or after an hour.

        Sites cannot speak first: what they have revised meanwhile comes with such a run. A node
        that still lacks the head afterwards, or from which the server waits for an upload, is asked
        again at every fifth update.
        """
        head, current = database.served()
        if not head:
            return
        if head != self.head:
            self.head, self.lacking = head, {}
        self.updates += 1
        lacking = {n.node_id for n in nodes if n.status == "online"} - current
        self.lacking = {node: self.lacking.get(node, self.updates) for node in lacking}
        waited = [self.updates - since for since in self.lacking.values()]
        due = sum(updates % ASK_AGAIN_UPDATES == 0 for updates in waited)
        if due:
            log.info("sending the newest head to connected sites that lack it: %d", due)
        if due or time.monotonic() >= self.ask_all:
            self.ask_all = time.monotonic() + ASK_SECONDS
            control.start_run(self.paths)


def disconnect(paths: ServerPaths, client: str) -> bool:
    """Take a site's node from Flower's list now; whether that was possible.

    Otherwise, for example where the server does not run, the next update of the registry does it.
    """
    try:
        with closing(Database(paths.state)) as database:
            nodes = database.nodes()
            if client in nodes:
                control.unregister_node(paths, nodes.pop(client)[0])
                database.set_nodes(nodes)
    except OSError as reason:
        log.info("the node of %s is still listed: %s", client, reason)
        return False
    return True


def _free_key(database: Path, key: str) -> None:
    """Make Flower accept the key of an unregistered node again.

    Flower keeps such keys in its database and refuses them for ever. This would lock out a site
    that is removed and added again, or whose registration is not in a restored backup.
    """
    if not database.is_file():
        return
    try:
        pem = load_node_key(key).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with closing(sqlite3.connect(database, timeout=5.0)) as sql, sql:
            sql.execute(
                "UPDATE node SET public_key = CAST(node_id AS BLOB) "
                "WHERE status = 'unregistered' AND public_key = ?",
                (pem,),
            )
    except (Refused, sqlite3.Error) as reason:
        log.warning("Flower's record of an earlier node was not changed: %s", reason)
