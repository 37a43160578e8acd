"""Rows into a Gram, block by block: what every exact learner does with its features."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, cast, namespace, to_numpy
from fedran.core.exact_sum import ExactSum
from fedran.core.summarize import class_sums


def accumulate(
    total: ExactSum,
    blocks: Iterable[tuple[slice, Array]],
    codes: NDArray[np.int64],
    n_classes: int,
) -> tuple[NDArray[np.float64], float]:
    """Add H'H of all blocks to ``total``; return the class sums (M, C) and ||H||_F^2.

    M^2 n operations for n rows, and the memory of one block beside the Gram. With a float64
    Gram the class sums are float64 throughout too: where the ridge is small, rounding of B
    outside the range of G would be divided by it.

    >>> total = ExactSum(2, "float64", stack=False)
    >>> H = np.array([[1.0, 0.0], [1.0, 2.0]])
    >>> sums, energy = accumulate(total, [(slice(0, 2), H)], np.array([0, 1]), 2)
    >>> sums.tolist(), energy, np.tril(total.gram()).tolist()
    ([[1.0, 1.0], [0.0, 2.0]], 6.0, [[2.0, 0.0], [2.0, 4.0]])
    """
    sums = np.zeros((total.out_features, n_classes))
    energy = 0.0
    for rows, block in blocks:
        H = cast(block, total.dtype) if total.dtype == "float64" else block
        total.add(H.T)
        sums += to_numpy(class_sums(H, codes[rows], n_classes))
        energy += _energy(H)
    return sums, energy


def _energy(H: Array) -> float:
    if isinstance(H, np.ndarray):
        return float(np.einsum("ij,ij->i", H, H).sum(dtype=np.float64))
    xp = namespace(H)
    return float(xp.sum(cast(xp.sum(H * H, axis=1), "float64")))
