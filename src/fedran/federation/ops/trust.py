"""What people compare and agree to before a secure sum: the roster, and a second sum of a task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import check_task
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.pinning import PinnedRoster, read_clients, roster_fingerprint
from fedran.federation.server.settings import ServerPaths
from fedran.federation.site.settings import OUTBOX, SitePaths
from fedran.federation.site.sum_files import SumFiles


@dataclass(frozen=True)
class ShownRoster:
    """A roster as people compare it."""

    clients: dict[str, str]
    """Site -> public key."""
    fingerprint: str
    pinned: bool | None
    """Whether this site trusts it; None at a server."""
    changed: tuple[str, ...] = ()
    """Sites that differ from the roster that this site trusts."""


def show_roster(folder: Path, file: Path | None = None) -> ShownRoster:
    """The roster of a server, or the one that a site was shown: by its server, or in a file."""
    if not (folder / "site.toml").is_file():
        clients = read_clients(Roster.load(ServerPaths.find(folder).roster).clients)
        return ShownRoster(clients, roster_fingerprint(clients), None)
    pinned = PinnedRoster(SitePaths.find(folder).state)
    known = pinned.clients
    clients = read_clients(Roster.load(file).clients) if file else pinned.shown or known
    if not clients:
        raise FileNotFoundError(
            f"{folder}: no roster yet; run a task, or name the server's roster.toml with --file"
        )
    changed = tuple(sorted(c for c in {*known, *clients} if known.get(c) != clients.get(c)))
    return ShownRoster(clients, roster_fingerprint(clients), not changed, changed)


def trust_roster(folder: Path, fingerprint: str, file: Path | None = None) -> ShownRoster:
    """Pin the roster that a site was shown, if a person names its fingerprint."""
    if not (folder / "site.toml").is_file():
        raise ValueError(f"{folder}: --trust is for the folder of a site, this is another one")
    paths, shown = SitePaths.find(folder), show_roster(folder, file)
    settings = paths.settings()
    if settings.client not in shown.clients:
        raise Refused("roster", f"one that lists this site, {settings.client}", "others only")
    with locked(paths.state / OUTBOX, settings.seconds):
        PinnedRoster(paths.state).pin(shown.clients, fingerprint)
    return show_roster(folder, file)


def repeat_sum(paths: SitePaths, task: str, *, another: bool) -> list[tuple[str, ...]]:
    """Let a site try again to add its rows to the secure sum of a task.

    Returns the sites of the sums in which they may be already. With ``another``, the site takes
    part in one more sum, with any sites.
    """
    with locked(paths.state / OUTBOX, paths.settings().seconds):
        files = SumFiles(paths.state)
        sent = () if another else files.retry(check_task(task))
        if another:
            files.allow_repeat(check_task(task))
    return [found.survivors or found.participants for found in sent]
