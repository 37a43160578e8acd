"""Which uploads wait for a person: those that are unusual beside what other sites sent.

An upload is compared with figures of other sites only. Nothing that limits its influence is
divided by a number that the sender chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedran.core.errors import shortened
from fedran.core.features import row_energy_range
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label
from fedran.federation.protocol.identity import SUM, Statement, UploadId
from fedran.federation.protocol.receipts import Code, UploadRefused
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.history import Figures, History

NewClasses = Literal["open", "wait", "task"]
ENERGY_MULTIPLE = 10.0
"""An upload waits if it has more energy than this multiple of what other sites' rows would have,
for as many rows as the sender may send."""
SCALE_MULTIPLE = 100.0
"""An upload waits if its mean row energy differs from that of the other sites by this factor.
This finds features of the wrong scale. A sender can avoid it, so nothing depends on it."""
CUT_SHARE, CUT_MULTIPLE = 0.5, 3.0
"""An upload waits if it declares as cut more than this share of the energy that rows of other
sites would have, and more than this multiple of their median share. The ridge grows with the
cut."""


@dataclass(frozen=True)
class Thresholds:
    """From which size on an upload waits for a person."""

    row_multiple: float = 5.0
    """Multiple of the other sites' median rows per task."""
    first_rows: int = 10_000
    """Rows of an upload while no other site has sent one."""
    new_classes: NewClasses = "open"
    """Whether classes that no accepted upload has are accepted, wait, or are opened per task."""


DEFAULT_THRESHOLDS = Thresholds()


def represented_sites(members: Sequence[UploadId]) -> int:
    """The number of sites whose rows an upload describes: one, or those of a forwarded sum."""
    return sum(SUM not in task for _, task in members) if members else 1


def check_row_cap(statement: Statement, rows: int, roster: Roster) -> int | None:
    """Refuse more rows than the roster allows the sender per task; returns the cap, if any.

    A forwarded sum may hold as many rows as its members together. A cap for the edge itself
    takes precedence.
    """
    cap = roster.rows.get(statement.client)
    if cap is None and statement.members:
        caps = [roster.rows.get(c) for c, task in statement.members if SUM not in task]
        cap = sum(c for c in caps if c is not None) if None not in caps else None
    if cap is not None and rows > cap:
        raise UploadRefused(
            Code.TOO_MANY_ROWS,
            "rows",
            f"at most {cap} per task, as the roster says for {statement.client}",
            rows,
            hint="the server's owner can raise the cap under [rows] in the roster",
        )
    return cap


def check_class_quota(statement: Statement, found: Figures, history: History, quota: int) -> None:
    """Refuse a site that has sent more classes than its quota, over all of its uploads."""
    total = len(history.classes_of(statement.client).union(found.classes))
    if total > quota * found.sites:
        raise UploadRefused(
            Code.TOO_MANY_CLASSES,
            "classes",
            f"at most {quota} per site over all tasks (`classes_per_site`)",
            total,
        )


def why_unusual(
    client: str,
    found: Figures,
    history: History,
    known: tuple[Label, ...],
    thresholds: Thresholds,
    fingerprint: Fingerprint,
    cap: int | None,
) -> str:
    """Why a person has to decide about an upload; empty for a usual one.

    ``known`` are the classes of accepted uploads, ``cap`` the rows that the roster allows.
    """
    if thresholds.new_classes == "wait":
        new = [c for c in found.classes if c not in known]
        if new:
            return f"new classes {shortened([repr(c) for c in new], 5)}"
    others = history.usual(client)
    limit = cap
    if limit is None and others is None:
        limit = thresholds.first_rows * found.sites
        if found.rows > limit:
            return f"{found.rows} rows, and no other site has sent an upload yet"
    elif limit is None and others is not None:
        limit = round(thresholds.row_multiple * max(1.0, others.rows) * found.sites)
        if found.rows > limit:
            times = found.rows / found.sites / max(1.0, others.rows)
            return f"{found.rows} rows, {times:.3g} times the median of the other sites"
    assert limit is not None
    mean = found.energy / max(1, found.rows)
    usual = (others.row_energy if others else 0.0) or mean
    if not usual / SCALE_MULTIPLE <= mean <= SCALE_MULTIPLE * usual:
        return f"mean row energy {mean:.3g}, {mean / usual:.3g} times the other sites' median"
    if found.energy > ENERGY_MULTIPLE * limit * usual:
        return f"an energy of {found.energy:.3g}, where {limit * usual:.3g} would be usual"
    share = others.cut_share if others else 0.0
    if found.cut > max(CUT_SHARE, CUT_MULTIPLE * share) * found.rows * usual:
        return f"{found.cut / found.energy:.0%} of the energy is declared as cut"
    lowest = row_energy_range(fingerprint)
    if lowest is not None and mean < lowest[0]:
        return f"mean row energy {mean:.3g}, at least {lowest[0]:.3g} is expected; rows of zeros?"
    return ""
