"""The budget of differential privacy: which sums may be revealed, and what was spent.

A row is in one task, so it spends the epsilon of that task. A person may have rows in several
tasks. With one row in every sum they spend what all sums together do, composed exactly. Several
rows of a person in one sum are not counted: k of them have k times its mu.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedran.core.errors import Refused, check_id
from fedran.core.private.dp import Budget, composed, gaussian_epsilon
from fedran.federation.secure.attempt import Stage
from fedran.federation.secure.contribution import Content, SentNoise
from fedran.federation.secure.coordinator import OpenSum
from fedran.federation.server.database import Database
from fedran.federation.server.schema import Charge


@dataclass(frozen=True)
class Spent:
    """What was spent so far."""

    sums: int
    """Sums with noise that were revealed."""
    row: float
    """The largest epsilon of a row that is in one task."""
    person: float
    """The epsilon of a person with one row in every sum."""
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
    sites: Collection[str],
    noise: Budget,
    total_epsilon: float | None,
    accepted: Collection[int] = (),
) -> str:
    """Why a sum over these sites, with fresh noise, would exceed the budget; empty: it does not.

    ``noise.epsilon`` is the budget of a row, and ``total_epsilon`` that of a person with one
    row in every sum; None: no limit. ``accepted`` are attempts at the task whose rows may be in
    another sum, because the owner has agreed to what that costs.
    """
    before = [c for c in ledger if c.task == task and c.attempt not in accepted]
    again = sorted({site for charge in before for site in charge.sites}.intersection(sites))
    if again:
        return (
            f"rows of {', '.join(again[:5])} in task {task} were in a sum that was revealed before "
            "and have spent their epsilon; name new rows as a new task, or see what another sum "
            f"costs with `fedran federation recharge SERVER {task}`"
        )
    new = Charge(0, 0.0, task, 0, noise.epsilon, noise.delta, tuple(sites))
    now, after = (spent(charges, noise.delta).person for charges in (ledger, [*ledger, new]))
    if total_epsilon is not None and after > total_epsilon * (1 + 1e-9):
        return (
            f"total_epsilon is {total_epsilon:g}, of which {now:.3g} is spent; task {task} with "
            f"epsilon {noise.epsilon:g} would raise this to {after:.3g} (at delta "
            f"{noise.delta:g}); raise total_epsilon or lower epsilon in server.toml"
        )
    return ""


RevealedSum = tuple[str, str, float, float, tuple[str, ...]]
"""What a site reports: task, digest of the content, epsilon, delta, members."""


@dataclass(frozen=True)
class Unfinished:
    """A sum that was charged, and that the server does not have: sites may have revealed it."""

    content: Content
    omega: bytes
    participants: tuple[str, ...]
    """The sites that advertised keys. With them, the members may take part again."""
    members: tuple[str, ...]
    keys: Mapping[str, str]
    """The identity keys of its members. A site with another one may have lost its noise."""


@dataclass(frozen=True)
class Ledger:
    """Decides in a server's database which secure sums are revealed, and what each one spends.

    A charge is written before the first site is asked to reveal, and is never taken back: from then
    on the sum counts as known, whatever becomes of the attempt. A site adds its rows and its noise
    once per content, and sends the same integers in every attempt with that content. A site that
    loses its files cannot, so one that comes back with another key counts as gone. The field
    ``draw`` of the noise makes another content, with fresh noise. So there are three cases:

    1. *The same content and the same members* as a charged sum: its numbers are the same. Another
       attempt reveals nothing new, costs nothing, and needs nobody's consent.
    2. *The same content and other members*: the noise cancels in the difference of the two sums,
       except that of the sites in one of them only. A single site's share protects its rows
       much less than was promised. So this never happens: a task with an unfinished sum is
       attempted with exactly its members, and every other sum of the task has another draw.
    3. *Another draw*: the noise of the two sums is independent, so they compose. Rows of a site in
       both spend both charges, rows of a site in one of them spend that one. Rows that would spend
       more than ``epsilon`` need the owner's consent (``recharge``).

    ``tests/federation/server/test_ledger.py`` compares this with the exact mu of all sums together.
    """

    database: Database

    @property
    def charges(self) -> list[Charge]:
        """All charges, oldest first."""
        return self.database.ledger()

    def draw(self, task: str) -> int:
        """The draw of noise for a new sum of a task."""
        return int(self._read(task)["draw"])

    def accepted(self, task: str) -> tuple[int, ...]:
        """Attempts whose rows may be in another sum of the task: the owner agreed."""
        return tuple(self._read(task)["accepted"])

    def unfinished(self, task: str) -> Unfinished | None:
        """The sum that the next attempt at a task must repeat; None: there is none."""
        found = self._read(task)["unfinished"]
        if found is None:
            return None
        content, omega = Content.read(found["content"]), bytes.fromhex(found["omega"])
        participants, members = tuple(found["participants"]), tuple(found["members"])
        return Unfinished(content, omega, participants, members, found.get("keys", {}))

    def members_of_unfinished(self) -> dict[str, tuple[str, ...]]:
        """Tasks whose next attempt must repeat a sum -> the members of this sum."""
        found = {task: self.unfinished(task) for task in {charge.task for charge in self.charges}}
        return {task: known.members for task, known in found.items() if known is not None}

    def refusal(
        self,
        task: str,
        asked: Mapping[str, str],
        stored: Collection[str],
        noise: Budget | None,
        min_sites: int,
        total_epsilon: float | None,
    ) -> str:
        """Why no attempt at the sum of a task may begin; empty: one may.

        ``asked`` are the sites that may take part with their keys, ``stored`` those whose rows the
        server has.
        """
        known = self.unfinished(task)
        if known is not None:
            here = {site for site, key in asked.items() if known.keys.get(site, key) == key}
            gone, few = set(known.members) - here, len(known.members) < min_sites
            if not gone and not few:
                return ""
            if noise is not None and not (gone and gone <= set(stored)):
                why = f"{', '.join(sorted(gone)[:5])} cannot take part"
                return _cannot_finish(task, known, why if gone else f"min_sites is {min_sites} now")
            self.finish(task)  # the server has it, or it has no noise to account for
        if noise is None:
            return ""
        given = self.charges, task, asked, noise, total_epsilon
        return over_budget(*given, self.accepted(task))

    def charge(self, opened: OpenSum, total_epsilon: float | None) -> str:
        """Charge a sum that is about to be revealed; returns why it must not be, or nothing.

        If sites have revealed shares, and the ledger does not know, it is charged in any case.
        """
        task, content, members = opened.attempt.task, opened.content, opened.state.survivors
        noise, known = content.noise, self.unfinished(task)
        if known is not None:
            same = (known.content, known.members) == (content, members)
            return "" if same else _cannot_finish(task, known)
        if noise is not None and not opened.state.answered(Stage.REVEAL):
            given = self.charges, task, members, noise.budget, total_epsilon
            if reason := over_budget(*given, self.accepted(task)):
                return reason
        epsilon, delta = (math.inf, 0.0) if noise is None else (noise.epsilon, noise.delta)
        fields = {
            "content": content.fields(),
            "omega": opened.omega.hex(),
            "participants": opened.state.answered(Stage.ADVERTISE),
            "members": members,
            "keys": {member: opened.state.roster[member] for member in members},
        }
        with self.database.transaction():
            self.database.add_charge(task, opened.attempt.number, epsilon, delta, members)
            self._write(task, unfinished=fields)
        return ""

    def missing(self, revealed: Mapping[str, Collection[RevealedSum]], liars: int) -> list[Charge]:
        """Sums that more than ``liars`` sites have revealed, and that are not in the ledger.

        A restored backup does not know what was spent later. ``revealed`` says for each site what
        it reports. Sums of one task over the same sites differ by the draw of their noise.
        """
        told = Counter(one for found in revealed.values() for one in set(found))
        believed = Counter((t, e, d, sites) for (t, _, e, d, sites), n in told.items() if n > liars)
        known = Counter((c.task, c.epsilon, c.delta, c.sites) for c in self.charges)
        return [
            Charge(0, 0.0, t, 0, e, d, sites) for t, e, d, sites in (believed - known).elements()
        ]

    def facts(self) -> list[tuple[str, str]]:
        """Names and values of what was decided about the next sums, and of their numbers."""
        return self.database.rows("facts", "WHERE name = 'attempts' OR name LIKE 'sum %'")

    def carry_over(self, charges: Sequence[Charge], facts: Sequence[Sequence[str]]) -> None:
        """Add what the ledger knew that a backup replaces: a restored backup undoes no charge."""
        with self.database.transaction():
            known: defaultdict[str, dict[int, object]] = defaultdict(dict)
            for own in self.charges:
                known[own.task][own.attempt] = own.epsilon, own.delta, own.sites
            for c in charges:
                mine, terms = known[c.task], (c.epsilon, c.delta, c.sites)
                taken = mine.get(c.attempt, terms) != terms  # by another sum of the backup
                attempt = max(mine) + 1 if taken else c.attempt
                mine[attempt] = terms
                self.database.add_charge(c.task, attempt, *terms)
            for name, value in facts:
                found, before = json.loads(value), json.loads(self.database.fact(name) or "{}")
                numbers = {key: n for key, n in found.items() if isinstance(n, int)}
                larger = {key: max(n, before.get(key, n)) for key, n in numbers.items()}
                self.database.set_fact(name, json.dumps({**before, **found, **larger}))

    def finish(self, task: str) -> None:
        """The server has the sum, or gives it up. Another sum of the task gets fresh noise."""
        known = self.unfinished(task)
        if known is not None:
            used = 1 if known.content.noise is None else known.content.noise.draw
            self._write(task, unfinished=None, draw=max(self.draw(task), used + 1))

    def recharge(self, task: str, attempts: Collection[int]) -> None:
        """Give up sums of a task that were charged: their rows may be in another one."""
        with self.database.transaction():
            self.finish(task)
            accepted = sorted({*self.accepted(task), *attempts})
            self._write(task, accepted=accepted, draw=self.draw(task) + 1)

    def _read(self, task: str) -> dict[str, Any]:
        found = json.loads(self.database.fact(f"sum {task}") or "{}")
        return {"draw": 1, "accepted": [], "unfinished": None, **found}

    def _write(self, task: str, **changes: Any) -> None:
        self.database.set_fact(f"sum {task}", json.dumps({**self._read(task), **changes}))


def _cannot_finish(task: str, found: Unfinished, why: str = "") -> str:
    """A charged sum that cannot be repeated now blocks its task."""
    without = f" ({why})" if why else ""
    return (
        f"a sum of {', '.join(found.members[:5])} in task {task} was charged and may have been "
        f"revealed, so it can only be repeated with exactly these sites{without}; see what another "
        f"sum costs with `fedran federation recharge SERVER {task}`"
    )


def read_revealed(entry: object) -> RevealedSum:
    """A sum that a site reports. Every field is checked."""
    if not isinstance(entry, list) or len(entry) != 2:
        raise Refused("revealed sum", "a task and what was sent", entry)
    found = SentNoise.read(entry[1])
    return check_id(entry[0], "task"), found.content, found.epsilon, found.delta, found.members
