"""What an attacker reads from a message or a head, as the attacks use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Float32, Float64, Int64
from fedran.core.labels import Label, recode
from fedran.core.points import Points, condense
from fedran.core.private.noisy_sums import NoisySums, noisy_ridge
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import Ridge
from fedran.core.summarize import summarize
from fedran.core.summary import Summary
from fedran.core.sums.aggregator import Aggregator

Message: TypeAlias = Points | Summary | NoisySums


@dataclass(frozen=True)
class Rows:
    """Candidates as the message describes them, and their class numbers."""

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

    @cached_property
    def basis(self) -> Float32[NDArray[Any], "m r"]:
        """Orthonormal columns with the span of the factor."""
        return np.linalg.qr(self.factor.astype(np.float64))[0].astype(np.float32)

    def outside(self, rows: Rows) -> NDArray[np.float64]:
        """The squared distance of each row's residual from the span of the factor."""
        left = rows.X - self.means[rows.codes]
        left -= (left @ self.basis) @ self.basis.T
        return np.sum(left**2, axis=1, dtype=np.float64)


class Groups(NamedTuple):
    """Group means, or the landmarks of a head, and the class number of each."""

    means: Float32[NDArray[Any], "g m"]
    codes: Int64[NDArray[Any], " g"]


class Evidence(NamedTuple):
    """What a message or a head tells about some classes."""

    head: Head | None
    """The head that a server would solve from this message alone, or the head itself; None where
    noise hides all classes."""
    columns: Int64[NDArray[Any], " C"]
    """The column of its scores for each class; -1 for a class that it does not know."""
    moments: Moments | None = None
    groups: Groups | None = None

    def own_scores(self, rows: Rows) -> NDArray[np.float64]:
        """The score of each row for its own class."""
        if self.head is None:
            return np.zeros(len(rows))
        found = np.pad(self.head.scores(rows.X), [(0, 0), (0, 1)])
        return found[np.arange(len(rows)), self.columns[rows.codes]].astype(np.float64)


Imitate = Callable[[Rows], Evidence]
"""The evidence of the same kind of message about other rows."""


def class_counts(message: Message) -> Float64[NDArray[Any], " C"]:
    """Rows of each class of the message."""
    if isinstance(message, Points):
        return np.bincount(message.codes, message.counts, len(message.classes))
    return message.sums.totals if isinstance(message, Summary) else message.counts


def class_means(message: Message) -> Float64[NDArray[Any], "C m"]:
    """The mean row of each class of the message, in the order of its classes."""
    if isinstance(message, Summary):
        return np.asarray(message.sums.means.T)
    if isinstance(message, NoisySums):
        return (message.sums / np.maximum(message.counts, 1.0)).T
    starts = np.searchsorted(message.codes, np.arange(len(message.classes)))
    sums = np.add.reduceat(message.means * message.counts[:, None], starts, axis=0)
    return sums / class_counts(message)[:, None]


def read(
    message: Message | Head, classes: Sequence[Label], rng: np.random.Generator
) -> tuple[Evidence, Imitate | None]:
    """The evidence about some classes, and how to make the same kind of message of other rows."""
    numbers = range(len(classes))
    if isinstance(message, Head):
        return _of_head(message, classes), None
    if isinstance(message, Summary):
        rank, center = max(1, message.rank), message.center
        return _of_summary(message, classes), lambda rows: _of_summary(
            summarize(rows.X, rows.codes, rank, center=center), numbers
        )
    if isinstance(message, NoisySums):
        return _of_noisy_sums(message, classes), lambda rows: _of_noisy_sums(
            _noisy_sums(rows, len(classes), message, rng), numbers
        )
    evidence, least = _of_points(message, classes), message.smallest_group
    size = max(least, round(message.n_rows / len(message.counts)) - least // 2)
    assert evidence.head is not None
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
    groups = Groups(head.landmarks, recode(said, head.classes, tuple(classes)))
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
    groups = Groups(points.means, recode(points.codes, points.classes, tuple(classes)))
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


def _of_noisy_sums(sums: NoisySums, classes: Sequence[Label]) -> Evidence:
    """The scatter is what the Gram exceeds the class means by. Noise makes some of it negative."""
    columns, means = _columns(sums.classes, classes), class_means(sums)
    between = (means.T * np.maximum(sums.counts, 1.0)) @ means
    values, vectors = np.linalg.eigh(sums.gram - between)
    roots = (vectors * np.sqrt(np.abs(values))).astype(np.float32)
    moments = Moments(
        means=means[columns].astype(np.float32),
        counts=np.maximum(sums.counts[columns], 1.0),
        factor=roots[:, values > 0],
        surplus=roots[:, values <= 0],
    )
    summary = sums.summary()  # without the classes that the noise hides
    head = None
    if summary.classes:
        head = _solved(summary, noisy_ridge(summary.accounts, summary.out_features))
    return Evidence(head, _columns(summary.classes, classes), moments)


def _noisy_sums(rows: Rows, n_classes: int, like: NoisySums, rng: np.random.Generator) -> NoisySums:
    """Sums of other rows with noise of the same variances."""
    X = rows.X.astype(np.float64)
    d = X.shape[1]
    half = np.triu(rng.standard_normal((d, d)), 1) * np.sqrt(like.gram_variance / 2)
    diagonal = rng.standard_normal(d) * np.sqrt(like.gram_variance)
    onehot = np.eye(n_classes)[rows.codes]
    return replace(
        like,
        classes=tuple(range(n_classes)),
        gram=X.T @ X + half + half.T + np.diag(diagonal),
        sums=X.T @ onehot + np.sqrt(like.sums_variance) * rng.standard_normal((d, n_classes)),
        counts=onehot.sum(axis=0) + np.sqrt(like.counts_variance) * rng.standard_normal(n_classes),
    )
