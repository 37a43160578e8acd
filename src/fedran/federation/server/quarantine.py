"""Which uploads wait for a person: those that are unusual beside what other sites sent.

An upload is compared with figures of other sites only. Nothing that limits its influence is
divided by a number that the sender chose.
"""

from __future__ import annotations

from fedran.core.errors import shortened
from fedran.core.features import row_energy_range
from fedran.federation.protocol.receipts import Code, UploadRefused
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.schema import Upload
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.state import History, State

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


def check_row_cap(upload: Upload, roster: Roster) -> int | None:
    """Refuse more rows than the roster allows the sender per task; returns the cap, if any.

    A secure sum may hold as many rows as its members together.
    """
    caps = [roster.rows.get(site) for site, _ in upload.members or (upload.key,)]
    cap = sum(c for c in caps if c is not None) if None not in caps else None
    if cap is not None and upload.rows > cap:
        raise UploadRefused(
            Code.TOO_MANY_ROWS,
            "rows",
            f"at most {cap} per task, as the roster says for {upload.client}",
            upload.rows,
            hint="the server's owner can raise the cap under [rows] in the roster",
        )
    return cap


def check_class_quota(upload: Upload, history: History, quota: int) -> None:
    """Refuse a site that has sent more classes than its quota, over all of its uploads."""
    total = len(history.classes_of(upload.client).union(label for label, _ in upload.classes))
    if total > quota * upload.sites:
        raise UploadRefused(
            Code.TOO_MANY_CLASSES,
            "classes",
            f"at most {quota} per site over all tasks (`classes_per_site`)",
            total,
        )


def why_unusual(upload: Upload, state: State, settings: ServerSettings, roster: Roster) -> str:
    """Why a person has to decide about an upload; empty for a usual one.

    ``state`` holds the accepted uploads with which it is compared. An upload beyond the cap of the
    roster, or beyond the quota of classes, is refused.
    """
    history, rows, energy = state.history, upload.rows, state.history.scale * upload.energy
    limit = check_row_cap(upload, roster)
    check_class_quota(upload, history, settings.classes_per_site)
    if settings.new_classes == "wait":
        new = [c for c, _ in upload.classes if c not in state.aggregator.classes]
        if new:
            return f"new classes {shortened([repr(c) for c in new], 5)}"
    others = history.usual(upload.client)
    if limit is None and others is None:
        limit = settings.first_rows * upload.sites
        if rows > limit:
            return f"{rows} rows, and no other site has sent an upload yet"
    elif limit is None and others is not None:
        limit = round(settings.row_multiple * max(1.0, others.rows) * upload.sites)
        if rows > limit:
            times = rows / upload.sites / max(1.0, others.rows)
            return f"{rows} rows, {times:.3g} times the median of the other sites"
    assert limit is not None
    mean = energy / max(1, rows)
    usual = (others.row_energy if others else 0.0) or mean
    if not usual / SCALE_MULTIPLE <= mean <= SCALE_MULTIPLE * usual:
        return f"mean row energy {mean:.3g}, {mean / usual:.3g} times the other sites' median"
    if energy > ENERGY_MULTIPLE * limit * usual:
        return f"an energy of {energy:.3g}, where {limit * usual:.3g} would be usual"
    share = others.cut_share if others else 0.0
    if upload.cut > max(CUT_SHARE, CUT_MULTIPLE * share) * rows * usual:
        return f"{upload.cut / energy:.0%} of the energy is declared as cut"
    lowest = row_energy_range(settings.features().fingerprint)
    if lowest is not None and mean < lowest[0]:
        return f"mean row energy {mean:.3g}, at least {lowest[0]:.3g} is expected; rows of zeros?"
    return ""
