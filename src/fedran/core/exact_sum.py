"""The exact sum of Grams: a stack of factors while that is narrow, one (M, M) matrix after."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, is_numpy_array, namespace, to_device, to_numpy
from fedran.core._linalg.blas import add_outer, mirror

Form = Literal["stack", "gram"]


class ExactSum:
    """G = sum of F F' over everything added, never truncated.

    While the factors side by side are at most M/4 wide they are kept as they are: adding is a
    copy, and a solve costs w^2 M in float64. Beyond that (measured), it takes longer than
    factorising an (M, M) matrix, so the sum becomes one: adding F then costs M^2 r.

    In NumPy only the lower triangle of the Gram is kept up to date (Fortran order).
    ``stack=False`` goes straight to the Gram, so that no row of H is ever kept.
    """

    def __init__(
        self,
        out_features: int,
        dtype: str = "float32",
        device: str | None = None,
        stack: bool = True,
    ) -> None:
        self.out_features = out_features
        self.dtype = dtype
        self.device = device
        self.limit = out_features // 4 if stack else 0
        self._stack: list[Array] = []
        self._gram: Array | None = None
        self.width = 0

    @property
    def form(self) -> Form:
        """``"stack"`` or ``"gram"``."""
        return "stack" if self._gram is None else "gram"

    def add(self, factor: Array) -> None:
        """Add F F' for a factor (M, r)."""
        factor = self._mine(factor)
        if self._gram is None and self.width + factor.shape[1] <= self.limit:
            self._stack.append(contiguous(factor, copy=True))
        else:
            self._to_gram()
            self._gram = add_outer(self._gram, factor)
        self.width += int(factor.shape[1])

    def subtract(self, factor: Array) -> None:
        """Take F F' away, for estimators whose correction is negative."""
        self._to_gram()
        self._gram = add_outer(self._gram, self._mine(factor), -1.0)

    def add_gram(self, gram: Array) -> None:
        """Add an (M, M) matrix of which the lower triangle is read."""
        self._to_gram()
        self._gram += self._mine(gram)

    def factor(self) -> Array:
        """The stack side by side, (M, w)."""
        if len(self._stack) > 1:
            self._stack = [namespace(self._stack[0]).concat(self._stack, axis=1)]
        return self._stack[0] if self._stack else self._mine(np.zeros((self.out_features, 0)))

    def gram(self) -> Array:
        """The (M, M) matrix itself, not a copy; in NumPy only its lower triangle is valid."""
        self._to_gram()
        return self._gram

    def restore(self, form: Form, array: Array, width: int) -> None:
        """Take over a state made by ``factor`` or ``gram``."""
        if form == "gram" and self.device is not None:
            array = symmetric(to_numpy(array))  # on a device both triangles are valid
        array = self._mine(array)
        if form == "stack":
            self._stack = [array] if array.shape[1] else []
        else:
            self._gram = array
        self.width = width

    def _to_gram(self) -> None:
        if self._gram is None:
            stacked = self.factor()
            shape = (self.out_features, self.out_features)
            self._gram = self._mine(np.zeros(shape, dtype=self.dtype, order="F"))
            self._stack = []
            if stacked.shape[1]:
                self._gram = add_outer(self._gram, stacked)

    def _mine(self, array: Array) -> Array:
        xp_array = to_device(array, self.device)
        xp = namespace(xp_array)
        return xp.astype(xp_array, getattr(xp, self.dtype), copy=False)


def contiguous(array: Array, copy: bool = False) -> Array:
    """Row-major memory: BLAS rounds by layout, and a saved state must go on bit for bit."""
    if is_numpy_array(array):
        return np.array(array, order="C", copy=True if copy else None)
    return array.clone().contiguous() if copy else array.contiguous()


def symmetric(gram: Array) -> Array:
    """A full symmetric copy of a Gram whose lower triangle is valid."""
    copy = namespace(gram).asarray(gram, copy=True)
    return mirror(copy) if is_numpy_array(gram) else copy


def pack_lower(gram: Array) -> NDArray[np.floating]:
    """The lower triangle column by column, (M (M + 1) / 2,)."""
    # On a device both triangles are valid and rows lie together: read those.
    matrix = gram if is_numpy_array(gram) else to_numpy(gram).T
    m = matrix.shape[0]
    packed = np.empty(m * (m + 1) // 2, dtype=matrix.dtype)
    start = 0
    for j in range(m):
        packed[start : start + m - j] = matrix[j:, j]
        start += m - j
    return packed


def unpack_lower(packed: NDArray[np.floating], m: int) -> NDArray[np.floating]:
    """Inverse of ``pack_lower``: Fortran order, lower triangle filled, zeros above."""
    matrix = np.zeros((m, m), dtype=packed.dtype, order="F")
    start = 0
    for j in range(m):
        matrix[j:, j] = packed[start : start + m - j]
        start += m - j
    return matrix
