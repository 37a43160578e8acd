"""Eigenpairs of a symmetric matrix, by the fastest driver for the number that is wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float64,
    cast,
    is_numpy_array,
    linalg_errors,
    namespace,
)


def eigh(K: Float[Array, "w w"], first: int) -> tuple[Float64[Array, " k"], Float64[Array, "w k"]]:
    """Eigenpairs ``first`` .. end of K, ascending, in float64."""
    if not is_numpy_array(K):
        with linalg_errors():
            values, U = namespace(K).linalg.eigh(cast(K, "float64"))
    elif K.shape[0] - first <= K.shape[0] / 6:
        return eigh_some(K.astype(np.float64), first)
    else:
        values, U = scipy.linalg.eigh(cast(K, "float64"), driver="evd", check_finite=False)
    return values[first:], U[:, first:]


def eigh_some(
    K: Float[NDArray[Any], "w w"], first: int
) -> tuple[Float[NDArray[Any], " k"], Float[NDArray[Any], "w k"]]:
    """Eigenpairs ``first`` .. end of K in its own precision, by LAPACK's evr."""
    span = [first, K.shape[0] - 1]
    return scipy.linalg.eigh(K, driver="evr", subset_by_index=span, check_finite=False)
