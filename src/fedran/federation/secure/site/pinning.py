"""The roster that a site has pinned: the only peers with whom it takes part in secure sums.

Whoever relays public keys can put himself in the middle. So a site trusts only the roster whose
fingerprint a person compared with the server's owner, for example by telephone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedran.core.errors import Refused, check_id, shortened
from fedran.federation.protocol.identity import check_public
from fedran.federation.protocol.limits import MAX_CLIENTS
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.masking.attempt import roster_digest
from fedran.federation.site.settings import OUTBOX, SitePaths
from fedran.wire.files import write_atomically

PINNED, SHOWN = "roster.pinned.json", "roster.shown.json"
"""Files in a site's state folder: the roster that it trusts, and the last one of the server."""


def roster_fingerprint(clients: Mapping[str, str]) -> str:
    """A text that two people compare: 40 hexadecimal digits in groups of four.

    It depends on every name and every public key. These are 160 bits of a SHA-256, so nobody can
    make two rosters with the same fingerprint.

    >>> roster_fingerprint({})
    '3cd1 53b9 09ad 7f8a cdcf 5cae 5180 0f4c 2863 0503'
    """
    return _in_groups(roster_digest(clients)[:40])


def key_fingerprint(public: str) -> str:
    """The public key of one site as 20 hexadecimal digits, to recognise it in a list.

    >>> key_fingerprint("ed25519:AAAA")
    '09db 28f2 cb4c f236 bcc4'
    """
    return _in_groups(hashlib.sha256(public.encode()).hexdigest()[:20])


def _in_groups(digits: str) -> str:
    return " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def read_clients(given: object) -> dict[str, str]:
    """Names and public keys of a roster in a message or a file. Every entry is checked."""
    if not isinstance(given, Mapping) or len(given) > MAX_CLIENTS:
        raise Refused("roster", f"at most {MAX_CLIENTS} sites with keys", type(given).__name__)
    return {check_id(name, "client"): check_public(key, "key") for name, key in given.items()}


@dataclass(frozen=True)
class PinnedRoster:
    """The files of a pinned roster in a site's state folder. Only a person changes them."""

    state: Path

    @property
    def clients(self) -> dict[str, str]:
        """Names and keys that were pinned; empty before the first time."""
        return self._read(PINNED)

    @property
    def shown(self) -> dict[str, str]:
        """The roster that the server showed last; empty before the first time."""
        return self._read(SHOWN)

    def marks(self, clients: Mapping[str, str]) -> dict[str, str]:
        """Site -> NEW, CHANGED or REMOVED, where a roster differs from the pinned one."""
        known = self.clients
        return {
            client: "NEW" if client not in known else "CHANGED" if client in clients else "REMOVED"
            for client in sorted({*known, *clients})
            if known.get(client) != clients.get(client)
        }

    def require(self, shown: Mapping[str, str]) -> None:
        """Keep what the server shows, and refuse it unless it is the pinned roster."""
        if shown != self.shown:
            self._write(SHOWN, shown)
        pinned = self.clients
        if shown == pinned:
            return
        differs = f"one that differs in {shortened([*self.marks(shown)], 5)}"
        raise Refused(
            "roster",
            "the one that this site has pinned" if pinned else "one that this site has pinned",
            differs if pinned else "one that nobody compared yet",
            hint="compare its fingerprint with the server's owner; `fedran federation check` at "
            "this site says how",
        )

    def pin(self, clients: Mapping[str, str], fingerprint: str) -> None:
        """Pin a roster whose fingerprint a person has compared."""
        found = roster_fingerprint(clients)
        if "".join(fingerprint.split()).lower() != found.replace(" ", ""):
            raise Refused("fingerprint", f"that of the roster, {found}", fingerprint)
        self._write(PINNED, clients)

    def _read(self, name: str) -> dict[str, str]:
        path = self.state / name
        return read_clients(json.loads(path.read_bytes())) if path.is_file() else {}

    def _write(self, name: str, clients: Mapping[str, str]) -> None:
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.state / name, json.dumps(dict(sorted(clients.items()))).encode())


def trust_roster(paths: SitePaths, fingerprint: str, file: Path | None = None) -> str:
    """Pin the roster that a site was shown, by its server or in a file; returns its fingerprint.

    A person names the fingerprint, who has compared it with the server's owner.
    """
    settings, pinned = paths.settings(), PinnedRoster(paths.state)
    clients = read_clients(Roster.load(file).clients) if file else pinned.shown
    if not clients:
        raise FileNotFoundError(
            f"{paths.folder}: no roster yet; run a task, or name the server's roster.toml with "
            "--roster"
        )
    if settings.client not in clients:
        raise Refused("roster", f"one that lists this site, {settings.client}", "others only")
    with locked(paths.state / OUTBOX, settings.seconds):
        pinned.pin(clients, fingerprint)
    return roster_fingerprint(clients)
