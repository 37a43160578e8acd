"""Nodes of the SuperLink: keys registered, who is connected, who lacks the newest head."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from fedran.core.errors import Refused
from fedran.federation.ops import flower
from fedran.federation.server.settings import ServerPaths
from fedran.wire.files import read_json_object, write_atomically

log = logging.getLogger(__name__)
GONE = "not found"
"""What Flower says of a node that it does not know."""
PATIENCE = 10
"""A node that did not take a head is asked again after so many looks, then twice as many, ..."""


class Registry:
    """What the server's program looks at from time to time, and writes down for ``status``."""

    def __init__(self, place: ServerPaths, *, named: bool) -> None:
        self.place, self.named = place, named
        self.patience: dict[str, tuple[int, int]] = {}
        """Node -> looks to wait, and how many the next time."""

    def look(self, *, catch_up: bool) -> None:
        """Register new keys, note nodes and runs, hand the head to who came back.

        Where Flower does not answer, the next look may do better.
        """
        try:
            listed = flower.ask(self.place, "supernode", "list", flower.LINK)["nodes"]
            nodes = [n for n in listed if n["status"] != "unregistered"]
            if self.named:
                self.reconcile({str(n["node-id"]) for n in nodes})
                self.register()
            runs = flower.ask(self.place, "list", flower.LINK)["runs"]
            self.note(nodes, runs)
            if catch_up and not any(active(run) for run in runs):
                self.catch_up(nodes)
        except Exception as reason:  # the server runs on, whatever it was
            log.warning("looking at nodes and runs: %s: %s", type(reason).__name__, reason)

    def reconcile(self, listed: set[str]) -> None:
        """Forget nodes that Flower has lost, and let it forget those that we do not know.

        A crash between the two, or a new database of Flower's, is mended so.
        """
        known = read_json_object(self.place.registered_nodes)
        kept = {client: pair for client, pair in known.items() if pair[0] in listed}
        if kept != known:
            self._remember(kept)
        for number in listed - {pair[0] for pair in kept.values()}:
            self._tell("unregister", number, "nobody")

    def register(self) -> None:
        """Let exactly the nodes whose keys lie in ``nodes/`` connect; remember their numbers."""
        known, keys = read_json_object(self.place.registered_nodes), self._keys()
        for client, (number, key) in list(known.items()):
            if keys.get(client) != key and self._tell("unregister", number, client):
                log.info("node of %s may no longer connect", client)
                del known[client]
                self._remember(known)
        for client in sorted(keys.keys() - known.keys()):
            path = str(self.place.nodes / f"{client}.pub")
            told = self._tell("register", path, client, "--name", client)
            if told:
                log.info("node of %s may connect", client)
                known[client] = [str(told["node-id"]), keys[client]]
                self._remember(known)

    def _keys(self) -> dict[str, str]:
        found = {}
        for path in self.place.nodes.glob("*.pub"):
            try:
                found[path.stem] = path.read_text()
            except (OSError, ValueError) as reason:
                log.warning("%s: %s", path.name, reason)
        return found

    def _tell(self, verb: str, what: str, client: str, *more: str) -> dict[str, Any]:
        """Flower's answer; nothing, and a warning, where it refuses this one key."""
        try:
            return flower.ask(self.place, "supernode", verb, what, flower.LINK, *more)
        except Refused as reason:
            if verb == "unregister" and GONE in str(reason).lower():
                return {"success": True}
            log.warning("node of %s: %s", client, reason)
            return {}

    def _remember(self, known: dict[str, Any]) -> None:
        write_atomically(self.place.registered_nodes, json.dumps(known).encode())

    def note(self, nodes: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
        """Write ``state/flower.json``."""
        owner = self.place.node_owners()
        note = {
            "at": time.time(),
            "nodes": [
                {
                    "node_id": str(n["node-id"]),
                    "client": owner.get(str(n["node-id"]), ""),
                    "status": n["status"],
                    "last_seen": n["online-at"] if n["status"] == "online" else n["offline-at"],
                }
                for n in nodes
            ],
            "runs": [note_of(run) for run in runs[:100]],
        }
        self.place.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.place.state / "flower.json", json.dumps(note).encode())

    def catch_up(self, nodes: list[dict[str, Any]]) -> None:
        """Start a run without a task where a connected node lacks the newest head."""
        served = read_json_object(self.place.state / "served.json")
        if not served.get("head"):
            return
        here = {str(n["node-id"]) for n in nodes if n["status"] == "online"}
        have = set(map(str, served.get("nodes", [])))
        for node in have:
            self.patience.pop(node, None)
        lacking = [n for n in sorted(here - have) if self._due(n)]
        if lacking:
            log.info("%d sites came back: handing them the newest head", len(lacking))
            flower.ask(self.place, "run", ".", flower.LINK)

    def _due(self, node: str) -> bool:
        wait, turn = self.patience.get(node, (0, PATIENCE))
        self.patience[node] = (wait - 1, turn) if wait else (turn, 2 * turn)
        return not wait


def active(run: dict[str, Any]) -> bool:
    """Whether a run has not ended."""
    return not str(run["status"]).startswith("finished")


def note_of(run: dict[str, Any]) -> dict[str, Any]:
    """The part of Flower's record of a run that we keep."""
    traffic = run.get("network-traffic", {})
    return {
        "run_id": str(run["run-id"]),
        "status": run["status"],
        "transport_up": int(traffic.get("inbound-bytes", 0)),
        "transport_down": int(traffic.get("outbound-bytes", 0)),
        "transport": int(traffic.get("total-bytes", 0)),
    }
