"""Who may send: the server's roster of sites with their public keys."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedran.core.errors import Refused, check_id, nearest
from fedran.federation.protocol.identity import (
    COHORT,
    Statement,
    check_public,
    verify,
)
from fedran.federation.protocol.receipts import Code, UploadRefused
from fedran.wire.files import read_toml, write_atomically

HEADER = "# Sites of this federation: client id = public key. A site that is removed is refused.\n"


@dataclass(frozen=True)
class Roster:
    """The sites that may send, with their public keys: a TOML file that people edit."""

    clients: dict[str, str] = field(default_factory=dict)
    """Client -> public key."""
    server_key: str = ""
    """Public key of the server, which signs secure sums of cohorts; empty: none is accepted. It is
    not in the file."""

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """Read the file. Every value is checked."""
        fields = read_toml(path, "the roster")
        clients = fields.get("clients")
        if set(fields) != {"clients"} or not isinstance(clients, dict):
            raise Refused(str(path), "a table [clients], and nothing else", sorted(fields))
        return cls({check_id(c, "client"): check_public(k, c) for c, k in clients.items()})

    def save(self, path: str | Path) -> None:
        """Write the file, crash-safe."""
        lines = [f'"{c}" = {json.dumps(key)}\n' for c, key in sorted(self.clients.items())]
        write_atomically(path, "".join([HEADER, "[clients]\n", *lines]).encode())

    def with_site(self, client: str, public: str, *, replace_key: bool = False) -> Roster:
        """A roster with one more site, or with another key of a known site."""
        if check_id(client, "client").startswith(COHORT):
            raise Refused("client", f"an id that does not begin with {COHORT!r}", client)
        if replace_key:
            self._require_known(client)
        elif self.clients.get(client, public) != public:
            raise Refused(
                "client",
                f"a new id, or the known key of {client}",
                "another key",
                hint="if the site has new keys, and its operator confirms this, use --replace",
            )
        return replace(self, clients={**self.clients, client: check_public(public, client)})

    def without(self, client: str) -> Roster:
        """A roster without a site."""
        self._require_known(client)
        return replace(self, clients={c: k for c, k in self.clients.items() if c != client})

    def _require_known(self, client: str) -> None:
        if client not in self.clients:
            expected = f"a site of the roster{nearest(client, self.clients)}"
            raise Refused("client", expected, client)

    def check(self, statement: Statement, signature: bytes) -> None:
        """Refuse an unknown client, a wrong signature, and members of which none may be listed.

        The members of a secure sum have signed its list of survivors, and no upload of their own.
        """
        cohort = statement.sum_number > 0
        public = self.server_key if cohort else self.clients.get(statement.client)
        if not public:
            raise UploadRefused(
                Code.UNKNOWN_CLIENT,
                "client",
                f"a site of the roster{nearest(statement.client, self.clients)}",
                statement.client,
                hint="`fedran federation add` with its enrolment.toml admits it",
            )
        verify(public, statement, signature)
        may_list = {(client, statement.task) for client in self.clients} if cohort else set()
        foreign = sorted(set(statement.members) - may_list)
        if foreign or (cohort and not statement.members):
            expected = "sites of the roster with the task of the sum" if cohort else "none"
            raise UploadRefused(Code.FOREIGN_MEMBERS, "members", expected, foreign[:5])
