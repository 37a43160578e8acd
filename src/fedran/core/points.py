"""The default message: means of groups of prepared rows, their counts and labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float32,
    Float64,
    Int64,
    as_matrix,
    cast,
    require_finite,
    to_device,
    to_numpy,
)
from fedran.core._linalg.ward import group_means, group_rows
from fedran.core.errors import Refused, positive_integer
from fedran.core.fingerprint import Fingerprint, check_fingerprint, require_same
from fedran.core.labels import MISSING, Label, encode_labels, ordered, recode
from fedran.core.sums.accounts import Accounts

NORM_SLACK = 1e-3
"""By how much rounding may lengthen a mean of rows of unit norm."""
MAX_ROWS = 2**48
"""Most rows of one message."""


@dataclass(frozen=True, eq=False)
class Points:
    """Labelled rows as means of groups: what a site sends about one task.

    Every mean is over rows of one class. With groups of one row, the means are the rows.
    ``a + b`` holds the points of both.

    >>> from fedran.core.prepare import KernelFeatures
    >>> rows = KernelFeatures(2)(np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]))
    >>> points = condense(rows, ["cat", "cat", "dog"], group_size=2)
    >>> points.classes, points.counts.tolist()
    (('cat', 'dog'), [2, 1])
    """

    classes: tuple[Label, ...]
    """Distinct labels in canonical order. Each has at least one point."""
    codes: Int64[NDArray[Any], " n"]
    """The class of each point as a position in ``classes``, ascending."""
    means: Float32[Array, "n d"]
    counts: Int64[NDArray[Any], " n"]
    """Rows per point."""
    fingerprint: Fingerprint | None = None
    """Of the ``KernelFeatures`` that prepared the rows. Must be equal under ``+``."""
    withheld: dict[Label, int] = field(default_factory=dict)
    """Rows per class that are left out, being fewer than ``min_group``. Never sent."""
    deviation: Float64[NDArray[Any], " d"] | None = field(default=None, repr=False)
    """Of the rows from their class means, per column: how finely means are rounded. Never sent."""
    digest: str | None = field(default=None, repr=False)
    """SHA-256 of the upload this was decoded from; None when it was not decoded."""

    def __post_init__(self) -> None:
        n = len(self.counts)
        if self.means.ndim != 2 or self.means.shape[0] != n:
            raise Refused("means", f"one row for each of {n} counts", tuple(self.means.shape))
        if self.codes.shape != (n,):
            raise Refused("codes", f"{n} values", self.codes.shape)
        if self.classes != ordered(self.classes):
            raise Refused("classes", "distinct labels in order, ints before strs", self.classes)
        if n and (np.any(np.diff(self.codes) < 0) or self.codes[0] < 0):
            raise Refused("codes", "positions of classes in ascending order", "others")
        if not np.array_equal(np.unique(self.codes), np.arange(len(self.classes))):
            raise Refused("codes", f"points of all {len(self.classes)} classes", "others")

    @property
    def n_rows(self) -> int:
        """Rows that the points stand for."""
        return int(self.counts.sum())

    @property
    def in_features(self) -> int:
        """Width of the means: d, or d + 1 with a bias."""
        return int(self.means.shape[1])

    @property
    def accounts(self) -> Accounts:
        """The rows. Their norms are 1, and nothing is cut."""
        return Accounts(n_rows=self.n_rows, energy=float(self.n_rows), parts=min(1, self.n_rows))

    @property
    def smallest_group(self) -> int:
        """Rows of the smallest group; 0 without points."""
        return int(self.counts.min(initial=np.iinfo(np.int64).max)) if len(self.counts) else 0

    def rows_per_class(self) -> dict[Label, int]:
        """Rows of each class."""
        rows = np.bincount(self.codes, self.counts, len(self.classes))
        return {label: int(n) for label, n in zip(self.classes, rows, strict=True)}

    def validate(self, min_group: int = 1) -> Points:
        """Refuse means, norms and counts that no groups of unit rows have; returns self."""
        if len(self.counts) and (self.counts.min() < min_group or self.n_rows > MAX_ROWS):
            expected = f"groups of at least {min_group} rows, at most {MAX_ROWS} in all"
            raise Refused("counts", expected, int(self.counts.min()))
        means = to_numpy(self.means)
        squares = np.einsum("ij,ij->i", means, means, dtype=np.float64)
        largest = float(squares.max(initial=0.0))
        if not largest <= (1 + NORM_SLACK) ** 2:
            raise Refused("means", "norms of at most 1, as prepared rows have", largest**0.5)
        return self

    def content_digest(self) -> str:
        """SHA-256 of the upload it was decoded from, else of everything that would be sent."""
        if self.digest is not None:
            return self.digest
        hashed = hashlib.sha256(repr((self.classes, self.fingerprint)).encode())
        for array in (self.codes, self.counts, to_numpy(self.means)):
            hashed.update(np.ascontiguousarray(array).tobytes())
        return hashed.hexdigest()

    def to(self, device: str | None) -> Points:
        """The same points on a torch device, or in NumPy when ``device`` is None."""
        return replace(self, means=to_device(self.means, device))

    def __add__(self, other: object) -> Points:
        if not isinstance(other, Points):
            return NotImplemented
        return join([self, other])

    def __radd__(self, other: object) -> Points:
        """Lets ``sum([a, b, c])`` start from 0."""
        if isinstance(other, int) and other == 0:
            return self
        raise TypeError(f"a Points adds only to a Points, got {type(other).__name__}")

    def __repr__(self) -> str:
        return (
            f"Points(d={self.in_features}, points={len(self.counts)}, rows={self.n_rows}, "
            f"classes={len(self.classes)}, withheld={sum(self.withheld.values())})"
        )


def join(parts: Iterable[Points]) -> Points:
    """The points of all parts, by class, within a class in the order of the parts."""
    parts = list(parts)
    first = parts[0]
    withheld: dict[Label, int] = {}
    for part in parts:
        require_same(first.fingerprint, part.fingerprint, "all points")
        for label, n in part.withheld.items():
            withheld[label] = withheld.get(label, 0) + n
    classes = ordered(label for part in parts for label in part.classes)
    codes = np.concatenate([recode(part.codes, part.classes, classes) for part in parts])
    order = np.argsort(codes, kind="stable")
    known = [(part.n_rows, part.deviation) for part in parts if part.deviation is not None]
    total = sum(n for n, _ in known)
    return Points(
        classes,
        codes[order],
        np.concatenate([to_numpy(part.means) for part in parts])[order],
        np.concatenate([part.counts for part in parts])[order],
        first.fingerprint,
        withheld,
        np.sqrt(sum(n * v**2 for n, v in known) / total) if total else None,
    )


def condense(
    rows: ArrayLike | Array,
    y: Any,
    group_size: int = 1,
    min_group: int = 1,
    fingerprint: Fingerprint | None = None,
) -> Points:
    """Means of groups of nearby rows of one class.

    Parameters
    ----------
    rows:
        (n, d) prepared rows, ``phi(Z)`` of a ``KernelFeatures``, NumPy or torch. Groups are found
        on the CPU.
    y:
        n labels, int or str. Rows without a label (None or NaN) are left out.
    group_size:
        About how many rows a group has on average. 1 sends every row.
    min_group:
        Least rows of a group. Smaller groups join another group of their class. Classes with
        fewer rows are left out and listed in ``withheld``.
    fingerprint:
        ``phi.fingerprint``, which says how the rows were prepared.

    Notes
    -----
    Groups depend on the rows alone, not on threads or the processor: they are found from inner
    products of rows rounded to integers, which float32 holds exactly. n_c^2 d operations per class
    of n_c rows (up to 4,096 at a time), and n_c^2 k per step of k-means.
    """
    group_size = positive_integer(group_size, "group_size")
    min_group = positive_integer(min_group, "min_group")
    check_fingerprint(fingerprint)
    given = as_matrix(rows, "rows")
    classes, codes = encode_labels(y, int(given.shape[0]))
    require_finite(given, "rows")
    X = to_numpy(cast(given, "float32"))
    squares = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    if len(X) and squares.max() > (1 + NORM_SLACK) ** 2:
        raise ValueError(
            f"rows must have norms of at most 1, got {squares.max() ** 0.5:.3g}; prepare them with "
            "phi(Z), phi = KernelFeatures(...)"
        )
    n_rows = np.bincount(codes[codes != MISSING], minlength=len(classes))
    kept = [c for c in range(len(classes)) if n_rows[c] >= min_group]
    withheld = {classes[c]: int(n_rows[c]) for c in range(len(classes)) if n_rows[c] < min_group}
    means, counts = [np.zeros((0, X.shape[1]), np.float32)], [np.zeros(0, np.int64)]
    squares = np.zeros(X.shape[1])
    for c in kept:
        of_class = X[codes == c]
        squares += np.var(of_class, axis=0, dtype=np.float64) * len(of_class)
        found = of_class, np.ones(len(of_class), dtype=np.int64)
        if max(group_size, min_group) > 1:
            found = group_means(of_class, group_rows(of_class, group_size, min_group), found[1])
        means.append(found[0])
        counts.append(found[1])
    n_kept = sum(int(n_rows[c]) for c in kept)
    return Points(
        tuple(classes[c] for c in kept),
        np.repeat(np.arange(len(kept)), [len(n) for n in counts[1:]]),
        np.concatenate(means),
        np.concatenate(counts),
        fingerprint,
        withheld,
        np.sqrt(squares / n_kept) if squares.any() else None,
    )
