"""The scale of feature columns: rows that overflow, and columns that hide all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedran.core.errors import printable
from fedran.core.prepare import Kind, unit_rows
from fedran.core.sums.aggregator import FLOAT32_ENERGY

SHARE = 0.95
"""Of the energy: columns with so much of it leave nothing to the others. Of scikit-learn's `wine`
one column has 97 %, and scaling raises the accuracy from 92.1 to 98.9 %. The first three columns
of backbones' features have 3 to 22 %."""
MOST = 3
"""Most columns that count as few, and at most a quarter of all."""
SMALL = 2e-4
"""Energy of rows, as a share of that of the constant of ``bias=True``. With half of it, a third of
scikit-learn's `wine` is classified wrongly instead of one row in 50
(tests/core/sums/test_scale.py). Rows of norm 1 have more for up to 5,000 columns."""
SAMPLE = 2000
"""Rows that are looked at, evenly spaced."""


def unequal_scales(X: NDArray[Any], names: Sequence[str] = (), kind: Kind = "cosine") -> str:
    """A clause if few columns of X (n, d) have nearly all of the rows' energy, else empty.

    They must also have it in the rows in which other columns are not zero: a frequent category of a
    one-hot code hides no rare one. Every row counts alike. Empty for values that are no finite
    numbers: they are refused elsewhere.

    >>> X = np.random.default_rng(0).normal(size=(100, 5))
    >>> unequal_scales(X)
    ''
    >>> unequal_scales(X * [1, 1, 1000, 1, 1], ["age", "dose", "income", "weight", "pulse"])
    "1 of 5 columns ('income') has 100 % of the rows' energy and hides the others"
    """
    n, d = X.shape
    few = min(MOST, d // 4)
    if not n or not few or X.dtype.kind not in "fiub":
        return ""
    rows = _sampled(X)
    if not np.isfinite(rows).all():
        return ""
    if kind == "hellinger":
        rows = np.sqrt(np.maximum(rows, 0))
    squares = np.square(unit_rows(rows))
    energy = np.mean(squares, axis=0)
    largest = np.argsort(-energy, kind="stable")[:few]
    reached = np.flatnonzero(np.cumsum(energy[largest]) >= SHARE * energy.sum())
    if not len(reached) or not energy.any():
        return ""
    found = largest[: reached[0] + 1]
    others = np.delete(squares, found, axis=1).any(axis=1)
    if not others.any() or np.mean(squares[others][:, found].sum(axis=1)) < SHARE:
        return ""
    shown = ", ".join(repr(printable(names[j], 60)) if len(names) else f"number {j}" for j in found)
    share = energy[found].sum() / energy.sum()
    verbs = ("has", "hides") if len(found) == 1 else ("have", "hide")
    return (
        f"{len(found)} of {d} columns ({shown}) {verbs[0]} {100 * share:.0f} % of the rows' energy "
        f"and {verbs[1]} the others"
    )


def small_rows(X: NDArray[Any], kind: Kind = "cosine") -> str:
    """A clause if the constant d of ``bias=True`` hides the rows X (n, d), else empty.

    >>> X = np.random.default_rng(0).normal(size=(100, 5))
    >>> small_rows(X), small_rows(X / 1000)
    ('', "the rows have 1e-06 of the energy of bias=True's constant, which hides them")
    """
    rows = _sampled(X)
    with np.errstate(over="ignore"):
        share = float(np.mean(np.abs(rows) if kind == "hellinger" else np.square(rows)))
    if not 0 < share < SMALL:
        return ""
    return f"the rows have {share:.0e} of the energy of bias=True's constant, which hides them"


def require_energy(X: NDArray[Any], out_features: int) -> None:
    """ValueError if a float32 Gram of relu features of these rows would overflow or vanish."""
    with np.errstate(over="ignore"):
        values: NDArray[Any] = X if isinstance(X, np.ndarray) else np.asarray(X.data)[:, None]
        energy = float(np.einsum("ij,ij", values, values)) * out_features
    low, high = FLOAT32_ENERGY
    if not low < energy < high and np.any(values):
        expected = f"expected {low:g} to {high:g}: rescale it, for example with StandardScaler"
        raise ValueError(f"X has an energy of about {energy:.3g}; {expected}")


def _sampled(X: NDArray[Any]) -> NDArray[np.float64]:
    n = X.shape[0]
    if sparse.issparse(X):  # about 2 million numbers of them
        few = min(n, SAMPLE, max(1, 2_000_000 // X.shape[1]))
        return X[np.linspace(0, n - 1, few).astype(int)].toarray().astype(np.float64)
    return X[np.linspace(0, n - 1, min(n, SAMPLE)).astype(int)].astype(np.float64)
