"""What a secure sum adds: class sums, counts, energy and a sketch of the Gram of one task.

A factor does not add, so sites that sum their statistics under masks send linear ones instead.
``sketch_sums`` computes them at a site, and ``+`` adds those of several sites. The sum becomes an
ordinary summary in ``core.solve.nystrom``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float32,
    Float64,
    as_matrix,
    cast,
    like,
    namespace,
    require_finite,
    to_numpy,
)
from fedran.core._linalg.blas import gram, matmul, pack_lower
from fedran.core.errors import Refused, positive_integer
from fedran.core.labels import MISSING, Label, encode_labels, ordered, recode
from fedran.core.sums.class_sums import SUM_BLOCK, ClassSums


@dataclass(frozen=True, eq=False)
class SketchSums:
    """Statistics of one site's rows H (n, M) of one task, all of them linear in the rows' Gram.

    ``a + b`` describes the rows of both. The class list is fixed by whoever asks for the sums,
    not by the rows: a site that has no row of a class sends zeros for it.

    >>> import numpy as np
    >>> H = np.array([[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]])
    >>> a = sketch_sums(H[:2], ["cat", "dog"], ["cat", "dog"])
    >>> b = sketch_sums(H[2:], ["dog"], ["cat", "dog"])
    >>> (a + b).sums.counts, (a + b).energy, (a + b).sketch.tolist()
    ((1, 2), 15.0, [5.0, 2.0, 10.0])
    """

    sums: ClassSums
    """Class sums and counts over the whole class list; a count may be 0."""
    energy: float
    """||H||_F^2."""
    sketch: Float64[Array, "M s"] | Float64[NDArray[Any], " packed"]
    """Y = G Omega, (M, s), of the uncentred Gram G = H'H; or the upper triangle of G row by row."""

    @property
    def classes(self) -> tuple[Label, ...]:
        """The class list, in canonical order."""
        return self.sums.classes

    @property
    def out_features(self) -> int:
        """M, the width of the rows."""
        return self.sums.out_features

    @property
    def width(self) -> int | None:
        """s, the number of columns of the sketch; None where the Gram itself is held."""
        return None if self.sketch.ndim == 1 else int(self.sketch.shape[1])

    def __add__(self, other: object) -> SketchSums:
        if not isinstance(other, SketchSums):
            return NotImplemented
        for name in ("classes", "out_features", "width"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise Refused(f"sketch_sums.{name}", f"{mine}, as the other ones have", theirs)
        sketch = self.sketch + like(other.sketch, self.sketch)
        return SketchSums(self.sums + other.sums, self.energy + other.energy, sketch)

    def __radd__(self, other: object) -> SketchSums:
        """Lets ``sum([a, b, c])`` start from 0."""
        return self if other == 0 else NotImplemented

    def vector(self) -> Float64[NDArray[Any], " k"]:
        """Everything as one vector: counts, energy, class sums, sketch (see ``section_sizes``)."""
        parts = [
            np.asarray(self.sums.counts, dtype=np.float64),
            np.array([self.energy]),
            np.ravel(to_numpy(self.sums.sums).T),
            np.ravel(to_numpy(self.sketch)),
        ]
        return np.concatenate(parts)

    @classmethod
    def from_vector(
        cls,
        vector: Float64[NDArray[Any], " k"],
        classes: Sequence[Label],
        out_features: int,
        width: int | None,
    ) -> SketchSums:
        """Inverse of ``vector``. Refused unless the counts are numbers of rows."""
        labels = ordered(classes)
        sizes = section_sizes(len(labels), out_features, width)
        if vector.shape != (sum(sizes),):
            expected = f"a vector of {sum(sizes)} entries"
            raise Refused("sketch_sums", expected, f"shape {vector.shape}")
        if not np.all(np.isfinite(vector)):
            raise Refused("sketch_sums", "finite values", "NaN or infinity")
        counts, one, flat, sketch = np.split(vector, np.cumsum(sizes)[:-1])
        energy, sums = float(one[0]), flat.reshape(len(labels), out_features)
        if width is not None:
            sketch = sketch.reshape(out_features, width)
        if np.any(counts < 0) or np.any(counts != np.rint(counts)):
            raise Refused("counts", "whole numbers, at least 0", counts.tolist())
        if energy < 0:
            raise Refused("energy", "at least 0", energy)
        for label, count, row in zip(labels, counts, sums, strict=True):
            if count == 0 and np.any(row != 0):
                raise Refused("class_sums", f"zeros for class {label!r}, which has no row", "more")
        held = ClassSums(labels, sums.T, tuple(int(n) for n in counts))
        return cls(held, energy, sketch)


def section_sizes(n_classes: int, out_features: int, width: int | None) -> tuple[int, ...]:
    """Entries of the four sections of a vector: counts, energy, class sums, sketch.

    Class sums are written one class after the other and the sketch row by row. Without a width
    the last section is the upper triangle of the Gram, row by row.

    >>> section_sizes(20, 8192, 512), section_sizes(20, 192, None)
    ((20, 1, 163840, 4194304), (20, 1, 3840, 18528))
    """
    M = out_features
    last = M * (M + 1) // 2 if width is None else M * width
    return n_classes, 1, n_classes * M, last


def sketch_sums(
    H: ArrayLike | Array, y: Any, classes: Sequence[Label], omega: Float[Array, "M s"] | None = None
) -> SketchSums:
    r"""The sums of rows H (n, M) with labels y; rows without a label are left out.

    Parameters
    ----------
    H:
        (n, M) random features, or raw features, NumPy or torch; n may be 0.
    y:
        n labels, int or str; None or NaN where there is none.
    classes:
        The class list that all sites share. A label that is not in it is a ValueError.
    omega:
        (M, s), the same at all sites (``blind_omega``): the sketch is ``H'(H Omega)``.
        None for the Gram itself, which is smaller where s exceeds M / 2.

    Notes
    -----
    4 n M s operations (n M^2 for the Gram). Sums add, so a site may sum those of its batches.
    Blocks of rows are multiplied in the dtype of H, and the blocks are added in float64.
    """
    given = as_matrix(H, "H")
    require_finite(given, "H")
    labels = ordered(classes)
    found, codes = encode_labels(y, int(given.shape[0]))
    strange = [c for c in found if c not in set(labels)]
    if strange:
        raise ValueError(
            f"label {strange[0]!r} is not in the class list of this sum; remove such rows, or ask "
            "for a list that contains it"
        )
    codes = recode(codes, found, labels)
    keep = np.flatnonzero(codes != MISSING)
    if len(keep) < len(codes):
        given, codes = given[like(keep, given)], codes[keep]
    n, M = given.shape
    if omega is not None:
        omega = cast(like(omega, given), str(given.dtype).rpartition(".")[2])
        if omega.ndim != 2 or omega.shape[0] != M:
            raise ValueError(f"omega must have shape ({M}, s), got {tuple(omega.shape)}")
    columns = M if omega is None else int(omega.shape[1])
    sketch, energy = like(np.zeros((M, columns)), given), 0.0
    for i in range(0, n, SUM_BLOCK):
        rows = given[i : i + SUM_BLOCK]
        exact = cast(rows, "float64")
        energy += float(namespace(exact).sum(exact * exact))
        if omega is None:
            sketch += gram(exact)
        else:
            sketch += cast(matmul(rows.T, matmul(rows, omega)), "float64")
    held = pack_lower(sketch) if omega is None else sketch
    return SketchSums(ClassSums.from_codes(given, labels, codes), energy, held)


def sketch_width(columns: int, out_features: int) -> int | None:
    """The width of a sketch; None for the packed Gram, which is exact.

    The Gram is taken where it has hardly more numbers than the sketch, or if no column is wanted.

    >>> [sketch_width(s, 1024) for s in (0, 511, 512, 2000)]
    [None, 511, None, None]
    """
    return columns if 0 < 2 * columns < out_features else None


def blind_omega(out_features: int, width: int, seed: int | Sequence[int]) -> Float32[Array, "M s"]:
    """A Gaussian Omega, (M, s) float32, with columns of about unit norm, from a public seed.

    It is drawn from NumPy's legacy ``RandomState``, as the projection of the random features, so
    a seed gives the same matrix on every machine.
    """
    if positive_integer(width, "width") > out_features:
        raise ValueError(f"width must be at most M = {out_features}, got {width}")
    generator = np.random.RandomState(seed)
    drawn = generator.standard_normal((out_features, width))
    return (drawn / math.sqrt(out_features)).astype(np.float32)
