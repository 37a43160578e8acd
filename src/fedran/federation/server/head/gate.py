"""Which uploads count: the most accurate head is served, and the site that harms it is named.

There are two kinds of evidence against a site: what all other sites say about its points, and
validation rows that are labelled better without it. Both are cases out of a number of cases, and
both have a probability by chance (``SetAside.chance``). What is set aside stays stored.
"""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

from scipy.stats import betabinom, binom

from fedran.core.labels import Label, ordered
from fedran.core.solve.calibration import Calibration
from fedran.core.solve.head import Head
from fedran.core.solve.kernel_ridge import VOTE
from fedran.core.sums.stored_points import Opinion, Part
from fedran.federation.protocol.limits import ALIKE, FALSE_ALARMS
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

    def test(self, head: Head) -> tuple[float | None, Calibration | None]:
        """Accuracy on the rows whose class the head knows, and what calibrates it; None without."""
        ...


@dataclass(frozen=True)
class SetAside:
    """A site, or one class of a site, and the evidence without which it would count."""

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
    def chance(self) -> float:
        """The probability of as many cases at an honest site.

        Sites are not equally hard for the others: the share of contradicted points of an honest one
        has a Beta distribution around the usual one, as wide as if it were known from ``ALIKE``
        points. Validation rows are gained and lost with equal probability.

        >>> [round(SetAside("a", None, "points", 3, n, 0.02).chance, 5) for n in (3, 30)]
        [8e-05, 0.06097]
        """
        if self.evidence == "rows":
            return float(binom.sf(int(self.cases) - 1, int(self.of), self.usual))
        a, b = ALIKE * self.usual, ALIKE * (1 - self.usual)
        return float(betabinom.sf(self.cases - 1, self.of, a, b))

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
            "points": f"the other sites clearly give another label to {self.cases:.0f} of "
            f"{self.of:.0f} of its points, and to {self.usual:.0%} of those of others",
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


class Judgement(NamedTuple):
    """What counts in a head."""

    set_aside: tuple[SetAside, ...]
    """Also what waits."""
    opinions: Opinions
    """What the other sites say; empty for secure sums."""


def judge(
    store: Store, validation: Validation | None, before: Iterable[SetAside] = ()
) -> Judgement:
    """Decide what is set aside and what waits.

    One site is set aside after the other, because a liar makes honest sites look wrong, and what
    is left is judged again. Validation rows are asked first: liars cannot outvote them. At the end,
    what points have set aside is judged by all that is left. Without validation rows at hand, what
    they said ``before`` holds.
    """
    found = dict[Part, SetAside]()
    if validation is None:
        here = {upload.client for upload in store.served.uploads.values()} - {*store.vouched}
        found = {a.part: a for a in before if a.evidence == "rows" and a.client in here}
    while True:
        opinions = store.what_others_say(found)
        tests = _tests(opinions, found)
        worst = _worse_rows(store, validation, found, len(tests)) if validation else None
        worst = worst or _most_contradicted(store, tests, found)
        if not worst:
            break
        name = worst.client if worst.label is None else f"{worst.client}, class {worst.label}"
        log.warning("%s is set aside: %s", name, worst.reason)
        found = {p: a for p, a in found.items() if worst.label is not None or p[0] != worst.client}
        found[worst.part] = worst
    kept = [aside for aside in found.values() if aside.evidence == "rows"]
    if by_points := [aside.client for aside in found.values() if aside.evidence == "points"]:
        kept += [aside for _, aside in _contradicted(store, by_points, found)]
    waiting = _waiting(store, opinions, {aside.part for aside in kept})
    return Judgement((*kept, *waiting), opinions)


def _tests(opinions: Opinions, found: Collection[Part]) -> list[SetAside]:
    """The points against each class of a site for which another one can vouch, and each site.

    A site is compared with at least two others that count: of two, nobody knows which one is wrong.
    """
    heard: dict[str, dict[Label, Opinion]] = {
        client: {label: o for label, o in said.items() if o.vouched >= VOTE}
        for client, said in opinions.items()
    }
    counted = {
        (client, label): heard[client][label]
        for client, said in heard.items()
        for label in said
        if (client, None) not in found and (client, label) not in found
    }
    wrong, asked, tests = Counter[Label](), Counter[Label](), list[SetAside]()
    for (_, label), o in counted.items():
        wrong[label] += o.wrong
        asked[label] += o.asked
    for client, said in heard.items():
        if not said or len({name for name, _ in counted} - {client}) < 2:
            continue
        own = {label: counted[client, label] for label in said if (client, label) in counted}
        others = asked - Counter({label: o.asked for label, o in own.items()})
        against = wrong - Counter({label: o.wrong for label, o in own.items()})
        share = (against.total() + 1) / (others.total() + 2)
        usual = {c: (ALIKE * share + against[c]) / (ALIKE + others[c]) for c in said}
        for label, o in said.items():
            tests.append(SetAside(client, label, "points", o.wrong, o.asked, usual[label]))
        points = sum(o.asked for o in said.values())
        mean = sum(usual[label] * o.asked for label, o in said.items()) / points
        cases = sum(o.wrong for o in said.values())
        tests.append(SetAside(client, None, "points", cases, points, mean))
    return tests


def _most_contradicted(
    store: Store, tests: Sequence[SetAside], found: Mapping[Part, SetAside]
) -> SetAside | None:
    """The part to set aside of the sites that look so bad that chance makes one such test at most.

    They are asked about again, each without what it says itself. If several are contradicted, it is
    the one without which the others contradict each other least. If none is, two liars may hide
    each other, and all are asked about together.
    """
    known = {c for (c, label), a in found.items() if label is None or a.evidence == "points"}
    suspects = {t.client for t in tests if t.chance * len(tests) < 1} - {*known, *store.vouched}
    accused = [part for name in sorted(suspects) for part in _contradicted(store, [name], found)]
    if not accused and len(suspects) > 1:
        accused = _contradicted(store, suspects, found)
    return min(accused, key=lambda pair: pair[0], default=(0.0, None))[1]


def _contradicted(
    store: Store, clients: Collection[str], found: Collection[Part]
) -> list[tuple[tuple[float, float], SetAside]]:
    """What the others contradict of some sites, which are silent while they are asked.

    It is the class of which they contradict most points, if it is the only one and they confirm
    more of the other points than they would of a liar by chance; otherwise the site. Before it
    stand the share of points that the others contradict of each other, and the probability.
    """
    silent, accused = {*found, *((client, None) for client in clients)}, []
    opinions = store.what_others_say(silent)
    tests = _tests(opinions, silent)
    rest = [o for client, said in opinions.items() if client not in clients for o in said.values()]
    share = sum(o.wrong for o in rest) / max(1, sum(o.asked for o in rest))
    for client in sorted(clients):
        mine = [t for t in tests if t.client == client]
        least = min((t.chance for t in mine), default=1.0)
        if mine and least < FALSE_ALARMS / len(tests):
            *classes, site = mine
            guilty = [t for t in classes if 2 * t.cases > t.of]
            of = site.of - sum(t.of for t in guilty)
            right = of - site.cases + sum(t.cases for t in guilty)
            by_luck = replace(site, cases=right, of=of).chance
            is_class = len(guilty) == 1 and by_luck < FALSE_ALARMS
            accused.append(((share, least), guilty[0] if is_class else site))
    return accused


def _worse_rows(
    store: Store, validation: Validation, found: Collection[Part], tests: int
) -> SetAside | None:
    """The site or class without which most validation rows are gained, by more than chance.

    A site may lie about some classes only. So the classes of the site without which most rows are
    right are left out one by one, if these rows would be beyond chance had no row been lost.
    """
    rows, parts = Counter[str](), set[tuple[str, Label]]()
    for upload in store.served.uploads.values():
        rows[upload.client] += upload.rows
        parts |= {(upload.client, label) for label, _ in upload.classes}
    out = {client for client, label in found if label is None}
    spared = out.union(store.vouched)
    clients = [client for client, _ in rows.most_common() if client not in spared]
    if not clients or len(rows.keys() - out) < 2:
        return None

    def gains(parts: Sequence[Part]) -> list[SetAside]:
        """The rows that speak against each part."""
        some = (None, *parts[: validation.most_heads])
        heads = ((p, store.candidate([*found, p] if p else found)) for p in some)
        told = validation.compare((p, head) for p, head in heads if head is not None)
        return [SetAside(*part, "rows", g, g + lost, 0.5) for part, (g, lost) in told.items()]

    level = FALSE_ALARMS / (tests + len(clients) + len(parts))
    told = gains([(client, None) for client in clients])
    likely = max(told, key=lambda t: t.cases, default=None)
    of_points = store.settings.privacy == "none"  # of a sum, no class can be left out
    if of_points and likely and replace(likely, of=likely.cases).chance < level:
        labels = ordered({c for client, c in parts if client == likely.client})
        classes = [(likely.client, c) for c in labels if (likely.client, c) not in found]
        told = [*gains(classes), *told]
    beyond = (t for t in told if t.chance < level)
    return max(beyond, key=lambda t: 2 * t.cases - t.of, default=None)


def _waiting(store: Store, opinions: Opinions, found: Collection[Part]) -> Iterator[SetAside]:
    """Classes that one site alone has, and those of a very large site for which nobody vouches.

    Classes cannot be left out of a secure sum. So all of a very large cohort waits.
    """
    settings, uploads, out = store.settings, store.served.uploads.values(), set(found)
    trusted, sizes, labels = set(store.vouched), Counter[str](), dict[str, set[Label]]()
    for upload in uploads:
        sizes[upload.client] += round(upload.rows / upload.sites)
        labels.setdefault(upload.client, set()).update(label for label, _ in upload.classes)
    for client in sorted(sizes.keys() - trusted):
        others = [rows for site, rows in sizes.items() if site != client]
        if others and sizes[client] > settings.row_multiple * statistics.median(others):
            vouched = {c for c, o in opinions.get(client, {}).items() if o.vouched >= VOTE}
            alone = ordered(labels[client] - vouched)
            for label in alone if settings.privacy == "none" else [None]:
                if not {(client, None), (client, label)} & out:
                    out.add((client, label))
                    yield SetAside(client, label, "size", sizes[client], 0, settings.row_multiple)
    have: dict[Label, set[str]] = {}
    for upload in uploads:
        for label, _ in upload.classes:
            if not {(upload.client, None), (upload.client, label)} & out:
                have.setdefault(label, set()).update((upload.client, *dict(upload.members)))
    opened = have.keys() if settings.trusted else set(settings.labels or ())
    for label, clients in have.items():
        if len(clients) == 1 and label not in opened and not clients & trusted:
            yield SetAside(next(iter(clients)), label, "alone")
