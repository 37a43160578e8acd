"""Labels that people may have meant to be the same, and labels that a federation does not know."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from fedran.core.errors import printable, shortened
from fedran.core.labels import Label
from fedran.federation.protocol.identity import is_cohort

MAX_NAMED = 5
"""Labels that one sentence names."""


def spelling(label: Label) -> str:
    """What labels have in common that differ in type, case, spaces or punctuation.

    >>> spelling("Digit 1") == spelling("digit_1"), spelling(1) == spelling("1")
    (True, True)
    """
    text = str(label)
    letters = "".join(c for c in text.casefold() if c.isalnum())
    return f"-{letters}" if text.startswith("-") else letters or text


def number_in(label: Label) -> str | None:
    """The number at the end of a word, as in "digit 1"; None for other labels.

    >>> number_in("digit 01"), number_in(1), number_in("-1")
    ('1', None, None)
    """
    found = re.fullmatch(r"[^\W\d_]+([0-9]{1,9})", spelling(label))
    return str(int(found[1])) if found else None


def variants(labels: Iterable[Label]) -> list[tuple[Label, ...]]:
    """Groups of different labels that may be meant as one, in the given order.

    >>> variants([1, "1", "Cat", "cat ", "dog", "digit 1"])
    [(1, '1', 'digit 1'), ('Cat', 'cat ')]
    """
    spelled = {label: spelling(label) for label in labels}
    known, groups = set(spelled.values()), dict[str, list[Label]]()
    for label, form in spelled.items():
        number = number_in(label)
        groups.setdefault(number if number in known else form, []).append(label)
    return [tuple(group) for group in groups.values() if len(group) > 1]


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
        *first, last = (printable(repr(label)) for label in group)
        names = f"{', '.join(first)} and {last}"
        origin = ", ".join(sites[rarest][:3])
        rare = printable(repr(rarest))
        found.append(f"{names} may be meant as one class; {rare} comes from {origin}.")
    alone = [
        f"{printable(repr(c))} ({who[0]})"
        for c, who in sites.items()
        if len(who) == 1 and not is_cohort(who[0])
    ]
    if len(by_site) > 1 and alone:
        found.append(f"Only one site has: {shortened(alone, MAX_NAMED)}.")
    return found
