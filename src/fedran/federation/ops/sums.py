"""What people agree to before a secure sum: the roster, and what the sum may spend."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from fedran.core.errors import Refused
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.pinning import PinnedRoster, read_clients, roster_fingerprint
from fedran.federation.server.database import Database
from fedran.federation.server.ledger import over_budget
from fedran.federation.server.settings import ServerPaths
from fedran.federation.site.settings import OUTBOX, SitePaths


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


class OverBudget(OSError):
    """A task would exceed the privacy budget."""


def require_budget(paths: ServerPaths, task: str) -> None:
    """Refuse a new task whose sum would exceed the privacy budget, before any site is asked."""
    settings = paths.settings()
    if settings.noise is None:
        return
    with closing(Database(paths.state)) as database:
        ledger = database.ledger()
    if any(charge.task == task for charge in ledger):  # late sites may still get their results
        return
    reason = over_budget(ledger, task, settings.noise.budget, settings.total_epsilon)
    if reason:
        raise OverBudget(f"task {task} is refused: {reason}")
