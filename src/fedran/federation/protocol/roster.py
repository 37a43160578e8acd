"""The server's list of sites: client id -> public key, a file that people edit."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedran.core.aggregator import check_id
from fedran.core.errors import Refused, nearest
from fedran.federation.protocol.identity import Statement, check_public, verify
from fedran.wire.files import read_toml, write_atomically

HEAD = "# Sites of this federation: client id = public key. A site that is removed is refused.\n"


@dataclass(frozen=True)
class Roster:
    """Who may send, under which key, and whose uploads an edge may add up."""

    clients: dict[str, str] = field(default_factory=dict)
    edges: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Edge -> its members. Nobody else's uploads can be in its sums."""

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """Read ``[clients]`` and ``[edges]`` of a TOML file; every id and key is checked."""
        fields = read_toml(path, "the roster")
        clients, edges = fields.get("clients"), fields.get("edges", {})
        if not set(fields) <= {"clients", "edges"} or not isinstance(clients, dict):
            raise Refused(str(path), "a table [clients], and maybe [edges]", sorted(fields))
        if not isinstance(edges, dict) or not all(isinstance(m, list) for m in edges.values()):
            raise Refused(str(path), "[edges] with a list of members for each edge", edges)
        return cls(
            {check_id(c, "client"): check_public(k, c) for c, k in clients.items()},
            {
                check_id(e, "client"): tuple(check_id(m, "member") for m in members)
                for e, members in edges.items()
            },
        )

    def save(self, path: str | Path) -> None:
        """Write it, crash-safe."""
        rows = [f'"{c}" = "{k}"\n' for c, k in sorted(self.clients.items())]
        if self.edges:
            rows.append("\n[edges]\n")
            rows += [f'"{e}" = {json.dumps(list(m))}\n' for e, m in sorted(self.edges.items())]
        write_atomically(path, (HEAD + "[clients]\n" + "".join(rows)).encode())

    def with_site(self, client: str, public: str) -> Roster:
        """The same with one more site; another key for a known one is refused."""
        check_id(client, "client")
        if self.clients.get(client, public) != public:
            raise Refused("client", f"a new id, or the known key of {client}", "another key")
        return replace(self, clients={**self.clients, client: check_public(public, client)})

    def without(self, client: str) -> Roster:
        """The same without a site, and without its rights as an edge."""
        if client not in self.clients:
            raise Refused("client", f"a site of the roster{nearest(client, self.clients)}", client)
        return Roster(
            {c: k for c, k in self.clients.items() if c != client},
            {e: m for e, m in self.edges.items() if e != client},
        )

    def check(self, statement: Statement, signature: bytes) -> None:
        """Refuse what is not signed by the key of the client it names, or speaks for others."""
        public = self.clients.get(statement.client)
        if public is None:
            raise Refused(
                "client",
                f"a site of the roster{nearest(statement.client, self.clients)}",
                statement.client,
                hint="add its public key to the server's roster",
            )
        verify(public, statement, signature)
        mine = self.edges.get(statement.client, ())
        foreign = sorted({c for c, _ in statement.members} - {*mine, statement.client})
        if foreign:
            raise Refused(
                "members",
                f"members that the roster lists for {statement.client}",
                foreign[:5],
                hint="list them under [edges] in the roster",
            )
