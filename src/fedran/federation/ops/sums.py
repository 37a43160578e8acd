"""What people agree to around secure sums: the roster, another sum of a task, and its price."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedran.core.errors import Refused, check_id
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.coordinator import FOLDER, Coordinator
from fedran.federation.secure.pinning import PinnedRoster, read_clients, roster_fingerprint
from fedran.federation.server.cohorts import members_in_quarantine
from fedran.federation.server.database import Database
from fedran.federation.server.ledger import Ledger, over_budget, spent
from fedran.federation.server.schema import Charge
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store import locked_store
from fedran.federation.site.settings import OUTBOX, SitePaths
from fedran.federation.site.sum_files import SumFiles


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


def repeat_sum(paths: SitePaths, task: str, *, another: bool) -> list[tuple[str, ...]]:
    """Let a site try again to add its rows to the secure sum of a task.

    Returns the sites of the sums in which they may be already. With ``another``, the site takes
    part in one more sum, with any sites.
    """
    with locked(paths.state / OUTBOX, paths.settings().seconds):
        files = SumFiles(paths.state)
        sent = () if another else files.retry(check_id(task, "task"))
        if another:
            files.allow_repeat(check_id(task, "task"))
    return [found.survivors or found.participants for found in sent]


class OverBudget(OSError):
    """A task would exceed the privacy budget."""


@dataclass(frozen=True)
class CostOfRepeating:
    """What another sum of a task costs, at the ``delta`` of the settings."""

    sites: tuple[str, ...]
    """Sites whose rows were in a sum of the task that may have been revealed."""
    row: float
    """The epsilon of their rows so far."""
    row_after: float
    """The epsilon of their rows after another sum."""
    person: float
    """The epsilon of a person with one row in every sum so far."""
    person_after: float
    delta: float


def require_budget(paths: ServerPaths, task: str) -> None:
    """Refuse a new task whose sum would exceed the privacy budget, before any site is asked."""
    settings = paths.settings()
    if settings.noise is None:
        return
    with closing(Database(paths.state)) as database:
        ledger = database.ledger()
    if any(charge.task == task for charge in ledger):  # late sites may still get their results
        return
    reason = over_budget(ledger, task, (), settings.noise.budget, settings.total_epsilon)
    if reason:
        raise OverBudget(f"task {task} is refused: {reason}")


def recharge(paths: ServerPaths, task: str, *, agreed: bool) -> CostOfRepeating:
    """What another sum of a task costs; if the owner ``agreed``, the next run may make it.

    Charged sums that the server does not have are given up then. If there is none, there is
    nothing to repeat, and this is refused.
    """
    settings = paths.settings()
    if settings.noise is None:
        raise Refused("privacy", 'a federation with privacy = "dp"', settings.privacy)
    with locked_store(paths.folder, settings, check_id(task, "task")) as store:
        ledger = Ledger(store.database)
        everything, noise = ledger.charges, settings.noise
        known = {*store.state.covered, *members_in_quarantine(store)}
        charged = [charge for charge in everything if charge.task == task]
        lost = [c for c in charged if not any((site, task) in known for site in c.sites)]
        if not lost:
            got = task if charged else f"{task}, of which no sum was charged"
            raise Refused("task", "one with a charged sum that the server does not have", got)
        if any(math.isinf(charge.epsilon) for charge in lost):
            raise Refused("task", "one whose sums all had noise", f"{task}, which had none")
        sites = tuple(sorted({site for charge in lost for site in charge.sites}))
        attempts = [charge.attempt for charge in lost]
        given = everything, task, sites, noise.budget, settings.total_epsilon, attempts
        if reason := over_budget(*given):
            raise OverBudget(f"another sum of task {task} is refused: {reason}")
        if agreed:
            ledger.recharge(task, attempts)
            roster, write = store.roster.clients, store.events.write
            sums = Coordinator(store.folder / FOLDER, roster, 0.0, write, 0.0)
            if task in sums.sums:
                sums.fail(task, "the owner has given it up")
    new = Charge(0, 0.0, task, 0, noise.epsilon, noise.delta, sites)
    return CostOfRepeating(
        sites,
        spent(lost, noise.delta).row,
        spent([*lost, new], noise.delta).row,
        spent(everything, noise.delta).person,
        spent([*everything, new], noise.delta).person,
        noise.delta,
    )
