"""From the sum of the sites' totals to an ordinary summary, by Nystrom's formula."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float64,
    cast,
    like,
    linalg_errors,
    namespace,
    to_numpy,
)
from fedran.core._linalg.blas import gram, matmul, mirror, unpack_lower
from fedran.core._linalg.truncation import eigh
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint
from fedran.core.private.sketch_sums import SketchSums
from fedran.core.solve.ridge import Ridge, frobenius
from fedran.core.summarize import without_rounding
from fedran.core.summary import ENERGY_SLACK, Summary
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums

SKETCH_BASE, SKETCH_SLOPE = 0.03, 4.0
"""Constants of ``sketch_ridge``."""
FLOAT32_ROUNDING = float(np.finfo(np.float32).eps)


class RoundingErrors(NamedTuple):
    """How much fixed-point numbers may differ from the real ones, per entry and site."""

    n_sites: int = 0
    sums: float = 0.0
    """Largest error of one entry of one site's class sums."""
    sketch: float = 0.0
    """Largest error of one entry of one site's sketch, or of its Gram."""
    energy: float = 0.0
    """Largest error of one site's energy."""

    def spectral(self, error: float, rows: int, columns: int) -> float:
        """A bound on the norm of a (rows, columns) matrix of rounding errors of all sites.

        The errors are independent and uniform up to ``error`` per site, so that the norm of a
        large matrix is near sigma (sqrt(rows) + sqrt(columns)) with sigma^2 = n_sites error^2 / 3.
        It never exceeds n_sites error sqrt(rows columns).
        """
        sigma = error * math.sqrt(self.n_sites / 3)
        typical = sigma * (math.sqrt(rows) + math.sqrt(columns) + 6)
        return min(typical, self.n_sites * error * math.sqrt(rows * columns))


def sketch_ridge(out_features: int) -> Ridge:
    """The ridge rule for summaries that were rebuilt from sketches.

    ``lambda = 0.03 mean ||h||^2 + 4 cut / M``, with the mean cut of one sum: four times the mean
    eigenvalue of what one sketch does not describe. Both constants were chosen on held-out
    training rows (results/sketches.md).
    """
    return Ridge(base=SKETCH_BASE, slope=SKETCH_SLOPE / out_features, power=1.0)


def sketch_to_summary(
    total: SketchSums,
    omega: Float[Array, "M s"] | None,
    fingerprint: Fingerprint | None = None,
    *,
    rounding: RoundingErrors | None = None,
    device: str | None = None,
) -> Summary:
    r"""A class-centred summary of all rows that the totals describe.

    The within-class part ``W = G - sum_c b_c b_c' / n_c`` has the sketch
    ``W Omega = Y - sum_c b_c (b_c' Omega) / n_c``, from which Nystrom's formula gives
    ``F F' = (W Omega) (Omega' W Omega)^-1 (W Omega)'``. It is exact where s reaches the rank of W,
    and never exceeds W. So ``cut = tr W - ||F||^2`` is the trace of a positive semidefinite
    residual, known exactly because the energy is a total too, and it bounds the norm of the
    residual: ``eps_G = cut`` but for rounding.

    Parameters
    ----------
    total:
        The sum over all sites.
    omega:
        The one of the sites; None where the totals hold the Gram itself.
    fingerprint:
        Of the features, for the aggregator.
    rounding:
        Errors of fixed-point numbers (``sketch_rounding``). Directions of W that rounding may
        have made are left out, and the bounds of the accounts cover the errors.
    device:
        A torch device on which to compute; None for NumPy.

    Notes
    -----
    Computed in float64 for 6 M s^2 + O(s^3) operations. With N = W + nu I in the place of W and
    nu at least the norm of the errors, N stays positive semidefinite, so that small eigenvalues of
    Omega' W Omega do not amplify errors; nu is subtracted from the eigenvalues again.
    """
    rounding = rounding or RoundingErrors()
    sums = total.sums.with_rows().to(device)
    n_rows, between = sum(sums.counts), sums.energy
    eps_B = rounding.n_sites * rounding.sums * math.sqrt(total.out_features * len(sums))
    room = rounding.n_sites * rounding.energy + 2 * eps_B * frobenius(sums.means)
    if between > total.energy * (1 + ENERGY_SLACK) + room:
        raise Refused(
            "class_sums",
            f"sums that energy {total.energy:.6g} and the counts allow",
            f"sums that need {between:.6g}",
        )
    within = max(0.0, total.energy - between)
    energy = between + within
    if omega is None:
        values, vectors, noise = _eigenpairs(total, sums, rounding)
    else:
        values, vectors, noise = _nystrom(total, sums, omega, rounding)
    accounts = Accounts(n_rows=n_rows, energy=energy, parts=min(n_rows, 1))
    factor = cast(vectors * namespace(values).sqrt(values), "float32")
    factor = without_rounding(factor, sums, accounts, "class")
    held = float(namespace(values).sum(values[: factor.shape[1]]))
    if held > within:  # the trace is known better than the sketch
        if held - within > ENERGY_SLACK * energy + noise + room:
            raise Refused(
                "sketch", f"a trace of at most {within:.6g}, from the energy", f"{held:.6g}"
            )
        factor, held = factor * math.sqrt(within / held), within
    cut = within - held
    accounts = replace(
        accounts,
        cut=cut,
        eps_G=cut + noise,
        eps_G_fro=cut + noise,
        eps_quant=noise,
        eps_B=eps_B,
        eta_loc=cut / energy if energy > 0 else 0.0,
    )
    route = "packed Gram" if omega is None else f"Nystrom, s={total.width}"
    return Summary(factor, sums, accounts, fingerprint, "class", route=route)


def _nystrom(
    total: SketchSums, sums: ClassSums, omega: Float[Array, "M s"], rounding: RoundingErrors
) -> tuple[Float64[Array, " k"], Float64[Array, "M k"], float]:
    """Positive eigenvalues, descending, and eigenvectors of Nystrom's W; a bound on its error."""
    M, s = tuple(omega.shape)
    if (M, s) != (total.out_features, total.width):
        expected = (total.out_features, total.width)
        raise ValueError(f"omega must have shape {expected}, as the sketch, got {(M, s)}")
    omega = cast(like(omega, sums.sums), "float64")
    xp = namespace(omega)
    B, Y = sums.scaled, like(total.sketch, omega)
    with linalg_errors():
        Q, R = xp.linalg.qr(omega, mode="reduced")
        least = math.sqrt(max(0.0, float(xp.linalg.eigvalsh(gram(R))[0])))
        if least < 1e-6:
            raise ValueError("omega must have linearly independent columns; draw another one")
        # In the basis Q: the sketch of W with orthonormal columns.
        Z = xp.linalg.solve(R.T, (Y - matmul(B, matmul(B.T, omega))).T).T
    core = matmul(Q.T, Z)
    skew, core = (core - core.T) / 2, (core + core.T) / 2
    errors = rounding.spectral(rounding.sketch, M, s) / least
    errors += rounding.spectral(rounding.sums, M, len(sums)) * frobenius(sums.means)
    computed = FLOAT32_ROUNDING * frobenius(Y) / math.sqrt(s) / least
    shift = 2 * errors + computed
    tolerance = max(2 * shift, ENERGY_SLACK * total.energy)
    values, U = eigh(core, 0)
    if frobenius(skew) > math.sqrt(s) * tolerance or float(values[0]) < -tolerance:
        raise Refused(
            "sketch",
            "that of a positive semidefinite matrix",
            f"a smallest eigenvalue of {float(values[0]):.6g}",
            hint="all sites must use the same Omega and only add",
        )
    # Without its skew part, the sketch is exactly that of a symmetric matrix near W.
    shifted = Z - matmul(Q, skew) + shift * Q
    values = values + shift
    sure = values > shift / 4
    half = matmul(shifted, U[:, sure] / xp.sqrt(values[sure]))
    squares, V = eigh(gram(half), 0)
    squares, V = xp.flip(squares, axis=0), xp.flip(V, axis=1)
    sure = squares > shift
    squares = squares[sure]
    # N exceeds its approximation, so W falls short of it by at most 3 nu in s directions at most,
    # and the trace of the difference is known.
    return squares - shift, matmul(half, V[:, sure] / xp.sqrt(squares)), 3 * s * shift


def _eigenpairs(
    total: SketchSums, sums: ClassSums, rounding: RoundingErrors
) -> tuple[Float64[Array, " k"], Float64[Array, "M k"], float]:
    """Positive eigenvalues, descending, and eigenvectors of W; a bound on its error."""
    M = total.out_features
    G = like(mirror(unpack_lower(to_numpy(total.sketch), M)), sums.sums)
    xp = namespace(G)
    B = sums.scaled
    shift = rounding.spectral(rounding.sketch, M, M)
    shift += 2 * rounding.spectral(rounding.sums, M, len(sums)) * frobenius(sums.means)
    shift += M * FLOAT32_ROUNDING**2 * total.energy
    values, U = eigh(G - matmul(B, B.T), 0)
    if float(values[0]) < -max(2 * shift, ENERGY_SLACK * total.energy):
        raise Refused(
            "sketch", "a Gram that the class sums allow", f"an eigenvalue of {float(values[0]):.6g}"
        )
    values, U = xp.flip(values, axis=0), xp.flip(U, axis=1)
    sure = values > shift
    return values[sure], U[:, sure], 2 * math.sqrt(M) * shift
