"""The budget of differential privacy: which sums may be revealed, and what was spent.

A row is in one sum, so it spends the epsilon of that sum. A person may have rows in several tasks.
With one row in every sum they spend what all sums together do, composed exactly. Several rows of a
person in one sum are not counted: k of them have k times its mu.

A charge is written before the first site is asked to reveal, and is never taken back: from then on
the sum counts as known, whatever becomes of it, and the task has no other one. Two sums with the
same noise would differ by the noise of single sites, and with fresh noise they would spend twice.
Rows whose sum failed need a new task id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedran.core.private.dp import Budget, composed, gaussian_epsilon
from fedran.federation.secure.masking.attempt import Stage
from fedran.federation.secure.server.open_sum import OpenSum
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.schema import Charge


@dataclass(frozen=True)
class Spent:
    """What was spent so far."""

    sums: int
    """Sums with noise that were revealed."""
    row: float
    """The largest epsilon of a row."""
    person: float
    """The epsilon of a person with one row in every sum."""
    delta: float
    without_noise: int
    """Sums without noise that were revealed. Nothing limits what they tell about their rows."""


def spent(ledger: Sequence[Charge], delta: float) -> Spent:
    """Add up a ledger. The epsilons are those at ``delta``, over all sums with noise.

    >>> charges = [Charge(i, 0.0, f"task-{i}", 1, 1.0, 1e-5, ("a", "b")) for i in range(4)]
    >>> found = spent(charges, 1e-5)
    >>> found.sums, round(found.row, 6), round(found.person, 2)
    (4, 1.0, 2.15)
    """
    noisy = [charge for charge in ledger if math.isfinite(charge.epsilon)]
    mus = [Budget(charge.epsilon, charge.delta).mu for charge in noisy]
    row = gaussian_epsilon(max(mus, default=0.0), delta)
    person = gaussian_epsilon(composed(mus), delta)
    return Spent(len(noisy), row, person, delta, len(ledger) - len(noisy))


def over_budget(
    ledger: Sequence[Charge], task: str, noise: Budget, total_epsilon: float | None
) -> str:
    """Why another sum would exceed the budget of a person, ``total_epsilon``; empty: it does not.

    ``noise.epsilon`` is the budget of a row. ``total_epsilon`` None: no limit.
    """
    new = Charge(0, 0.0, task, 0, noise.epsilon, noise.delta, ())
    now, after = (spent(charges, noise.delta).person for charges in (ledger, [*ledger, new]))
    if total_epsilon is None or after <= total_epsilon * (1 + 1e-9):
        return ""
    return (
        f"total_epsilon is {total_epsilon:g}, of which {now:.3g} is spent; task {task} with "
        f"epsilon {noise.epsilon:g} would raise this to {after:.3g} (at delta "
        f"{noise.delta:g}); raise total_epsilon or lower epsilon in server.toml"
    )


def charge(database: Database, opened: OpenSum, total_epsilon: float | None) -> str:
    """Charge a sum that is about to be revealed; returns why it must not be, or nothing.

    If sites have revealed shares, and the ledger has lost the charge, it is charged in any case.
    """
    task, number, ledger = opened.attempt.task, opened.attempt.number, database.ledger()
    charged = {known.attempt for known in ledger if known.task == task}
    if number in charged:
        return ""
    noise, members = opened.content.noise, opened.state.survivors
    if not opened.state.answered(Stage.REVEAL):
        if charged:
            return f"task {task} has had its sum"
        if noise and (reason := over_budget(ledger, task, noise.budget, total_epsilon)):
            return reason
    epsilon, delta = (math.inf, 0.0) if noise is None else (noise.epsilon, noise.delta)
    database.add_charge(task, number, epsilon, delta, members)
    return ""
