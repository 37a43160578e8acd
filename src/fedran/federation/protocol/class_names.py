"""Labels that people may have meant to be the same, and labels that a federation does not know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fedran.core.errors import printable, shortened
from fedran.core.labels import Label, meant_as_one, number_in, spelling, variants
from fedran.federation.protocol.identity import is_cohort

MAX_NAMED = 5
"""Labels that one sentence names."""


def unknown_labels(labels: Iterable[Label], known: Collection[Label]) -> dict[Label, Label | None]:
    """Labels that are not known, each with the known label that may have been meant, if any.

    >>> unknown_labels(["1", 2, "digit 1", "cat"], [1, 2])
    {'1': 1, 'digit 1': 1, 'cat': None}
    """
    forms = {spelling(label): label for label in known}
    listed = set(known)
    return {
        label: forms.get(spelling(label), forms.get(number_in(label) or ""))
        for label in dict.fromkeys(labels)
        if label not in listed
    }


def describe_unknown(unknown: Mapping[Label, Label | None]) -> str:
    """Unknown labels for people, with what may have been meant.

    >>> describe_unknown({"1": 1, "cat": None})
    "'1' (did you mean 1?), 'cat'"
    """
    named = [
        printable(repr(label)) + ("" if meant is None else f" (did you mean {meant!r}?)")
        for label, meant in unknown.items()
    ]
    return shortened(named, MAX_NAMED)


def class_warnings(by_site: Mapping[str, Collection[Label]]) -> list[str]:
    """What an operator should look at in the classes of each site, one sentence per finding.

    A cohort has several sites, so a class that only one cohort has is nothing to look at.

    >>> class_warnings({"a": [1, 2], "b": [1, 2], "c": ["1", 2]})
    ["1 and '1' may be meant as one class; '1' comes from c.", "Only one site has: '1' (c)."]
    """
    sites: dict[Label, list[str]] = {}
    for site, labels in by_site.items():
        for label in labels:
            sites.setdefault(label, []).append(site)
    found = []
    for group in variants(sites)[:MAX_NAMED]:
        rarest = min(group, key=lambda label: len(sites[label]))
        found.append(meant_as_one(group, rarest, ", ".join(sites[rarest][:3])))
    alone = [
        f"{printable(repr(c))} ({who[0]})"
        for c, who in sites.items()
        if len(who) == 1 and not is_cohort(who[0])
    ]
    if len(by_site) > 1 and alone:
        found.append(f"Only one site has: {shortened(alone, MAX_NAMED)}.")
    return found
