"""What an attacker reads from a summary, a mixture or noisy sums, as the attacks use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from fedran.core._linalg.arrays import Float32, Float64, Int64
from fedran.core.condense import condense
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import MISSING, Label
from fedran.core.mixture import Mixture
from fedran.core.private.noisy_sums import NoisySums, noisy_ridge
from fedran.core.solve.ridge import Ridge
from fedran.core.summarize import summarize
from fedran.core.summary import Summary
from fedran.core.sums.exact_sum import ExactSum

Message = Summary | Mixture | NoisySums
LIFTED = 2048
"""Random features to which mixtures are lifted for the attack on the head."""


@dataclass(frozen=True)
class Rows:
    """Candidates as a message describes them, their random features, and their class numbers."""

    X: Float32[NDArray[Any], "n m"]
    """Random features for a summary, prepared features for a mixture."""
    H: Float32[NDArray[Any], "n M"]
    """Random features. The head works on them."""
    codes: Int64[NDArray[Any], " n"]

    def __getitem__(self, rows: NDArray[Any]) -> Rows:
        H = self.H[rows]
        return Rows(H if self.X is self.H else self.X[rows], H, self.codes[rows])

    def __len__(self) -> int:
        return len(self.codes)


class Groups(NamedTuple):
    """Group means of a mixture and the class number of each."""

    means: Float32[NDArray[Any], "g m"]
    codes: Int64[NDArray[Any], " g"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a message tells about rows X (n, m): means, counts and scatter of its classes."""

    means: Float32[NDArray[Any], "C m"]
    counts: Float64[NDArray[Any], " C"]
    factor: Float32[NDArray[Any], "m r"]
    """Columns whose Gram is the scatter of the rows about their class means."""
    surplus: Float32[NDArray[Any], "m s"]
    """Columns whose Gram has to be subtracted from it."""
    weights: Float32[NDArray[Any], "M C"]
    """The head that a server would solve from this message alone."""
    groups: Groups | None = None

    @cached_property
    def basis(self) -> Float32[NDArray[Any], "m r"]:
        """Orthonormal columns with the span of the factor."""
        return np.linalg.qr(self.factor.astype(np.float64))[0].astype(np.float32)

    def residual(self, rows: Rows) -> Float32[NDArray[Any], "n m"]:
        """Each row minus the mean that the message states for its class."""
        return rows.X - self.means[rows.codes]

    def outside(self, rows: Rows) -> NDArray[np.float64]:
        """The squared distance of each row's residual from the span of the factor."""
        left = self.residual(rows)
        left -= (left @ self.basis) @ self.basis.T
        return np.sum(left**2, axis=1, dtype=np.float64)

    def share(self, rows: Rows) -> float:
        """The share of the squared residuals of all rows that lies in the span of the factor."""
        total = np.sum(self.residual(rows) ** 2, dtype=np.float64)
        return float(1 - np.sum(self.outside(rows)) / total) if total > 0 else 1.0


Imitate = Callable[[Rows], Evidence]
"""The evidence of the same kind of message about other rows."""


@dataclass(frozen=True, eq=False)
class ShadowHead:
    """A head of an imitated site, and the columns F and ridge of its Gram."""

    weights: Float32[NDArray[Any], "M C"]
    columns: Float32[NDArray[Any], "M w"]
    ridge: float

    @classmethod
    def of(cls, summary: Summary, rule: Ridge | None = None) -> ShadowHead:
        """The head that a server would solve from one summary."""
        columns = np.asarray(summary.gram_factor(), dtype=np.float32)
        ridge = (rule or Ridge()).value(summary.accounts)
        B = np.asarray(summary.class_sums)
        solved = cho_solve(_cholesky(columns, ridge), columns.T @ B)
        return cls(((B - columns @ solved) / ridge).astype(np.float32), columns, ridge)

    def leverage(self, rows: Rows) -> NDArray[np.float64]:
        """h' (FF' + ridge I)^-1 h: how much its own row would count in a score."""
        triangle, _ = _cholesky(self.columns, self.ridge)
        inner = (rows.H @ self.columns).T
        solved = solve_triangular(triangle, inner, lower=True, check_finite=False)
        squares = np.sum(rows.H**2, axis=1, dtype=np.float64)
        return np.maximum(squares - np.sum(solved**2, axis=0), 0.0) / self.ridge


def _cholesky(columns: Float32[NDArray[Any], "M w"], ridge: float) -> tuple[NDArray[Any], bool]:
    small = (columns.T @ columns).astype(np.float64)
    small[np.diag_indices_from(small)] += ridge
    triangle, lower = cho_factor(small, lower=True)
    return triangle, lower


def feature_map(fingerprint: Fingerprint) -> RandomFeatures:
    """The map of a summary; for a mixture, which names none, one of ``LIFTED`` features."""
    fields = {"M": LIFTED, "seed": 0, **fingerprint.fields}
    return RandomFeatures.from_fingerprint(Fingerprint(fields))


def class_means(message: Message) -> Float64[NDArray[Any], "C m"]:
    """The mean row of each class of the message, in the order of its classes."""
    if isinstance(message, Summary):
        return np.asarray(message.sums.means.T)
    if isinstance(message, NoisySums):
        return (message.sums / np.maximum(message.counts, 1.0)).T
    sums = {c: np.zeros(message.in_features) for c in message.classes}
    for part in message.parts:
        for mean, count, code in zip(part.means, part.counts, part.codes, strict=True):
            sums[part.classes[code]] += float(count) * np.asarray(mean, dtype=np.float64)
    return np.stack([sums[c] / n for c, n in zip(message.classes, message.counts, strict=True)])


def read(
    message: Message, classes: Sequence[Label], phi: RandomFeatures, rng: np.random.Generator
) -> tuple[Evidence, Imitate]:
    """The evidence about some classes, and how to make the same kind of message of other rows."""
    numbers = range(len(classes))
    if isinstance(message, Summary):
        rank, center = max(1, message.rank), message.center
        return _of_summary(message, classes), lambda rows: _of_summary(
            summarize(rows.X, rows.codes, rank, center=center), numbers
        )
    if isinstance(message, NoisySums):
        return _of_noisy_sums(message, classes), lambda rows: _of_noisy_sums(
            _noisy_sums(rows, len(classes), message, rng), numbers
        )
    as_it_is = RandomFeatures(message.in_features, 1, "relu")  # its rows need no preparation
    size = max(1, round(message.n_rows / message.n_groups))
    directions = max(len(part.shares) for part in message.parts)

    def imitate(rows: Rows) -> Evidence:
        least = min(message.smallest_group, int(np.bincount(rows.codes).min()))
        made = condense(rows.X, rows.codes, as_it_is, size, least, directions)
        return _of_mixture(made, numbers, phi)

    return _of_mixture(message, classes, phi), imitate


def _of_summary(summary: Summary, classes: Sequence[Label]) -> Evidence:
    chosen = [summary.classes.index(c) for c in classes]
    none = np.zeros((summary.out_features, 0), dtype=np.float32)
    return Evidence(
        means=np.asarray(summary.sums.means.T[chosen], dtype=np.float32),
        counts=summary.sums.totals[chosen],
        factor=np.asarray(summary.factor, dtype=np.float32),
        surplus=none if summary.center else np.asarray(summary.sums.scaled, dtype=np.float32),
        weights=ShadowHead.of(summary).weights[:, chosen],
    )


def _of_mixture(mixture: Mixture, classes: Sequence[Label], phi: RandomFeatures) -> Evidence:
    """The group means scatter about their class means; what is within groups is left out."""
    position = {c: i for i, c in enumerate(mixture.classes)}
    chosen = [position[c] for c in classes]
    number = np.full(len(position), MISSING)
    number[chosen] = range(len(chosen))
    means = class_means(mixture)
    every = np.concatenate([np.asarray(part.means) for part in mixture.parts])
    counts = np.concatenate([part.counts for part in mixture.parts])
    codes = np.array([position[part.classes[i]] for part in mixture.parts for i in part.codes])
    total = ExactSum(phi.out_features)
    total.add_mixture(mixture, phi)
    return Evidence(
        means=means[chosen].astype(np.float32),
        counts=np.asarray(mixture.counts, dtype=np.float64)[chosen],
        factor=(np.sqrt(counts)[:, None] * (every - means[codes])).T.astype(np.float32),
        surplus=np.zeros((mixture.in_features, 0), dtype=np.float32),
        weights=np.asarray(total.solve().weights, dtype=np.float32)[:, chosen],
        groups=Groups(every.astype(np.float32), number[codes]),
    )


def _of_noisy_sums(sums: NoisySums, classes: Sequence[Label]) -> Evidence:
    """The scatter is what the Gram exceeds the class means by. Noise makes some of it negative."""
    chosen = [sums.classes.index(c) for c in classes]
    means = class_means(sums)
    between = (means.T * np.maximum(sums.counts, 1.0)) @ means
    values, vectors = np.linalg.eigh(sums.gram - between)
    columns = (vectors * np.sqrt(np.abs(values))).astype(np.float32)
    summary = sums.summary()
    head = ShadowHead.of(summary, noisy_ridge(summary.accounts, summary.out_features))
    weights = np.zeros((len(sums.gram), len(classes)), dtype=np.float32)
    known = [i for i, c in enumerate(classes) if c in summary.classes]
    weights[:, known] = head.weights[:, [summary.classes.index(classes[i]) for i in known]]
    return Evidence(
        means=means[chosen].astype(np.float32),
        counts=np.maximum(sums.counts[chosen], 1.0),
        factor=columns[:, values > 0],
        surplus=columns[:, values <= 0],
        weights=weights,
    )


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
