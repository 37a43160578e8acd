"""A site's card: what it gives to the server's owner, who adds it. Nothing in it is secret."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedran.core.aggregator import check_id
from fedran.core.errors import Refused
from fedran.federation.ops.node_key import check_node_public
from fedran.federation.protocol.identity import check_public
from fedran.wire.files import read_toml, write_atomically

HEAD = "# Give this file to the server's owner: `fedran federation add SERVER FILE`.\n"


@dataclass(frozen=True)
class Card:
    """A client id with the public keys of its uploads and of its node."""

    federation: str
    client: str
    key: str
    node: str

    @classmethod
    def load(cls, path: str | Path) -> Card:
        """From a TOML file; every field is checked."""
        fields = read_toml(path, "a site's card")
        names = {"federation", "client", "key", "node"}
        if set(fields) != names:
            raise Refused(str(path), f"{', '.join(sorted(names))}", sorted(fields))
        return cls(
            check_id(fields["federation"], "federation"),
            check_id(fields["client"], "client"),
            check_public(fields["key"], "key"),
            check_node_public(fields["node"]),
        )

    def save(self, path: str | Path) -> None:
        """As TOML."""
        rows = (f"{name} = {json.dumps(value)}\n" for name, value in vars(self).items())
        write_atomically(path, (HEAD + "".join(rows)).encode())
