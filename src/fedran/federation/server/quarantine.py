"""Which uploads wait for a person: those that are unusual beside what other sites sent.

An upload is compared with figures of other sites only. Nothing that limits its influence is
divided by a number that the sender chose.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedran.core.features import row_energy_range
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label
from fedran.federation.protocol.identity import SUM, Statement, UploadId
from fedran.federation.protocol.receipts import Code, UploadRefused
from fedran.federation.protocol.roster import Roster

NewClasses = Literal["open", "wait"]
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
    """Whether uploads with classes that no accepted upload has wait."""


DEFAULT_THRESHOLDS = Thresholds()


@dataclass(frozen=True)
class Figures:
    """The figures of one upload with which uploads of other sites are compared."""

    rows: int
    energy: float
    cut: float
    sites: int
    """1, or the number of sites whose rows a forwarded sum holds."""
    classes: tuple[Label, ...]


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


def check_class_quota(
    statement: Statement, found: Figures, history: Mapping[UploadId, Figures], quota: int
) -> None:
    """Refuse a site that has sent more classes than its quota, over all of its uploads."""
    earlier = (f.classes for (client, _), f in history.items() if client == statement.client)
    total = len(set(found.classes).union(*earlier))
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
    history: Mapping[UploadId, Figures],
    known: tuple[Label, ...],
    thresholds: Thresholds,
    fingerprint: Fingerprint,
    cap: int | None,
) -> str:
    """Why a person has to decide about an upload; empty for a usual one.

    ``history`` holds the figures of accepted uploads, ``known`` their classes, ``cap`` the rows
    that the roster allows.
    """
    if thresholds.new_classes == "wait":
        new = [c for c in found.classes if c not in known]
        if new:
            return f"new classes {', '.join(map(repr, new[:5]))}" + (", ..." if new[5:] else "")
    others = _by_site(client, history)
    median_rows = statistics.median(o.rows for o in others) if others else None
    limit = cap
    if limit is None and median_rows is None:
        limit = thresholds.first_rows * found.sites
        if found.rows > limit:
            return f"{found.rows} rows, and no other site has sent an upload yet"
    elif limit is None and median_rows is not None:
        limit = round(thresholds.row_multiple * max(1.0, median_rows) * found.sites)
        if found.rows > limit:
            times = found.rows / found.sites / max(1.0, median_rows)
            return f"{found.rows} rows, {times:.3g} times the median of the other sites"
    assert limit is not None
    mean = found.energy / max(1, found.rows)
    usual = statistics.median(o.row_energy for o in others) if others else 0.0
    usual = usual or mean
    if not usual / SCALE_MULTIPLE <= mean <= SCALE_MULTIPLE * usual:
        return f"mean row energy {mean:.3g}, {mean / usual:.3g} times the other sites' median"
    if found.energy > ENERGY_MULTIPLE * limit * usual:
        return f"an energy of {found.energy:.3g}, where {limit * usual:.3g} would be usual"
    share = statistics.median(o.cut_share for o in others) if others else 0.0
    if found.cut > max(CUT_SHARE, CUT_MULTIPLE * share) * found.rows * usual:
        return f"{found.cut / found.energy:.0%} of the energy is declared as cut"
    lowest = row_energy_range(fingerprint)
    if lowest is not None and mean < lowest[0]:
        return f"mean row energy {mean:.3g}, at least {lowest[0]:.3g} is expected; rows of zeros?"
    return ""


def usual_row_energy(history: Mapping[UploadId, Figures]) -> float:
    """The median over sites of their mean row energy; 0 without an upload."""
    return statistics.median(s.row_energy for s in _by_site("", history)) if history else 0.0


@dataclass(frozen=True)
class _Site:
    """Medians over the uploads of one site."""

    rows: float
    row_energy: float
    cut_share: float


def _by_site(sender: str, history: Mapping[UploadId, Figures]) -> list[_Site]:
    """The medians of every site but the sender."""
    uploads: dict[str, list[Figures]] = {}
    for (client, _), figures in history.items():
        if client != sender:
            uploads.setdefault(client, []).append(figures)
    return [
        _Site(
            statistics.median(f.rows / f.sites for f in of_site),
            statistics.median(f.energy / max(1, f.rows) for f in of_site),
            statistics.median(f.cut / f.energy if f.energy > 0 else 0.0 for f in of_site),
        )
        for of_site in uploads.values()
    ]
