"""Who may send: the server's roster of sites, edges and members, with their public keys."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedran.core.errors import Refused, nearest
from fedran.core.ids import check_id
from fedran.federation.protocol.identity import (
    COHORT,
    Proof,
    Statement,
    check_public,
    is_cohort,
    verify,
)
from fedran.federation.protocol.receipts import Code, UploadRefused
from fedran.wire.files import read_toml, write_atomically

HEADER = (
    "# Sites of this federation: client id = public key. A site that is removed is refused.\n"
    "# Optional tables: edges (the members of an edge), members (keys of members that only send\n"
    "# to their edge), rows (the most rows of a site per task).\n"
)
TABLES = ("clients", "edges", "members", "rows")


@dataclass(frozen=True)
class Roster:
    """The sites that may send, with their public keys: a TOML file that people edit."""

    clients: dict[str, str] = field(default_factory=dict)
    """Client -> public key."""
    edges: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Edge -> its members. Only an edge may forward sums, and only of their uploads."""
    members: dict[str, str] = field(default_factory=dict)
    """Member of an edge that never sends directly -> public key."""
    rows: dict[str, int] = field(default_factory=dict)
    """Client -> the most rows that it may send per task."""
    server_key: str = ""
    """Public key of the server, which signs secure sums of cohorts; empty: none is accepted. It is
    not in the file."""

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """Read the tables of the file. Every value is checked."""
        fields = read_toml(path, "the roster")
        clients, edges = fields.get("clients"), fields.get("edges", {})
        keys, rows = fields.get("members", {}), fields.get("rows", {})
        if not set(fields) <= set(TABLES) or not isinstance(clients, dict):
            expected = "a table [clients], and optionally [edges], [members] and [rows]"
            raise Refused(str(path), expected, sorted(fields))
        if not isinstance(keys, dict):
            raise Refused(str(path), "[members] with a public key for each member", keys)
        if not isinstance(edges, dict) or not all(isinstance(m, list) for m in edges.values()):
            raise Refused(str(path), "[edges] with a list of members for each edge", edges)
        if not isinstance(rows, dict) or not all(type(n) is int and n > 0 for n in rows.values()):
            raise Refused(str(path), "[rows] with a positive number for each site", rows)
        return cls(
            {check_id(c, "client"): check_public(k, c) for c, k in clients.items()},
            {
                check_id(e, "client"): tuple(check_id(m, "member") for m in members)
                for e, members in edges.items()
            },
            {check_id(c, "client"): check_public(k, c) for c, k in keys.items()},
            {check_id(c, "client"): n for c, n in rows.items()},
        )

    def save(self, path: str | Path) -> None:
        """Write the file, crash-safe."""
        text = HEADER
        for name in TABLES:
            table: dict[str, object] = getattr(self, name)
            if table or name == "clients":
                lines = (f'"{key}" = {json.dumps(table[key])}\n' for key in sorted(table))
                text += ("" if name == "clients" else "\n") + f"[{name}]\n" + "".join(lines)
        write_atomically(path, text.encode())

    def with_site(self, client: str, public: str) -> Roster:
        """A roster with one more site. Another key for a known site is refused."""
        if is_cohort(check_id(client, "client")):
            raise Refused("client", f"an id that does not begin with {COHORT!r}", client)
        if self.clients.get(client, public) != public:
            raise Refused(
                "client",
                f"a new id, or the known key of {client}",
                "another key",
                hint="if the site has new keys, and its operator confirms this, use --replace",
            )
        return replace(self, clients={**self.clients, client: check_public(public, client)})

    def with_member(self, edge: str, client: str, public: str) -> Roster:
        """A roster with one more member of an edge. Another key for a known one is refused."""
        check_id(client, "client")
        if edge not in self.clients or edge == client:
            others = [name for name in self.clients if name != client]
            raise Refused("edge", f"another site of the roster{nearest(edge, others)}", edge)
        if self.key_of(client) not in (None, public):
            raise Refused("client", f"a new id, or the known key of {client}", "another key")
        own = dict.fromkeys((*self.edges.get(edge, ()), client))
        members = {**self.members, client: check_public(public, client)}
        if client in self.clients:
            members = self.members
        return replace(self, edges={**self.edges, edge: tuple(own)}, members=members)

    def with_other_key(self, client: str, public: str) -> Roster:
        """A roster in which a known site has another key. Its cap and its members stay."""
        self._require_known(client)
        key = check_public(public, client)
        clients, members = (
            {**keys, client: key} if client in keys else keys
            for keys in (self.clients, self.members)
        )
        return replace(self, clients=clients, members=members)

    def without(self, client: str) -> Roster:
        """A roster without a site, without its rights as an edge and as a member of one."""
        self._require_known(client)
        return Roster(
            {c: k for c, k in self.clients.items() if c != client},
            {
                e: tuple(m for m in members if m != client)
                for e, members in self.edges.items()
                if e != client
            },
            {c: k for c, k in self.members.items() if c != client},
            {c: n for c, n in self.rows.items() if c != client},
        )

    def key_of(self, client: str) -> str | None:
        """The public key of a site or of a member of an edge; None if there is none."""
        return self.clients.get(client) or self.members.get(client)

    def _require_known(self, client: str) -> None:
        known = {**self.clients, **self.members}
        if client not in known:
            raise Refused("client", f"a site of the roster{nearest(client, known)}", client)

    def check(self, statement: Statement, signature: bytes, proofs: tuple[Proof, ...] = ()) -> None:
        """Refuse an unknown client, a wrong signature, and members that did not sign.

        ``proofs`` are the members' own signatures over their uploads. An edge can therefore name
        nobody who sent it nothing.
        """
        cohort = bool(self.server_key) and is_cohort(statement.client)
        public = self.server_key if cohort else self.clients.get(statement.client)
        if public is None:
            raise UploadRefused(
                Code.UNKNOWN_CLIENT,
                "client",
                f"a site of the roster{nearest(statement.client, self.clients)}",
                statement.client,
                hint="`fedran federation add` with its enrolment.toml admits it",
            )
        verify(public, statement, signature)
        own = set(self.clients if cohort else self.edges.get(statement.client, ()))
        own -= {statement.client}
        foreign = sorted({client for client, _ in statement.members} - own)
        if foreign:
            raise UploadRefused(
                Code.FOREIGN_MEMBERS,
                "members",
                f"members that the roster lists for {statement.client}",
                foreign[:5],
                hint="list them under [edges] in the roster",
            )
        if cohort:  # its members signed the list of survivors, and no upload of their own
            return
        if tuple(proof.statement.key for proof in proofs) != statement.members:
            raise UploadRefused(
                Code.BAD_SIGNATURE,
                "proofs",
                "the signature of every member, in the order of the members",
                f"{len(proofs)} signatures for {len(statement.members)} members",
            )
        for proof in proofs:
            self._check_proof(proof, statement)

    def _check_proof(self, proof: Proof, total: Statement) -> None:
        """Refuse a member's statement that it did not sign, or that is for another sum."""
        said = proof.statement
        public = self.key_of(said.client)
        if public is None:
            raise UploadRefused(
                Code.UNKNOWN_CLIENT,
                "members",
                f"members whose keys are known{nearest(said.client, self.clients)}",
                said.client,
                hint="`fedran federation add SERVER enrolment.toml --edge EDGE` adds a member",
            )
        verify(public, said, proof.signature)
        said.check_sum_name()
        same = (said.federation, said.fingerprint) == (total.federation, total.fingerprint)
        if not same or not set(said.members) <= set(total.members):
            raise Refused("proofs", "statements about this federation, feature map and sum", said)
