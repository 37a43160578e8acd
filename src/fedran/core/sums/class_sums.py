"""Sums and counts of the rows of each class: the right-hand side of every closed-form solve."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float64,
    Int64,
    as_matrix,
    cast,
    like,
    namespace,
    scale_rows,
    to_device,
    to_numpy,
)
from fedran.core._linalg.blas import matmul
from fedran.core.errors import Refused
from fedran.core.labels import MISSING, Label, encode_labels, ordered

SUM_BLOCK = 512
"""Rows whose class sums are added in the dtype of H before they join the float64 total."""


@dataclass(frozen=True, eq=False)
class ClassSums:
    """The sum and the number of rows of each class, addressed by label.

    ``a + b`` aligns both by label and adds: it describes the rows of both. The result lies on
    the device of ``a``.

    >>> a = ClassSums.from_rows([[1.0, 0.0], [2.0, 1.0]], ["dog", "cat"])
    >>> b = ClassSums.from_rows([[0.0, 5.0]], ["dog"])
    >>> a.classes, a.counts, a.sums.tolist()
    (('cat', 'dog'), (1, 1), [[2.0, 1.0], [1.0, 0.0]])
    >>> (a + b).counts, (a + b)["dog"].tolist()
    ((1, 2), [1.0, 5.0])
    """

    classes: tuple[Label, ...]
    """Distinct labels in canonical order."""
    sums: Float64[Array, "M C"]
    """B, (M, C) float64, one column per class."""
    counts: tuple[int, ...]
    """Labelled rows per class; 0 where the sender does not report them."""
    weights: tuple[float, ...] | None = None
    """Sum of the weights of these rows per class; None where each row counts once."""
    squares: tuple[float, ...] | None = None
    """Of real targets: the sum of their squares. ``sums`` is then H'Y, and ``weights`` the sum of
    Y. None for indicators, which are their own squares."""

    def __post_init__(self) -> None:
        if self.sums.ndim != 2 or self.sums.shape[1] != len(self.classes):
            expected = f"shape (M, {len(self.classes)})"
            raise Refused("class_sums", expected, tuple(self.sums.shape))
        if len(self.counts) != len(self.classes):
            raise Refused("counts", f"{len(self.classes)} numbers", len(self.counts))
        if self.weights is not None and len(self.weights) != len(self.classes):
            raise Refused("weights", f"{len(self.classes)} numbers", len(self.weights))
        if self.classes != ordered(self.classes):
            raise Refused("classes", "distinct labels in order, ints before strs", self.classes)

    @classmethod
    def empty(cls, out_features: int, device: str | None = None) -> ClassSums:
        """Sums without any class: the neutral element of ``+``.

        >>> ClassSums.empty(2).sums.shape
        (2, 0)
        """
        return cls((), to_device(np.zeros((out_features, 0)), device), ())

    @classmethod
    def from_rows(cls, H: ArrayLike | Array, y: Any) -> ClassSums:
        """The class sums of rows H (n, M) with labels y; rows without a label are left out."""
        H = as_matrix(H, "H")
        return cls.from_codes(H, *encode_labels(y, int(H.shape[0])))

    @classmethod
    def from_codes(
        cls,
        H: Float[Array, "n M"],
        classes: tuple[Label, ...],
        codes: Int64[NDArray[Any], " n"],
        block: int | None = None,
        weights: Float64[NDArray[Any], " n"] | None = None,
    ) -> ClassSums:
        """The same where row i has the label ``classes[codes[i]]``, or none if it is MISSING."""
        known = codes != MISSING
        counts = tuple(np.bincount(codes[known], minlength=len(classes)).tolist())
        if weights is None:
            return cls(classes, sum_by_code(H, codes, len(classes), block), counts)
        totals = np.bincount(codes[known], weights[known], len(classes))
        sums = sum_by_code(scale_rows(H, weights), codes, len(classes), block)
        return cls(classes, sums, counts, tuple(totals.tolist()))

    @classmethod
    def from_targets(
        cls,
        H: Float[Array, "n M"],
        names: tuple[Label, ...],
        Y: Float64[NDArray[Any], "n C"],
        weights: Float64[NDArray[Any], " n"] | None = None,
    ) -> ClassSums:
        """H'Y of real targets Y, or of indicators of which a row may have several."""
        weighted = Y if weights is None else scale_rows(Y, weights)
        totals, squares = weighted.sum(axis=0), np.sum(weighted * Y, axis=0)
        sums = matmul(cast(H, "float64").T, like(weighted, H))
        counts = (int(H.shape[0]),) * len(names)
        return cls(names, sums, counts, tuple(totals.tolist()), tuple(squares.tolist()))

    def state(self) -> tuple[dict[str, Any], NDArray[Any]]:
        """Plain values, and the sums as rows (C, M), for ``from_state``. Every row counts once."""
        values = {"classes": list(self.classes), "counts": list(self.counts)}
        return values, np.ascontiguousarray(to_numpy(self.sums).T)

    @classmethod
    def from_state(cls, values: dict[str, Any], rows: Any, device: str | None) -> ClassSums:
        """Inverse of ``state``. Other values are ignored."""
        classes, counts = tuple(values["classes"]), tuple(values["counts"])
        return cls(classes, to_device(rows, device).T, counts)

    @property
    def out_features(self) -> int:
        """M, the width of the rows."""
        return int(self.sums.shape[0])

    @property
    def totals(self) -> Float64[NDArray[Any], " C"]:
        """n_c, the weight of each class: the number of its rows where each counts once."""
        return np.asarray(self.counts if self.weights is None else self.weights, dtype=np.float64)

    @property
    def target_squares(self) -> Float64[NDArray[Any], " C"]:
        """The squared norm of each column of Y."""
        return self.totals if self.squares is None else np.array(self.squares)

    @property
    def _divisors(self) -> Float64[NDArray[Any], " C"]:
        return np.where(self.totals > 0, self.totals, 1.0)

    @property
    def means(self) -> Float64[Array, "M C"]:
        """The class means, (M, C); zero for a class without rows."""
        return self.sums / like(self._divisors, self.sums)

    @property
    def scaled(self) -> Float64[Array, "M C"]:
        """b_c / sqrt(n_c), (M, C): columns whose Gram is the between-class part of H'H."""
        return self.sums / like(np.sqrt(self._divisors), self.sums)

    @property
    def energy(self) -> float:
        """sum_c ||b_c||^2 / n_c: the energy of the rows if each were its class mean."""
        columns = self.scaled
        return float(namespace(columns).sum(columns * columns)) if len(self) else 0.0

    def residuals(
        self, H: Float[Array, "n M"], codes: Int64[NDArray[Any], " n"]
    ) -> Float[Array, "n M"]:
        """The rows of H minus the means of their classes, a new array in the dtype of H.

        Row i has the class number ``codes[i]``. A row whose code is MISSING stays as it is.
        """
        xp = namespace(H)
        rows = xp.concat([self.means.T, like(np.zeros((1, self.out_features)), self.sums)], axis=0)
        of_row = np.where(codes == MISSING, len(self), codes)
        if isinstance(H, np.ndarray):
            result = np.take(rows.astype(H.dtype), of_row, axis=0)
            with np.errstate(over="ignore", invalid="ignore"):  # the factorisation tells
                return np.subtract(H, result, out=result)
        return H - xp.astype(rows, H.dtype)[like(of_row, H)]

    def differences(self, other: ClassSums) -> Float64[Array, "M shared"]:
        """Columns sqrt(n m / (n + m)) (mean - other mean), one per class that both hold.

        By Chan's formula, the Gram of the residuals of all rows is the sum of the Grams of both
        sets of residuals and the Gram of these columns.
        """
        held = {c: i for i, c in enumerate(other.classes) if other.counts[i]}
        mine = [i for i, c in enumerate(self.classes) if c in held and self.counts[i]]
        theirs = [held[self.classes[i]] for i in mine]
        n, m = self.totals[mine], other.totals[theirs]
        gap = self.means[:, mine] - like(other.means, self.sums)[:, theirs]
        return gap * like(np.sqrt(n * m / (n + m)), self.sums)

    def __len__(self) -> int:
        return len(self.classes)

    def __contains__(self, label: object) -> bool:
        return label in self.classes

    def __getitem__(self, label: Label) -> Float64[Array, " M"]:
        """The sum of the rows of one class, (M,)."""
        return self.sums[:, self.classes.index(label)]

    def count(self, label: Label) -> int:
        """The number of rows of one class."""
        return self.counts[self.classes.index(label)]

    def __add__(self, other: object) -> ClassSums:
        if not isinstance(other, ClassSums):
            return NotImplemented
        if self.out_features != other.out_features:
            raise Refused("class_sums", f"sums of {self.out_features} features", other.out_features)
        classes = ordered(self.classes + other.classes)
        position = {c: i for i, c in enumerate(classes)}
        rows = like(np.zeros((len(classes), self.out_features)), self.sums)
        counts, weights = [0] * len(classes), np.zeros(len(classes))
        squares = np.zeros(len(classes))
        for part in (self, other):
            where = [position[c] for c in part.classes]
            if where:
                rows[where] += like(part.sums, rows).T
                weights[where] += part.totals
                squares[where] += part.target_squares
            for i, n in zip(where, part.counts, strict=True):
                counts[i] += n
        # Always the transpose of a row-major matrix: BLAS results depend on the memory layout,
        # and a state that was saved and loaded must give the same head bit for bit.
        if self.weights is None and other.weights is None:
            return ClassSums(classes, rows.T, tuple(counts))
        real = self.squares is not None or other.squares is not None
        return ClassSums(
            classes,
            rows.T,
            tuple(counts),
            tuple(weights.tolist()),
            tuple(squares.tolist()) if real else None,
        )

    def without(self, other: ClassSums) -> ClassSums:
        """What remains of a sum without one of its parts; classes without rows are dropped."""
        weights = None if other.weights is None else tuple(-w for w in other.weights)
        counts = tuple(-n for n in other.counts)
        rest = self + replace(other, sums=-other.sums, counts=counts, weights=weights)
        return rest.with_rows()

    def with_rows(self) -> ClassSums:
        """The sums of the classes that have rows."""
        kept = [i for i, n in enumerate(self.counts) if n > 0]
        return ClassSums(
            tuple(self.classes[i] for i in kept),
            self.sums[:, kept],
            tuple(self.counts[i] for i in kept),
            None if self.weights is None else tuple(self.weights[i] for i in kept),
        )

    def __radd__(self, other: object) -> ClassSums:
        """Lets ``sum([a, b, c])`` start from 0."""
        return self if other == 0 else NotImplemented

    def to(self, device: str | None) -> ClassSums:
        """The same sums on a torch device, or in NumPy when ``device`` is None."""
        return replace(self, sums=to_device(self.sums, device))


def sum_by_code(
    H: Float[Array, "n M"], codes: Int64[NDArray[Any], " n"], n_codes: int, block: int | None = None
) -> Float64[Array, "M {n_codes}"]:
    """H'Y, (M, n_codes) float64: the sums of the rows with code 0, 1, ...; others are left out.

    Blocks of rows are summed in the dtype of H, and the blocks are added in float64.
    """
    xp = namespace(H)
    total = like(np.zeros((n_codes, H.shape[1])), H)
    block = SUM_BLOCK if block is None else block
    for i in range(0, H.shape[0] if n_codes else 0, block):
        rows = H[i : i + block]
        onehot = like((codes[i : i + block] == np.arange(n_codes)[:, None]).astype(float), H)
        with np.errstate(over="ignore", invalid="ignore"):
            part = matmul(xp.astype(onehot, H.dtype), rows)
        if not bool(xp.all(xp.isfinite(part))):  # beyond float32, or NaN, which stays NaN
            part = onehot @ cast(rows, "float64")
        total += cast(part, "float64")
    return total.T
