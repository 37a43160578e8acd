"""FedCGS: Gaussian classes that share the covariance of all rows."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.core._linalg.arrays import cast, like, linalg_errors, namespace, to_numpy
from fedran.core.head import Head
from fedran.methods.analytic.base import unregularised_head
from fedran.methods.analytic.gram_based import GramState
from fedran.methods.analytic.moments import (
    FLOAT32_ROUNDING,
    MomentMethod,
    gaussian_bias,
    log_priors,
    total_scatter,
)
from fedran.methods.protocol import Claims


@dataclass(frozen=True)
class FedCGS(MomentMethod):
    """w_c = S^-1 m_c and b_c = log(n_c / N) - 1/2 m_c' w_c, S the covariance of all rows.

    S has the denominator N - 1 and no ridge, as in the published code, which inverts it in
    float64. Here the second moments travel in float32, as those of the other methods, so S is
    inverted on the directions whose eigenvalue exceeds that rounding. Where there is none, S is
    taken to be the identity. d^3 operations per task. The personalised second stage of the paper
    is not implemented.
    """

    device: str | None = None

    name = "FedCGS"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "partly: equals its formula on pooled rows; its published tables use other backbones"

    def solve(self, state: GramState) -> Head:
        """Invert the covariance where it is known, one column of weights per class."""
        sums, accounts = state.total.class_sums, state.total.accounts
        means = sums.means
        xp = namespace(means)
        S = total_scatter(state.total) / max(accounts.n_rows - 1, 1)
        with linalg_errors():
            values, U = xp.linalg.eigh(S)
        known = values > FLOAT32_ROUNDING * accounts.mean_row_energy
        if bool(xp.any(known)):
            values, U = values[known], U[:, known]
        else:
            values = xp.ones_like(values)
        W = U @ ((U.T @ means) / values[:, None])
        bias = gaussian_bias(means, W) + like(log_priors(sums), W)
        weights = cast(xp.concat([W, bias[None, :]], axis=0), "float32")
        route = f"total covariance over {values.shape[0]} of {U.shape[0]} directions"
        return unregularised_head(weights, to_numpy(values), accounts, sums.classes, route)
