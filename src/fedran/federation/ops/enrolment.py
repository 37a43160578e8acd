"""How a site enters and leaves a federation.

A site writes its public keys into an enrolment file and gives it to the owner of the server, who
adds it to the roster. Nothing in the file is secret.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedran.core.errors import Refused, check_id
from fedran.federation.ops.nodes import disconnect
from fedran.federation.protocol.identity import check_public
from fedran.federation.protocol.keys import check_node_key
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.site.pinning import key_fingerprint
from fedran.federation.server.settings import ServerPaths
from fedran.wire.files import read_toml, write_atomically

ENROLMENT_FILE = "enrolment.toml"
_COMMENT = "# Give this file to the owner of the server: `fedran federation add SERVER FILE`.\n"


@dataclass(frozen=True)
class Enrolment:
    """A client id with two public keys: one signs uploads, one belongs to the site's SuperNode."""

    federation: str
    client: str
    key: str
    node: str

    @classmethod
    def load(cls, path: str | Path) -> Enrolment:
        """Read a TOML file and check every field."""
        fields = read_toml(path, "an enrolment file")
        names = {"federation", "client", "key", "node"}
        if set(fields) != names:
            raise Refused(str(path), f"{', '.join(sorted(names))}", sorted(fields))
        return cls(
            check_id(fields["federation"], "federation"),
            check_id(fields["client"], "client"),
            check_public(fields["key"], "key"),
            check_node_key(fields["node"]),
        )

    @property
    def fingerprint(self) -> str:
        """20 hexadecimal digits of all fields, which site and server compare by telephone."""
        return key_fingerprint(json.dumps(vars(self)))

    def save(self, path: str | Path) -> None:
        """Write a TOML file."""
        lines = (f"{name} = {json.dumps(value)}\n" for name, value in vars(self).items())
        write_atomically(path, (_COMMENT + "".join(lines)).encode())


def add_site(paths: ServerPaths, enrolment: Enrolment, *, replace_keys: bool = False) -> None:
    """Allow a site to upload and its node to connect; a running server notices the change.

    ``replace_keys``: the site is known and gets other keys. Uploads and connections with the old
    ones are refused from now on; uploads that were accepted remain.
    """
    federation = paths.settings().federation
    if enrolment.federation != federation:
        raise Refused("federation", federation, enrolment.federation)
    roster = Roster.load(paths.roster)
    roster = roster.with_site(enrolment.client, enrolment.key, replace_key=replace_keys)
    hint = "`fedran federation add --replace` replaces the keys of a site"
    for path in paths.nodes.glob("*.pub"):
        known_site, known_key = path.stem == enrolment.client, path.read_text() == enrolment.node
        if known_site and not known_key and not replace_keys:
            raise Refused("node", "the key it was added with", "another key", hint=hint)
        if known_key and not known_site:
            raise Refused("node", "a key of its own", f"the key of {path.stem}", hint=hint)
    roster.save(paths.roster)
    write_atomically(paths.nodes / f"{enrolment.client}.pub", enrolment.node.encode())
    if replace_keys:
        disconnect(paths, enrolment.client)


def remove_site(paths: ServerPaths, client: str) -> bool:
    """Allow a site neither to upload nor to connect, from now on. Its earlier uploads remain.

    Whether its node is disconnected already. A server that does not run does it when it starts.
    """
    roster = Roster.load(paths.roster).without(client)
    (paths.nodes / f"{client}.pub").unlink(missing_ok=True)
    roster.save(paths.roster)
    return disconnect(paths, client)
