"""A head without a ridge: there is no bound to state, and its diagnosis says so."""

from __future__ import annotations

import sys
from typing import Any

from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, cast
from fedran.core.accounts import Accounts
from fedran.core.fingerprint import Fingerprint
from fedran.core.head import Diagnosis, Head
from fedran.core.labels import Label

NO_BOUND = sys.float_info.max


def unregularised_head(
    weights: Array,
    eigenvalues: NDArray[Any],
    accounts: Accounts,
    classes: tuple[Label, ...],
    route: str,
    fingerprint: Fingerprint | None = None,
) -> Head:
    """A head at lambda = 0 over the directions with these (positive) eigenvalues."""
    smallest, largest = float(eigenvalues.min()), float(eigenvalues.max())
    diagnosis = Diagnosis(
        route=f"{route}, no ridge and so no bound",
        lam=0.0,
        f=accounts.cut_fraction,
        n_rows=accounts.n_rows,
        effective_rank=float(eigenvalues.sum() ** 2 / (eigenvalues @ eigenvalues)),
        condition=min(largest / smallest, NO_BOUND),
        residual=0.0,
        eps_W=NO_BOUND,
        eps_W_paper=NO_BOUND,
    )
    return Head(cast(weights, "float32"), classes, diagnosis, fingerprint)
