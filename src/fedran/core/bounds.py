r"""The paper's error bounds, computed from the accounts of a state.

They bound the error due to truncation, quantisation and the solver's residual, against the full
ridge at the same lambda. Rounding in the accumulated Gram is not included. They are diagnoses: with
the paper's lambda of 1e-3 the bound on W is astronomically large, at the default rank and precision
it says nothing of any row, and without truncation in float32 or float64 it is tight.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from fedran.core.accounts import Accounts


@dataclass(frozen=True, slots=True)
class GramBounds:
    """Bounds on G - G~ for everything absorbed; infinite where mixtures were absorbed."""

    spectral: float
    """Theorem 1: sum of the first discarded eigenvalues, plus quantisation."""
    frobenius: float
    """The same argument in the Frobenius norm."""
    trace: float
    """Discarded energy plus quantisation; bounds the spectral norm too, as residuals are PSD."""
    relative_tail: float
    """Corollary: (eta_loc + eta_merge L_t) E_t, plus quantisation."""


def gram_bounds(accounts: Accounts) -> GramBounds:
    """Theorem 1, its Frobenius and trace forms, and the relative-tail corollary."""
    if accounts.mixture_rows:
        return GramBounds(*(math.inf,) * 4)
    share = accounts.eta_loc + accounts.eta_merge * accounts.merges
    return GramBounds(
        spectral=accounts.eps_G,
        frobenius=accounts.eps_G_fro,
        trace=accounts.cut + accounts.eps_quant,
        relative_tail=share * accounts.energy + accounts.eps_quant,
    )


def weight_bound(
    accounts: Accounts, lam: float, norm_W: float, residual: float = 0.0, outside: float = 0.0
) -> float:
    """A tighter form of Theorem 2.

    ``||W - W*|| <= (eps_G ||W|| + eps_B + ||R|| + ||outside||) / lambda``.

    It follows from ``(G + lambda I)(W - W*) = (G - G~) W - R + (B~ - B)``, where G~ and B~ are
    the stored approximations and the inverse of the left matrix has norm at most 1/lambda. It
    uses the solved W instead of the crude bound ``||B|| / lambda``. All norms are Frobenius norms.
    Where mixtures were absorbed no bound exists, and the result is the largest float.
    """
    if accounts.mixture_rows:
        return sys.float_info.max
    bound = (accounts.eps_G * norm_W + accounts.eps_B + residual + outside) / lam
    return min(bound, sys.float_info.max)  # where it overflows: still true, and it can be stored


def paper_weight_bound(
    accounts: Accounts, lam: float, norm_B: float, outside: float = 0.0
) -> float:
    """Theorem 2 as printed: ``eps_G ||B|| / lambda^2 + ||(I - VV')B|| / lambda``."""
    if accounts.mixture_rows:
        return sys.float_info.max
    bound = accounts.eps_G / lam * norm_B / lam + outside / lam
    return min(bound, sys.float_info.max)
