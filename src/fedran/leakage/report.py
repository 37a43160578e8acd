"""What the attacks on a message found, beside the limits that a site sets itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fedran.core.labels import Label
from fedran.leakage.attacks import FLOORS, GAP, HEADS, MEAN, NEAREST, SCATTER, SPAN


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits for ``Leakage.findings``. A larger measured value exceeds its limit."""

    rows: int = 0
    """Single rows that an attacker recovers."""
    small_class: int = 5
    """A class with fewer rows is small."""
    cosine: float = 0.9
    """Of the recovered and the true mean feature of a small class."""
    share: float = 0.1
    """By how much more of a member than of another row lies in the span of the factor."""
    auc: float = 0.6
    """Of the strongest membership attack. 0.5 is guessing."""
    tpr: float = 0.01
    """Share of the members that are found at 0.1 % false positives."""

    def __post_init__(self) -> None:
        for name in ("cosine", "share", "auc", "tpr"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in 0 .. 1, got {getattr(self, name)!r}")
        for name in ("rows", "small_class"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Attack:
    """How well one membership attack separates members from reference rows of the same class."""

    name: str
    auc: float
    error: float
    """Standard error of the AUC."""
    tpr: float | None
    """Share of members found at 0.1 % false positives; None with too few reference rows."""


@dataclass(frozen=True, slots=True)
class ClassLeakage:
    """What a message tells about the rows of one class."""

    label: Label
    rows: int
    """Rows that the message describes."""
    reference_rows: int
    cosine: float
    """Of the recovered mean feature and that of the given rows."""
    recovered: int
    """Different rows that an attacker recovered."""
    auc: float | None
    """Of the strongest attack within this class; None with too few reference rows."""


class Tries(NamedTuple):
    """Successful attempts and attempts."""

    recovered: int
    tries: int


class Finding(NamedTuple):
    """One measured figure beside its limit, and what would lower it."""

    name: str
    measured: str
    value: float
    limit: float
    advice: tuple[str, ...]
    """Sentences: what would lower the figure."""

    @property
    def exceeded(self) -> bool:
        """Whether the figure is above its limit."""
        return self.value > self.limit


@dataclass(frozen=True, slots=True)
class Leakage:
    """What ``measure`` found. The attacks give lower bounds of what a message reveals."""

    description: str
    mixture: bool
    members: int
    """Rows that were tested as members."""
    reference: int
    """Rows that were tested as non-members."""
    classes: tuple[ClassLeakage, ...]
    attacks: tuple[Attack, ...]
    """Membership attacks, the strongest first."""
    single: Tries
    """Rows that are alone in their class or group: how many of them are recovered."""
    found: Tries
    """Search for rows in the span of the factor: attempts that ended at a member."""
    share: tuple[float, float] | None
    """Mean share of a member's and of a reference row's distance from the class mean that lies in
    the span of the factor; None for mixtures and without a factor."""

    @property
    def auc(self) -> float:
        """AUC of the strongest membership attack."""
        return self.attacks[0].auc

    @property
    def tpr(self) -> float | None:
        """The largest true-positive rate of any attack at 0.1 % false positives."""
        rates = [a.tpr for a in self.attacks if a.tpr is not None]
        return max(rates, default=None)

    def exceeded(self, tolerance: Tolerance | None = None) -> bool:
        """Whether any figure is above its limit."""
        return any(finding.exceeded for finding in self.findings(tolerance))

    def findings(self, tolerance: Tolerance | None = None) -> tuple[Finding, ...]:
        """The figures that have a limit, each with what would lower it."""
        return tuple(self._findings(tolerance or Tolerance()))

    def _findings(self, limits: Tolerance) -> Iterator[Finding]:
        alone = "group" if self.mixture else "class"
        yield Finding(
            "single rows",
            f"{self.single.recovered} of {self.single.tries} recovered that are alone in a {alone}"
            if self.single.tries
            else f"no {alone} has one row",
            self.single.recovered,
            limits.rows,
            (LARGER_GROUPS if self.mixture else WITHHOLD,),
        )
        if self.share is not None:
            yield Finding(
                "rows in the factor",
                f"{self.found.recovered} of {self.found.tries} searches ended at a row",
                self.found.recovered,
                limits.rows,
                (LOWER_RANK,),
            )
            inside, outside = self.share
            yield Finding(
                "share in factor",
                f"members {inside:.2f}, others {outside:.2f}, difference {inside - outside:.2f}",
                inside - outside,
                limits.share,
                (LOWER_RANK,),
            )
        small = [c.cosine for c in self.classes if c.rows < limits.small_class]
        yield Finding(
            "small classes",
            f"mean known to cosine {max(small):.3f} ({len(small)} classes)"
            if small
            else f"no class has fewer than {limits.small_class} rows",
            max(small, default=0.0),
            limits.cosine,
            (WITHHOLD,),
        )
        strongest = self.attacks[0]
        yield Finding(
            "membership",
            f"AUC {strongest.auc:.3f} ± {strongest.error:.3f} ({strongest.name})",
            strongest.auc,
            limits.auc,
            self._membership_advice(),
        )
        if self.tpr is not None:
            best = max(self.attacks, key=lambda a: a.tpr or 0.0)
            yield Finding(
                "sure members",
                f"TPR {100 * self.tpr:.2f} % at 0.1 % FPR ({best.name})",
                self.tpr,
                limits.tpr,
                self._membership_advice(),
            )

    def _membership_advice(self) -> tuple[str, ...]:
        """What lowers the strongest of the attacks that use one part of the message."""
        strongest = next(a.name for a in self.attacks if a.name in REMEDIES)
        if self.mixture and REMEDIES[strongest] == LOWER_RANK:
            return LARGER_GROUPS, ONLY_DP
        return REMEDIES[strongest], ONLY_DP


WITHHOLD = "Withhold classes with few rows (min_class_count in site.toml), or leave their rows out."
LOWER_RANK = (
    "Lower the rank (max_rank_share in site.toml keeps it below a share of the rows), or send a "
    "mixture."
)
LARGER_GROUPS = "Use larger groups: min_group and group_size."
REMEDIES = {
    SPAN: LOWER_RANK,
    SCATTER: LOWER_RANK,
    **dict.fromkeys(FLOORS, LOWER_RANK),
    MEAN: "Withhold classes with few rows; a secure sum mixes the class means of all sites.",
    NEAREST: LARGER_GROUPS,
    GAP: LARGER_GROUPS,
    HEADS: "The head itself tells it, so another message does not help.",
}
"""What lowers the figure of an attack."""
ONLY_DP = "Only differential privacy bounds what any attack can find."
