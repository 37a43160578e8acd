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
from fedran.federation.protocol.limits import ASK_SECONDS, LONGEST_WAIT_UPDATES
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
        self.asked: dict[str, tuple[int, int]] = {}
        """Nodes to which ``head`` was sent and that have not accepted it -> the update at which
        they are asked again, and how many updates they wait after that."""

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
        between the two, or with a new database of Flower. Nodes that only one of them contains
        are removed first, and registered again if their key is present.
        """
        stored = database.nodes()
        known = {client: entry for client, entry in stored.items() if entry[0] in listed}
        if known != stored:
            database.set_nodes(known)
        for node in listed - {node for node, _ in known.values()}:
            self._unregister(node, "an unknown site")
        keys = {}
        for path in self.paths.nodes.glob("*.pub"):
            try:
                keys[path.stem] = path.read_text()
            except (OSError, ValueError) as reason:
                log.warning("%s: %s", path.name, reason)
        for client, (node, key) in list(known.items()):
            if keys.get(client) != key and self._unregister(node, client):
                said = {"site": client, "decision": "removed"}
                log.info("the node of %s may no longer connect", client, extra=said)
                del known[client]
                database.set_nodes(known)
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

    def _unregister(self, node: str, client: str) -> bool:
        """Whether Flower took the node from its list. A refusal is a warning."""
        try:
            control.unregister_node(self.paths, node)
        except control.FlowerError as reason:
            log.warning("node of %s: %s", client, reason, extra={"site": client})
            return False
        return True

    def _catch_up(self, database: Database, nodes: list[control.FlowerNode]) -> None:
        """Start a run without a task if a connected node lacks the newest head, or after an hour.

        Sites cannot speak first: what they have revised meanwhile comes with such a run. A node
        that still lacks the head afterwards, or from which the server waits for an upload, is asked
        again after ever longer waits.
        """
        head, current = database.served()
        if not head:
            return
        if head != self.head:
            self.head, self.asked = head, {}
        self.updates += 1
        self.asked = {node: asked for node, asked in self.asked.items() if node not in current}
        due = 0
        for node in {n.node_id for n in nodes if n.status == "online"} - current:
            again, wait = self.asked.get(node, (0, 2))
            if self.updates >= again:
                self.asked[node] = self.updates + wait, min(2 * wait, LONGEST_WAIT_UPDATES)
                due += 1
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
