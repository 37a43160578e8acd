"""The budget of differential privacy: what was spent, and whether another sum fits.

A row is in one task, so it spends the epsilon of that task. A person may have rows in several
tasks, or at several sites. In the worst case they are in every sum, and spend what all sums
together do, composed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedran.core.dp import Budget, composed, gaussian_epsilon
from fedran.federation.server.entries import Charge


@dataclass(frozen=True)
class Spent:
    """What was spent so far."""

    sums: int
    """Sums with noise that were revealed."""
    row: float
    """The largest epsilon of a row that is in one task."""
    person: float
    """The epsilon of a person with rows in every sum."""
    delta: float
    without_noise: int
    """Sums without noise that were revealed. Nothing limits what they tell about their rows."""


def spent(ledger: Sequence[Charge], delta: float) -> Spent:
    """Add up a ledger. Rows of a site spend every sum of their task in which the site was.

    The epsilons are those at ``delta``, over all sums with noise.

    >>> charges = [Charge(i, 0.0, f"task-{i}", 1, 1.0, 1e-5, ("a", "b")) for i in range(4)]
    >>> found = spent(charges, 1e-5)
    >>> found.sums, round(found.row, 6), round(found.person, 2)
    (4, 1.0, 2.15)
    """
    per_row: dict[tuple[str, str], list[float]] = {}
    noisy = [charge for charge in ledger if math.isfinite(charge.epsilon)]
    everything = []
    for charge in noisy:
        mu = Budget(charge.epsilon, charge.delta).mu
        everything.append(mu)
        for site in charge.sites:
            per_row.setdefault((site, charge.task), []).append(mu)
    row = max((composed(mus) for mus in per_row.values()), default=0.0)
    person = gaussian_epsilon(composed(everything), delta)
    without = len(ledger) - len(noisy)
    return Spent(len(noisy), gaussian_epsilon(row, delta), person, delta, without)


def over_budget(
    ledger: Sequence[Charge],
    task: str,
    sites: Sequence[str],
    noise: Budget,
    total_epsilon: float | None,
) -> str:
    """Why a sum over these sites would exceed the budget; empty if it does not.

    ``noise.epsilon`` is the budget of a row, and ``total_epsilon`` that of a person; None: every
    person has rows in one task only.
    """
    again = sorted({s for c in ledger if c.task == task for s in c.sites} & set(sites))
    if again:
        return (
            f"rows of {', '.join(again[:5])} in task {task} were in a sum that was revealed before "
            "and have spent their epsilon; name new rows as a new task"
        )
    new = Charge(0, 0.0, task, 0, noise.epsilon, noise.delta, tuple(sites))
    before, after = (spent(charges, noise.delta).person for charges in (ledger, [*ledger, new]))
    if total_epsilon is not None and after > total_epsilon * (1 + 1e-9):
        return (
            f"total_epsilon is {total_epsilon:g}, of which {before:.3g} is spent; task {task} with "
            f"epsilon {noise.epsilon:g} would raise this to {after:.3g} (at delta "
            f"{noise.delta:g}); raise total_epsilon or lower epsilon in server.toml"
        )
    return ""
