"""What the server asks of a site for one task; it names sizes, never data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedran.core.aggregator import check_id
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.wire.validation import Header

LARGEST_BUDGET = 2**31
LARGEST_WIDTH = 2**17
MOST_FIELDS = 16
MOST_EARLIER = 100
FeatureSource = str | dict[str, str]
"""What made the features: a name, or a table such as backbone, weights, preprocessing."""


@dataclass(frozen=True)
class Offer:
    """A task, the feature map that everyone shares, and how large an upload may be."""

    federation: str
    task: str
    in_features: int
    out_features: int
    seed: int
    source: FeatureSource
    """Part of the fingerprint."""
    budget_bytes: int
    earlier: tuple[str, ...] = ()
    """Tasks before it: a site that was away may still have rows for them."""

    @classmethod
    def read(cls, fields: object) -> Offer:
        """From a message: every field is checked, what else it holds is not looked at."""
        if not isinstance(fields, Mapping):
            raise Refused("offer", "an object", fields)
        header = Header(dict(fields))
        return cls(
            check_id(header.text("federation", 64), "federation"),
            check_id(header.text("task", 64), "task"),
            header.integer("in_features", 1, LARGEST_WIDTH),
            header.integer("out_features", 1, LARGEST_WIDTH),
            header.integer("seed", 0, 2**32 - 1),
            check_source(header.get("source")),
            header.integer("budget_bytes", 1024, LARGEST_BUDGET),
            _tasks(fields.get("earlier", ())),
        )

    def fields(self) -> dict[str, Any]:
        """As plain values, for a message."""
        return asdict(self)

    def features(self) -> RandomFeatures:
        """The feature map."""
        return RandomFeatures(self.in_features, self.out_features, self.seed, source=self.source)

    def require(self, federation: str, source: FeatureSource | None) -> None:
        """Refuse an offer of another federation, or for features that this site has not."""
        if self.federation != federation:
            raise Refused("federation", federation, self.federation)
        if source is not None:
            require_source(source, self.source)


def _tasks(given: object) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or len(given) > MOST_EARLIER:
        raise Refused("earlier", f"at most {MOST_EARLIER} tasks", given)
    return tuple(check_id(task, "task") for task in given)


def check_source(given: object) -> FeatureSource:
    """What a fingerprint can hold, and no more of it than a message should carry.

    >>> check_source({"backbone": "mine", "weights": "ab12"})
    {'backbone': 'mine', 'weights': 'ab12'}
    """
    texts = list(given.values()) if isinstance(given, dict) else [given]
    if not 0 < len(texts) <= MOST_FIELDS or not all(isinstance(text, str) for text in texts):
        raise Refused("source", f"text, or a table of 1 to {MOST_FIELDS} texts", given)
    assert isinstance(given, (str, dict))
    try:
        RandomFeatures(1, 1, source=given)
    except ValueError as reason:
        raise Refused("source", "what a fingerprint can hold", str(reason)) from None
    return given


def require_source(mine: FeatureSource, theirs: FeatureSource) -> None:
    """Refuse features that two sides make differently; the sentence names both.

    >>> require_source("a", {"backbone": "a"})
    """
    here, there = ({"backbone": s} if isinstance(s, str) else s for s in (mine, theirs))
    differing = [k for k in sorted({*here, *there}) if here.get(k) != there.get(k)]
    if differing:
        raise Refused(
            "source",
            "features made in the same way at the site and at the server",
            ", ".join(
                f"{k} {here.get(k, 'absent')!r} at the site and {there.get(k, 'absent')!r} at the "
                "server"
                for k in differing
            ),
            hint="correct source in the configuration of one of them",
        )
