"""From features and labels to a mixture: groups of nearby rows, and directions they share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float32,
    Float64,
    Int64,
    as_matrix,
    require_finite,
    to_numpy,
)
from fedran.core._linalg.kmeans import group_rows
from fedran.core._linalg.truncation import leading
from fedran.core.errors import positive_integer
from fedran.core.features import RandomFeatures
from fedran.core.labels import MISSING, encode_labels
from fedran.core.mixture import MAX_DIRECTIONS, Mixture, MixturePart

SQUARED_NORMS = (1e-30, 1e37)
"""Range of the largest squared norm of a row, so that float32 holds spreads and products."""


def condense(
    Z: ArrayLike | Array,
    y: Any,
    phi: RandomFeatures,
    group_size: int = 6,
    min_group: int = 5,
    directions: int = 16,
) -> Mixture:
    """Describe features Z (n, d) and their labels as a ``Mixture``.

    Parameters
    ----------
    Z:
        (n, d) features of the backbone, NumPy or torch. Groups are found on the CPU.
    y:
        n labels, int or str. Rows without a label (None or NaN) are left out.
    phi:
        The feature map. Its kind says how rows are transformed first (``phi.prepare``). Its width
        and seed do not matter and are no part of the mixture.
    group_size:
        About how many rows a group has on average: a few less where rows are spread evenly, down
        to ``group_size - min_group + 1``, but at least about 1.5 ``min_group``.
    min_group:
        Least rows of a group. Smaller groups join another group of their class. Classes with
        fewer rows are left out and listed in ``withheld``. 1 keeps everything, also single rows.
    directions:
        q, the leading directions of the residuals to keep. Fewer where there are few rows: n rows
        in g groups give at most (n - g) / ``min_group`` directions.

    Notes
    -----
    Cost: n_c^2 d operations per class for inner products, n_c^2 k per step of k-means, and the
    leading eigenvectors of the smaller Gram of the residuals. The result is deterministic.
    """
    group_size = positive_integer(group_size, "group_size")
    min_group = positive_integer(min_group, "min_group")
    if isinstance(directions, bool) or not isinstance(directions, (int, np.integer)):
        raise ValueError(f"directions must be an integer, got {directions!r}")
    if not 0 <= directions <= MAX_DIRECTIONS:
        raise ValueError(f"directions must lie in 0 .. {MAX_DIRECTIONS}, got {directions}")
    if not isinstance(phi, RandomFeatures):
        got = type(phi).__name__
        raise TypeError(f"phi must be a RandomFeatures, got {got}; call condense(Z, y, phi)")
    given = as_matrix(Z, "Z", phi.in_features)
    classes, codes = encode_labels(y, int(given.shape[0]))
    require_finite(given, "Z")
    X = to_numpy(phi.prepare(given))
    largest = float(np.einsum("ij,ij->i", X, X, dtype=np.float64).max(initial=0.0))
    if largest > 0 and not SQUARED_NORMS[0] < largest < SQUARED_NORMS[1]:
        raise ValueError(
            f"Z has rows of squared norms up to {largest:.3g}, out of the range of float32; "
            "rescale the features"
        )
    n_rows = np.bincount(codes[codes != MISSING], minlength=len(classes))
    kept = [c for c in range(len(classes)) if n_rows[c] >= min_group]
    withheld = {classes[c]: int(n_rows[c]) for c in range(len(classes)) if n_rows[c] < min_group}
    if not kept:
        return Mixture((), phi.input_fingerprint, withheld)
    found = [_group_class(X[codes == c], group_size, min_group) for c in kept]
    counts = np.concatenate([f.counts for f in found])
    residuals = np.concatenate([f.residuals for f in found])
    # Rows of few groups would lie in the span of their directions, and could be found there.
    described = (len(residuals) - len(counts)) // min_group
    lead, shares = _residual_directions(residuals, min(int(directions), described))
    part = MixturePart(
        classes=tuple(classes[c] for c in kept),
        codes=np.repeat(np.arange(len(kept)), [len(f.counts) for f in found]),
        means=np.concatenate([f.means for f in found]),
        counts=counts,
        spreads=np.concatenate([f.spreads for f in found]),
        directions=lead,
        shares=shares,
    )
    return Mixture((part,), phi.input_fingerprint, withheld)


class _Groups(NamedTuple):
    """The groups of one class, and the residuals of its rows."""

    means: Float32[NDArray[Any], "g d"]
    counts: Int64[NDArray[Any], " g"]
    spreads: Float64[NDArray[Any], " g"]
    residuals: Float32[NDArray[Any], "n d"]


def _group_class(X: Float32[NDArray[Any], "n d"], group_size: int, min_group: int) -> _Groups:
    """Means, counts and spreads of the groups of one class's rows."""
    groups = group_rows(X, group_size, min_group)
    order = np.argsort(groups, kind="stable")
    counts = np.bincount(groups)
    starts = np.cumsum(counts) - counts
    X = X[order]
    means = np.add.reduceat(X, starts, axis=0, dtype=np.float64) / counts[:, None]
    means = means.astype(np.float32)
    residuals = X - np.repeat(means, counts, axis=0)
    residuals[np.repeat(counts == 1, counts)] = 0.0
    squares = np.einsum("ij,ij->i", residuals, residuals, dtype=np.float64)
    return _Groups(means, counts, np.add.reduceat(squares, starts) / counts, residuals)


def _residual_directions(
    residuals: Float32[NDArray[Any], "n d"], q: int
) -> tuple[Float32[NDArray[Any], "q d"], Float64[NDArray[Any], " q"]]:
    """The q leading directions of the residuals and their shares of the squared residuals."""
    d = residuals.shape[1]
    residuals = residuals[np.any(residuals != 0, axis=1)]
    none = np.zeros((0, d), dtype=np.float32), np.zeros(0)
    if q == 0 or not len(residuals):
        return none
    result = leading(residuals.T, min(q, *residuals.shape), "the residuals")
    if result.energy == 0:
        return none
    factor = np.asarray(result.factor, dtype=np.float64)
    squares = np.sum(factor**2, axis=0)
    # Orthonormal to rounding already; QR makes it exact where residuals are few or small.
    basis, triangle = np.linalg.qr(factor / np.sqrt(squares))
    basis *= np.sign(np.diagonal(triangle))
    shares = np.minimum(squares / result.energy, 1.0)
    return np.ascontiguousarray(basis.T, dtype=np.float32), shares / max(1.0, shares.sum())
