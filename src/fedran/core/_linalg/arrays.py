"""One code path for NumPy arrays and torch tensors, through the array API standard."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj, is_torch_array
from array_api_compat import device as device
from numpy.typing import NDArray

from fedran.core.errors import MissingExtra

if TYPE_CHECKING:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Float32 as Float32
    from jaxtyping import Float64 as Float64
    from jaxtyping import Int64 as Int64

    Array: TypeAlias = NDArray[Any]
    """A NumPy array or a torch tensor. Type checkers see NumPy's; ``namespace`` serves both."""
else:
    Array = Any
    # Annotations such as Float[Array, "n M"] are never evaluated here. Only the tests check them:
    # they import jaxtyping first, which takes 0.2 s and is no dependency of the package.
    _jaxtyping = sys.modules.get("jaxtyping")
    Bool, Float, Float32, Float64, Int64 = (
        getattr(_jaxtyping, name, Any) for name in ("Bool", "Float", "Float32", "Float64", "Int64")
    )


def namespace(x: Array) -> ModuleType:
    """The array API namespace (``array_api_compat.numpy`` or ``.torch``) of ``x``."""
    return array_namespace(x)


def is_numpy_array(x: object) -> bool:
    """Whether ``x`` is a NumPy array, not a torch tensor."""
    return isinstance(x, np.ndarray)


def to_numpy(x: Any) -> NDArray[Any]:
    """``x`` as a NumPy array on the CPU; no copy when it is one already."""
    if is_torch_array(x):
        return x.detach().cpu().numpy()
    return np.asarray(x)


def to_device(x: Array, where: str | None, dtype: str | None = None) -> Array:
    """``x`` on a torch device, or as a NumPy array when ``where`` is None.

    ``dtype`` is ``"float32"`` or ``"float64"``; None keeps the dtype of ``x``.
    """
    if where is None:
        moved: Array = to_numpy(x)
    else:
        try:
            import array_api_compat.torch as xp
        except ImportError:
            raise MissingExtra(f"device={where!r} needs PyTorch", "torch") from None
        moved = xp.asarray(_writeable(x), device=where)
    return moved if dtype is None else cast(moved, dtype)


def like(x: Array, reference: Array) -> Array:
    """``x`` in the namespace and on the device of ``reference`` (its dtype unchanged)."""
    if is_numpy_array(reference):
        return to_numpy(x)
    return namespace(reference).asarray(_writeable(x), device=device(reference))


def _writeable(x: Array) -> Array:
    """torch shares memory with NumPy and requires writeable memory."""
    return x.copy() if is_numpy_array(x) and not x.flags.writeable else x


def cast(x: Array, dtype: str) -> Array:
    """``x`` as ``"float32"`` or ``"float64"``; no copy when it is that already."""
    xp = namespace(x)
    return xp.astype(x, getattr(xp, dtype), copy=False)


def scale_rows(
    x: Float[Array, "n columns"], factors: Float64[Array, " n"]
) -> Float[Array, "n columns"]:
    """Each row of ``x`` times its factor, in the dtype of ``x``."""
    return x * namespace(x).astype(like(factors, x), x.dtype)[:, None]


def contiguous(x: Any, copy: bool = False) -> Array:
    """``x`` in row-major memory.

    BLAS results depend on the memory layout, so a loaded state must have the same one.
    """
    if is_numpy_array(x):
        return np.array(x, order="C", copy=True if copy else None)
    return x.clone().contiguous() if copy else x.contiguous()


@contextmanager
def linalg_errors() -> Iterator[None]:
    """Convert torch's LinAlgError (a RuntimeError) to NumPy's."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__name__.endswith("LinAlgError"):
            raise
        raise np.linalg.LinAlgError(str(error)) from None


def eps(x: Array) -> float:
    """Machine epsilon of the dtype of ``x``: the distance from 1 to the next number."""
    return float(namespace(x).finfo(x.dtype).eps)


def as_matrix(x: Any, name: str, columns: int | None = None) -> Float[Array, "n columns"]:
    """``x`` as an (n, columns) matrix of float32 or float64, or a ValueError that says why not.

    Integers, booleans and half precision become float32; float32 and float64 stay what they are.
    Values are not inspected here: see ``require_finite``.
    """
    require_dense(x, name)
    expected = f"{name} must be a matrix (rows, columns)"
    try:
        array = x if is_array_api_obj(x) else np.asarray(x)
    except ValueError:
        raise ValueError(f"{expected}, got rows of different lengths") from None
    if array.ndim != 2:
        hint = f"; for one row use {name}[None, :]" if array.ndim == 1 else ""
        got = f"shape {tuple(array.shape)}" if array.ndim else type(x).__name__
        raise ValueError(f"{expected}, got {got}{hint}")
    if columns is not None and array.shape[1] != columns:
        raise ValueError(f"{name} must have {columns} columns, got shape {tuple(array.shape)}")
    if is_numpy_array(array) and array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    xp = namespace(array)
    if xp.isdtype(array.dtype, "complex floating"):
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if array.dtype in (xp.float32, xp.float64):
        return array
    return xp.astype(array, xp.float32)


def check_weights(sample_weight: Any, n: int) -> Float64[NDArray[Any], " {n}"]:
    """``sample_weight`` as n float64 weights; ValueError unless they are finite and at least 0."""
    try:
        weights = to_numpy(sample_weight).astype(np.float64)
    except (TypeError, ValueError):
        got = type(sample_weight).__name__
        raise ValueError(f"sample_weight must hold {n} numbers, got {got}") from None
    if weights.shape != (n,):
        raise ValueError(f"sample_weight must hold {n} numbers, got shape {weights.shape}")
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        row = int(np.argmin(np.isfinite(weights) & (weights >= 0)))
        raise ValueError(
            f"sample_weight must be finite and at least 0, got {weights[row]} in row {row}"
        )
    return weights


def require_dense(x: Any, name: str) -> None:
    """TypeError for sparse rows, which begins with scikit-learn's words and names two ways out."""
    if hasattr(x, "tocsr") or "sparse" in str(getattr(x, "layout", "")):
        raise TypeError(
            f"Sparse data was passed for {name}, but dense data is required. Use {name}.toarray(), "
            "or where that is too large, fewer columns: sklearn.decomposition.TruncatedSVD before "
            "the classifier in a pipeline"
        )


def require_finite(x: Float[Array, "n columns"], name: str) -> None:
    """ValueError naming the first row of ``x`` that holds NaN or infinity, if there is one."""
    xp = namespace(x)
    good = xp.all(xp.isfinite(x), axis=1)
    if not bool(xp.all(good)):
        row = int(np.argmin(to_numpy(good)))
        raise ValueError(
            f"{name} holds NaN or infinite values, first in row {row}; impute them "
            "or leave such rows out"
        )
