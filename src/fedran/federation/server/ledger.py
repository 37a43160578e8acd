"""The budget of differential privacy: what was spent, and whether another sum fits.

A row is in one task, so it spends the epsilon of that task. A person may have rows in several
tasks, or at several sites. In the worst case they are in every sum, and spend what all sums
together do, composed exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedran.core.dp import Budget, composed, gaussian_epsilon
from fedran.federation.server.entries import Charge


@dataclass(frozen=True)
class Spent:
    """What was spent so far."""

    sums: int
    """Private sums that were revealed."""
    row: float
    """The largest epsilon of a row that is in one task."""
    person: float
    """The epsilon of a person with rows in every sum."""
    delta: float


def spent(ledger: Sequence[Charge], delta: float) -> Spent:
    """Add up a ledger. Rows of a site spend every sum of their task in which the site was.

    The epsilons are those at ``delta``.

    >>> charges = [Charge(i, 0.0, f"task-{i}", 1, 1.0, 1e-5, ("a", "b")) for i in range(4)]
    >>> found = spent(charges, 1e-5)
    >>> found.sums, round(found.row, 6), round(found.person, 2)
    (4, 1.0, 2.15)
    """
    per_row: dict[tuple[str, str], list[float]] = {}
    everything = []
    for charge in ledger:
        mu = Budget(charge.epsilon, charge.delta).mu
        everything.append(mu)
        for site in charge.sites:
            per_row.setdefault((site, charge.task), []).append(mu)
    row = max((composed(mus) for mus in per_row.values()), default=0.0)
    person = composed(everything)
    return Spent(len(ledger), gaussian_epsilon(row, delta), gaussian_epsilon(person, delta), delta)


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
    new = Charge(0, 0.0, task, 0, noise.epsilon, noise.delta, tuple(sites))
    after = spent([*ledger, new], noise.delta)
    again = sorted({s for c in ledger if c.task == task for s in c.sites} & set(sites))
    if again:
        return (
            f"rows of {', '.join(again[:5])} in task {task} have spent their epsilon in a sum that "
            "was revealed before"
        )
    if total_epsilon is not None and after.person > total_epsilon * (1 + 1e-9):
        return (
            f"all sums together would spend epsilon {after.person:.3g} at delta {noise.delta:g}, "
            f"and total_epsilon is {total_epsilon:g}"
        )
    return ""
