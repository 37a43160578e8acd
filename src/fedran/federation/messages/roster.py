"""The server's list of sites: client id -> public key, a file that people edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fedran.core.aggregator import check_id
from fedran.core.errors import Refused, nearest
from fedran.federation.messages.identity import Statement, check_public, verify
from fedran.wire.files import read_toml, write_atomically

HEAD = "# Sites of this federation: client id = public key. A site that is removed is refused.\n"


@dataclass(frozen=True)
class Roster:
    """Who may send, and under which key."""

    clients: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """Read ``[clients]`` of a TOML file; every id and key is checked."""
        fields = read_toml(path, "the roster")
        clients = fields.get("clients")
        if set(fields) != {"clients"} or not isinstance(clients, dict):
            raise Refused(str(path), "one table [clients]", sorted(fields))
        return cls({check_id(c, "client"): check_public(k, c) for c, k in clients.items()})

    def save(self, path: str | Path) -> None:
        """Write it, crash-safe."""
        rows = [f'"{c}" = "{k}"\n' for c, k in sorted(self.clients.items())]
        write_atomically(path, (HEAD + "[clients]\n" + "".join(rows)).encode())

    def with_site(self, client: str, public: str) -> Roster:
        """The same with one more site; another key for a known one is refused."""
        check_id(client, "client")
        if self.clients.get(client, public) != public:
            raise Refused("client", f"a new id, or the known key of {client}", "another key")
        return Roster({**self.clients, client: check_public(public, client)})

    def without(self, client: str) -> Roster:
        """The same without a site."""
        if client not in self.clients:
            raise Refused("client", f"a site of the roster{nearest(client, self.clients)}", client)
        return Roster({c: k for c, k in self.clients.items() if c != client})

    def check(self, statement: Statement, signature: bytes) -> None:
        """Refuse what is not signed by the key of the client it names."""
        public = self.clients.get(statement.client)
        if public is None:
            raise Refused(
                "client",
                f"a site of the roster{nearest(statement.client, self.clients)}",
                statement.client,
                hint="add its public key to the server's roster",
            )
        verify(public, statement, signature)
