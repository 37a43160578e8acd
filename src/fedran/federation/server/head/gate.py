"""Which uploads count: the most accurate head is served, and the site that harms it is named.

There are two kinds of evidence against a site: what all other sites say about its points, and
validation rows that are labelled better without it. Both are numbers of cases out of a number of
cases, and both are put to the same test (``is_beyond_chance``). What is set aside stays stored.
"""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

from scipy.stats import binom

from fedran.core.labels import Label, ordered
from fedran.core.solve.calibration import Calibration
from fedran.core.solve.head import Head
from fedran.core.solve.kernel_ridge import VOTE
from fedran.core.sums.stored_points import Opinion, Part
from fedran.federation.protocol.limits import FALSE_ALARMS, LEAST_SITES, MORE_WRONG
from fedran.federation.server.store.store import Store

log = logging.getLogger(__name__)
Gain: TypeAlias = tuple[float, float]
"""Validation rows that are right only without a part, and those that are right only with it."""
Opinions = Mapping[str, Mapping[Label, Opinion]]


class Validation(Protocol):
    """Rows with labels on which heads are tested: a ``ValidationSet``, or a ``SiteValidation``."""

    most_heads: int
    """Sites that are left out one by one, those with the most rows first."""

    def compare(self, heads: Iterable[tuple[Part | None, Head]]) -> dict[Part, Gain]:
        """What leaving out each part gains. The first head is the one of everything (None)."""
        ...

    def accuracy(self, head: Head) -> float | None:
        """Accuracy on the rows whose class the head knows; None if there are none."""
        ...

    def calibration(self, head: Head) -> Calibration | None:
        """What calibrates the head; None if there are no rows of its classes."""
        ...


def is_beyond_chance(cases: float, of: float, share: float, tests: int) -> bool:
    """Whether ``cases`` are too many for chance, if each of them has a probability of ``share``.

    The error rate of all tests of a round together is at most ``FALSE_ALARMS``.

    >>> is_beyond_chance(9, 9, 0.25, 20), is_beyond_chance(9, 12, 0.25, 20)
    (True, False)
    """
    return bool(binom.sf(int(cases) - 1, int(of), share) < FALSE_ALARMS / max(1, tests))


@dataclass(frozen=True)
class SetAside:
    """A site, or one class of a site, without which the head is better; or one that waits."""

    client: str
    label: Label | None
    """None: everything of the site."""
    evidence: str
    """points, rows, alone or size."""
    cases: float = 0.0
    of: float = 0.0
    usual: float = 0.0
    """The share of such cases at the other sites."""

    @property
    def part(self) -> Part:
        """The part of the uploads that is left out."""
        return self.client, self.label

    @property
    def waits(self) -> bool:
        """Whether nothing speaks against it, and nobody can vouch for it yet."""
        return self.evidence in ("alone", "size")

    @property
    def reason(self) -> str:
        """One sentence for the operator."""
        return {
            "points": f"the other sites give another label to {self.cases:.0f} of {self.of:.0f} of "
            f"its points, and to {self.usual:.0%} of those of others",
            "rows": f"{self.cases:.0f} validation rows are labelled right only without it, "
            f"{self.of - self.cases:.0f} only with it",
            "alone": "no other site has sent this class yet",
            "size": f"the site has {self.cases:.0f} rows, more than {self.usual:.3g} times the "
            "median of the others, and no other site can vouch for them",
        }[self.evidence]

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> SetAside:
        """Inverse of ``to_json``."""
        return cls(**{field.name: given[field.name] for field in fields(cls)})

    def to_json(self) -> dict[str, Any]:
        """Its fields and the reason."""
        return {**asdict(self), "waits": self.waits, "reason": self.reason}


@dataclass(frozen=True)
class Judgement:
    """What counts in a head."""

    set_aside: tuple[SetAside, ...]
    """Also what waits."""
    opinions: Opinions
    """What the other sites say; empty for secure sums."""


class Test(NamedTuple):
    """How often the others contradict a part, and how often they contradict each other."""

    client: str
    label: Label | None
    wrong: int
    asked: int
    usual: float

    @property
    def share(self) -> float:
        """The share of its points that an honest site may have called otherwise.

        Its points may be harder than those of others, because the others know them less.
        """
        return self.usual + MORE_WRONG * (1 - self.usual)

    @property
    def part(self) -> Part:
        """What it is about."""
        return self.client, self.label

    def set_aside(self) -> SetAside:
        """The part, with this test as the evidence against it."""
        return SetAside(*self.part, "points", self.wrong, self.asked, self.usual)


def judge(
    store: Store, validation: Validation | None, before: Iterable[SetAside] = ()
) -> Judgement:
    """Decide what is set aside and what waits.

    The worst site is set aside first, and the others are judged again without it, because a liar
    makes honest sites look wrong. At the end, what was set aside is judged by all that is left.
    Without validation rows at hand, what they said ``before`` holds.
    """
    trusted, found = store.vouched, dict[Part, SetAside]()
    sums = store.settings.privacy != "none"  # of which no class can be left out
    if validation is None:
        here = {upload.client for upload in store.served.uploads.values()} - {*trusted}
        found = {a.part: a for a in before if a.evidence == "rows" and a.client in here}
    opinions = store.what_others_say(found)
    while True:
        tests = _tests(opinions, found)
        worst = _most_contradicted(tests, found, trusted)
        if not worst and validation is not None:
            worst = _worse_rows(store, validation, found, len(tests), trusted)
        if not worst:
            break
        worst = replace(worst, label=None) if sums else worst
        for part in [part for part in found if part[0] == worst.client]:
            del found[part]
        found[worst.part] = worst
        log.warning("%s is set aside: %s", _named(worst), worst.reason)
        opinions = store.what_others_say(found)
    kept = _still_contradicted(found.values(), _tests(opinions, found))
    kept = [replace(aside, label=None) for aside in kept] if sums else kept
    waiting = _waiting(store, opinions, {aside.part for aside in kept}, trusted)
    return Judgement((*kept, *waiting), opinions)


def _named(found: SetAside) -> str:
    return found.client if found.label is None else f"{found.client}, class {found.label}"


def _tests(opinions: Opinions, found: Collection[Part]) -> list[Test]:
    """One per site and one per class of a site, as far as another site can vouch for the class.

    A site is compared with at least two others that count.
    """
    heard: dict[str, dict[Label, Opinion]] = {
        client: {label: o for label, o in said.items() if o.vouched >= VOTE}
        for client, said in opinions.items()
    }
    counted = {
        (client, label)
        for client, said in heard.items()
        for label in said
        if (client, None) not in found and (client, label) not in found
    }
    wrong, asked = Counter[Label](), Counter[Label]()
    for client, label in counted:
        wrong[label] += heard[client][label].wrong
        asked[label] += heard[client][label].asked

    def compared(client: str, labels: Collection[Label], label: Label | None) -> Test:
        """The points of a site against those of the other sites that count."""
        own = [heard[client][c] for c in labels if (client, c) in counted]
        classes = labels if label is not None else asked
        others = sum(asked[c] for c in classes) - sum(o.asked for o in own)
        usual = sum(wrong[c] for c in classes) - sum(o.wrong for o in own)
        mine = own or [heard[client][c] for c in labels]
        figures = sum(o.wrong for o in mine), sum(o.asked for o in mine)
        return Test(client, label, *figures, usual / others if others else 0.0)

    tests = []
    for client, said in heard.items():
        others = {name for name, _ in counted if name != client}
        if said and len(others) + 1 >= LEAST_SITES:
            tests += [compared(client, [label], label) for label in said]
            tests.append(compared(client, list(said), None))
    return tests


def _blamed(tests: Sequence[Test], site: Test, known: Collection[Label | None]) -> Test | None:
    """What the others contradict of a site: one class, if that explains it, else the site.

    ``known`` are classes of it that are set aside already, which are not part of ``site``.
    """

    def is_contradicted(wrong: int, asked: int, share: float) -> bool:
        return is_beyond_chance(wrong, asked, share, len(tests))

    mine = [t for t in tests if t.client == site.client and t.label is not None]
    against = [t for t in mine if is_contradicted(t.wrong, t.asked, t.share)]
    new = [t for t in against if t.label not in known]
    if len(new) == 1 and not known:
        (one,) = new
        if not is_contradicted(site.wrong - one.wrong, site.asked - one.asked, site.share):
            return one
    return site if new or is_contradicted(site.wrong, site.asked, site.share) else None


def _most_contradicted(
    tests: Sequence[Test], found: Collection[Part], trusted: Collection[str]
) -> SetAside | None:
    """The part to set aside of the site with the largest share of contradicted points."""
    for site in sorted((t for t in tests if t.label is None), key=lambda t: -t.wrong / t.asked):
        if (site.client, None) not in found and site.client not in trusted:
            known = {label for client, label in found if client == site.client}
            if (test := _blamed(tests, site, known)) is not None:
                return test.set_aside()
    return None


def _still_contradicted(found: Collection[SetAside], tests: Sequence[Test]) -> list[SetAside]:
    """What was set aside, as the sites that are left say it; what they confirm counts again."""
    kept, about = [], {test.part: test for test in tests}
    for aside in found:
        test = about.get(aside.part)
        if aside.evidence == "rows":
            kept.append(aside)
        elif test is not None and aside.label is None:
            blamed = _blamed(tests, test, ())
            kept += [blamed.set_aside()] if blamed is not None else []
        elif test is not None and is_beyond_chance(test.wrong, test.asked, test.share, len(tests)):
            kept.append(test.set_aside())
    return kept


def _worse_rows(
    store: Store,
    validation: Validation,
    found: Collection[Part],
    tests: int,
    trusted: Collection[str],
) -> SetAside | None:
    """The site without which most validation rows are gained, by more than chance.

    If leaving out one of its classes gains as many, it is that class.
    """
    rows, labels = Counter[str](), dict[str, set[Label]]()
    for upload in store.served.uploads.values():
        rows[upload.client] += upload.rows
        labels.setdefault(upload.client, set()).update(label for label, _ in upload.classes)
    out = {client for client, label in found if label is None}
    clients = [client for client, _ in rows.most_common() if client not in out]
    clients = [client for client in clients if client not in trusted][: validation.most_heads]

    def heads(parts: Iterable[Part]) -> Iterator[tuple[Part | None, Head]]:
        for part in (None, *parts):
            head = store.candidate([*found, *([part] if part else [])])
            if head is not None:
                yield part, head

    if not clients or len(rows.keys() - out) < 2:
        return None
    compared = validation.compare(heads((client, None) for client in clients))
    worse = {
        part: gain
        for part, gain in compared.items()
        if is_beyond_chance(gain[0], sum(gain), 0.5, tests + len(clients))
    }
    if not worse:
        return None
    part = max(worse, key=lambda p: worse[p][0] - worse[p][1])
    gain, client = worse[part], part[0]
    if store.settings.privacy == "none" and not any(known == client for known, _ in found):
        named = [(client, c) for c in ordered(labels[client])][: validation.most_heads]
        for other, more in validation.compare(heads(named)).items():
            if more[0] - more[1] >= gain[0] - gain[1]:
                part, gain = other, more
    return SetAside(*part, "rows", gain[0], sum(gain), 0.5)


def _waiting(
    store: Store, opinions: Opinions, found: Collection[Part], trusted: Collection[str]
) -> Iterator[SetAside]:
    """Classes that one site alone has, and those of a very large site for which nobody vouches.

    Classes cannot be left out of a sum. So all of a very large site waits, if nobody vouches for
    any of its classes.
    """
    settings, uploads, out = store.settings, store.served.uploads.values(), set(found)
    sizes, labels = Counter[str](), dict[str, set[Label | None]]()
    for upload in uploads:
        sizes[upload.client] += round(upload.rows / upload.sites)
        labels.setdefault(upload.client, set()).update(label for label, _ in upload.classes)
    for client in labels.keys() - set(trusted) - store.roster.rows.keys():
        others = [rows for site, rows in sizes.items() if site != client]
        if others and sizes[client] > settings.row_multiple * statistics.median(others):
            vouched = {c for c, o in opinions.get(client, {}).items() if o.vouched >= VOTE}
            waits = labels[client] - vouched
            if settings.privacy != "none":
                waits = set() if vouched else {None}
            for label in sorted(waits, key=str):
                if not {(client, None), (client, label)} & out:
                    out.add((client, label))
                    rows = sizes[client]
                    yield SetAside(client, label, "size", rows, 0, settings.row_multiple)
    have: dict[Label, set[str]] = {}
    for upload in uploads:
        for label, _ in upload.classes:
            if not {(upload.client, None), (upload.client, label)} & out:
                members = (site for site, _ in upload.members)
                have.setdefault(label, set()).update((upload.client, *members))
    opened = have.keys() if settings.trusted else set(settings.labels or ())
    for label, clients in have.items():
        if len(clients) == 1 and label not in opened and not clients & set(trusted):
            yield SetAside(next(iter(clients)), label, "alone")
