"""What an attacker reads from a message or a head, as the attacks use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Float32, Float64, Int64
from fedran.core.labels import Label, recode
from fedran.core.points import Points, condense
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import Ridge
from fedran.core.summarize import summarize
from fedran.core.summary import Summary
from fedran.core.sums.aggregator import Aggregator

Message: TypeAlias = Points | Summary


@dataclass(frozen=True)
class Rows:
    """Rows as the message describes them, or means of some, and their class numbers."""

    X: Float32[NDArray[Any], "n m"]
    """Random features for a summary or a linear head, else prepared rows."""
    codes: Int64[NDArray[Any], " n"]

    def __getitem__(self, rows: NDArray[Any]) -> Rows:
        return Rows(self.X[rows], self.codes[rows])

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class Moments:
    """What a message tells about rows X (n, m): means, counts and scatter of its classes."""

    means: Float32[NDArray[Any], "C m"]
    counts: Float64[NDArray[Any], " C"]
    factor: Float32[NDArray[Any], "m r"]
    """Columns whose Gram is the scatter of the rows about their class means."""
    surplus: Float32[NDArray[Any], "m s"] | None = None
    """Columns whose Gram has to be subtracted from it."""


class Evidence(NamedTuple):
    """What a message or a head tells about some classes."""

    head: Head
    """The head that a server would solve from this message alone, or the head itself."""
    columns: Int64[NDArray[Any], " C"]
    """The column of its scores for each class; -1 for a class that it does not know."""
    moments: Moments | None = None
    groups: Rows | None = None
    """Group means, or the landmarks of a head."""

    def own_scores(self, rows: Rows) -> NDArray[np.float64]:
        """The score of each row for its own class."""
        found = np.pad(self.head.scores(rows.X), [(0, 0), (0, 1)])
        return found[np.arange(len(rows)), self.columns[rows.codes]].astype(np.float64)


Imitate = Callable[[Rows], Evidence]
"""The evidence of the same kind of message about other rows."""


def class_counts(message: Message) -> Float64[NDArray[Any], " C"]:
    """Rows of each class of the message."""
    if isinstance(message, Points):
        return np.bincount(message.codes, message.counts, len(message.classes))
    return message.sums.totals


def class_means(message: Message) -> Float64[NDArray[Any], "C m"]:
    """The mean row of each class of the message, in the order of its classes."""
    if isinstance(message, Summary):
        return np.asarray(message.sums.means.T)
    starts = np.searchsorted(message.codes, np.arange(len(message.classes)))
    sums = np.add.reduceat(message.means * message.counts[:, None], starts, axis=0)
    return sums / class_counts(message)[:, None]


def read(message: Message | Head, classes: Sequence[Label]) -> tuple[Evidence, Imitate | None]:
    """The evidence about some classes, and how to make the same kind of message of other rows."""
    numbers = range(len(classes))
    if isinstance(message, Head):
        return _of_head(message, classes), None
    if isinstance(message, Summary):
        rank, center = max(1, message.rank), message.center
        return _of_summary(message, classes), lambda rows: _of_summary(
            summarize(rows.X, rows.codes, rank, center=center), numbers
        )
    evidence, least = _of_points(message, classes), message.smallest_group
    size = max(least, round(message.n_rows / len(message.counts)) - least // 2)
    ridge = evidence.head.diagnosis.lam

    def imitate(rows: Rows) -> Evidence:
        allowed = min(least, int(np.bincount(rows.codes).min()))
        made = condense(rows.X, rows.codes, size, allowed)
        return _of_points(made, numbers, ridge)

    return evidence, imitate


def _solved(message: Points | Summary, ridge: Ridge | float | None = None) -> Head:
    """The head that a server would solve from one message."""
    server = Aggregator(message.out_features if isinstance(message, Summary) else None)
    server.absorb(message, client="attacked", task="attacked")
    return server.solve(ridge)


def _columns(of: Sequence[Label], classes: Sequence[Label]) -> Int64[NDArray[Any], " C"]:
    return recode(np.arange(len(classes)), tuple(classes), tuple(of))


def _of_head(head: Head, classes: Sequence[Label]) -> Evidence:
    """A landmark belongs to the class that the head says, as it does for most rows it learned."""
    columns = _columns(head.classes, classes)
    if head.landmarks is None:
        return Evidence(head, columns)
    said = np.argmax(head.scores(head.landmarks), axis=1)
    groups = Rows(head.landmarks, recode(said, head.classes, tuple(classes)))
    return Evidence(head, columns, None, groups)


def _of_points(points: Points, classes: Sequence[Label], ridge: float | None = None) -> Evidence:
    """The group means scatter about their class means; what is within groups is left out."""
    columns, means = _columns(points.classes, classes), class_means(points)
    spread = np.sqrt(points.counts)[:, None] * (points.means - means[points.codes])
    moments = Moments(
        means=means[columns].astype(np.float32),
        counts=class_counts(points)[columns],
        factor=spread.T.astype(np.float32),
    )
    groups = Rows(points.means, recode(points.codes, points.classes, tuple(classes)))
    return Evidence(_solved(points, ridge), columns, moments, groups)


def _of_summary(summary: Summary, classes: Sequence[Label]) -> Evidence:
    columns = _columns(summary.classes, classes)
    moments = Moments(
        means=np.asarray(summary.sums.means.T[columns], dtype=np.float32),
        counts=summary.sums.totals[columns],
        factor=np.asarray(summary.factor, dtype=np.float32),
        surplus=None if summary.center else np.asarray(summary.sums.scaled, dtype=np.float32),
    )
    return Evidence(_solved(summary), columns, moments)
