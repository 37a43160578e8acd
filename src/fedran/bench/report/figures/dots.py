"""The methods of one setting and beta as dots: accuracy, bytes, kind, and who belongs to a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedran.bench.report.figures.chart import MUTED, STYLES, Style
from fedran.bench.report.tables.table import MIB
from fedran.bench.report.verdict import MIXTURE, OURS, PAPER, leaders, role
from fedran.bench.results.grouping import Group, as_text, setting_phrase
from fedran.bench.results.metrics import is_prompted, is_trained

Point = tuple[float, float]
SIZES = {"fedran": ("rank",), "fedran-mixture": ("group_size", "min_group")}
"""Methods with messages of several sizes, and the settings that change the size."""
GREY, GREY_POOLED = "other methods", "others, all rows in one place"
KINDS = STYLES | {GREY: Style(MUTED, "o"), GREY_POOLED: Style(MUTED, "o", dashed=True)}
"""Colour and marker of each kind of dot."""
OVERVIEW = (
    *("fedran-paper", "fedran-mixture", "fedran", "stsa", "afl", "fedcgs", "gh-ofl-lda"),
    *("fedpft", "fedncm", "loranpac", "ranpac", "send-features-8bit", "send-images"),
)
"""The methods of the overview. In every figure they are labelled before the others."""


@dataclass(frozen=True)
class Dot:
    """A method at one size of its message. Dots with the same line are connected."""

    name: str
    size: float
    """MiB."""
    accuracy: float
    kind: str
    """Its role, or grey."""
    competes: bool
    trained: bool = False
    """Whether its accuracy may be too low for the axis."""
    line: str = ""
    width: object = None
    """The number M of random features, of a method that has it."""


def pareto_front(points: Iterable[Point]) -> list[Point]:
    """The (bytes, accuracy) points for which no other is as cheap and as accurate.

    >>> pareto_front([(1, 50), (2, 40), (3, 60), (3, 55)])
    [(1, 50), (3, 60)]
    """
    kept: list[Point] = []
    for size, accuracy in sorted(points, key=lambda p: (p[0], -p[1])):
        if not kept or accuracy > kept[-1][1]:
            kept.append((size, accuracy))
    return kept


def front_of(dots: Iterable[Dot]) -> list[Point]:
    """The front of the federated methods."""
    return pareto_front((d.size, d.accuracy) for d in dots if d.competes)


def find_dots(found: Sequence[Group]) -> list[Dot]:
    """The methods that send something. Leaders come first, then the overview, then by accuracy."""
    first = {id(g): i for i, g in enumerate(leaders(found).values())}
    order = {key: i for i, key in enumerate(OVERVIEW)}

    def place(g: Group) -> tuple[int, int, float]:
        return first.get(id(g), len(first)), order.get(g.key, len(order)), -g.A_T.mean

    members = sorted(found, key=place)
    return [
        Dot(
            g.name if id(g) in first else _short_name(g, [o for o in members if o.key == g.key]),
            g.largest_upload / MIB,
            g.A_T.mean,
            _kind(g, id(g) in first),
            g.competes,
            is_trained(g.first) and not is_prompted(g.first),
            _line(g),
            g.params.get("out_features"),
        )
        for g in members
        if g.largest_upload > 0
    ]


def _kind(g: Group, leads: bool) -> str:
    """The role of a leader and of all sizes of our messages; otherwise grey."""
    kind = role(g)
    if leads or kind in (OURS, MIXTURE):
        return kind
    return GREY if g.competes else GREY_POOLED


def _line(g: Group) -> str:
    """Equal for the groups that differ only in the size of their message."""
    if g.key not in SIZES:
        return ""
    return as_text({"key": g.key} | {k: v for k, v in g.params.items() if k not in SIZES[g.key]})


def _short_name(g: Group, peers: Sequence[Group]) -> str:
    """The size of a message, and its settings that are not the usual ones; else the name."""
    if g.key == "fedran-paper":
        return PAPER
    step = SIZES.get(g.key, ("",))[0]
    if step not in g.params or len(peers) == 1:
        return g.name
    words = [setting_phrase(step, g.params[step])]
    for k, v in g.params.items():
        usual = Counter(as_text(p.params.get(k)) for p in peers).most_common(1)[0][0]
        if k == "task0" or (k not in SIZES[g.key] and as_text(v) != usual):
            words.append(setting_phrase(k, v))
    return ", ".join(words)
