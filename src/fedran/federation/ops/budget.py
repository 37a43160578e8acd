"""The privacy budget from the owner's side: tasks beyond it, and a second sum of a task."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import check_task
from fedran.federation.secure.coordinator import FOLDER, Coordinator
from fedran.federation.server.cohorts import members_in_quarantine
from fedran.federation.server.database import Database
from fedran.federation.server.ledger import Ledger, over_budget, spent
from fedran.federation.server.schema import Charge
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store import locked_store


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
    """The epsilon of a person with rows in every sum so far."""
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

    Charged sums that the server does not have are given up then. If it has all of them, there is
    nothing to repeat, and this is refused.
    """
    settings = paths.settings()
    if settings.noise is None:
        raise Refused("privacy", 'a federation with privacy = "dp"', settings.privacy)
    with locked_store(paths.folder, settings, check_task(task)) as store:
        ledger = Ledger(store.database)
        everything, noise = ledger.charges, settings.noise
        known = {*store.state.covered, *members_in_quarantine(store)}
        charged = [charge for charge in everything if charge.task == task]
        lost = [c for c in charged if not any((site, task) in known for site in c.sites)]
        if charged and not lost:
            raise Refused("task", "one with a sum that the server does not have", task)
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
