"""Noisy sums that are public, and the summary that they give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Float64
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label
from fedran.core.solve.ridge import Ridge
from fedran.core.summary import Summary
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums

RIDGE = 0.3
"""lambda per ``spread`` of a release's noise, chosen on held-out training rows."""
LEAST_RIDGE = 0.003
"""The least lambda per mean eigenvalue of the Gram, where there is hardly any noise."""
LEAST_COUNT = 4.0
"""Classes with fewer rows than this many standard deviations of the noise are left out."""
BLOCK = 256
"""Eigenvalues that are corrected at a time."""


@dataclass(frozen=True, eq=False)
class NoisySums:
    """Noisy sums over the rows of one task, and the variances of their noise. They are public."""

    classes: tuple[Label, ...]
    gram: Float64[NDArray[Any], "d d"]
    """H'H, symmetric. The noise may make it indefinite."""
    sums: Float64[NDArray[Any], "d C"]
    counts: Float64[NDArray[Any], " C"]
    norm: float
    """The norm of the longest row."""
    gram_variance: float
    """Of the noise on the diagonal of the Gram; half of it off the diagonal."""
    sums_variance: float
    counts_variance: float

    def summary(self, fingerprint: Fingerprint | None = None) -> Summary:
        """A summary of the rows as well as they are known, for an ordinary aggregator.

        Its factor has the eigenvectors of the noisy Gram and the ``corrected`` eigenvalues. Where
        the noise has made sums that no rows have, they are shortened. Classes whose count is within
        ``LEAST_COUNT`` standard deviations of zero are left out. 10 d^3 operations.
        """
        d = len(self.gram)
        least = max(1.0, LEAST_COUNT * math.sqrt(self.counts_variance))
        kept = np.flatnonzero(self.counts >= least)
        counts = np.rint(self.counts[kept])
        n_rows = max(1, int(counts.sum()))
        noisy, U = np.linalg.eigh(self.gram)
        spread = math.sqrt(d * self.gram_variance / 2)
        E = corrected(noisy, spread)
        E *= min(1.0, n_rows * self.norm**2 / max(float(E.sum()), 1e-300))
        E[: max(0, d - n_rows)] = 0.0  # n rows span at most n directions
        factor = (U * np.sqrt(E))[:, E > 0][:, ::-1].astype(np.float32)
        energy = float(np.sum(factor.astype(np.float64) ** 2))
        sums = self.sums[:, kept]
        longest = counts * self.norm / np.maximum(np.linalg.norm(sums, axis=0), 1e-300)
        sums = sums * np.minimum(1.0, longest)
        between = float(np.sum(sums**2 / counts))
        sums = sums * min(1.0, math.sqrt(energy / max(between, 1e-300)))
        change = float(np.max(np.abs(E - noisy)))
        accounts = Accounts(
            n_rows=n_rows,
            energy=energy,
            eps_G=2 * spread + change,
            eps_G_fro=math.sqrt(d) * (2 * spread + change),
            eps_quant=2 * spread,
            eps_B=math.sqrt(sums.size * self.sums_variance),
            parts=1,
        )
        classes = tuple(self.classes[i] for i in kept)
        held = ClassSums(classes, sums, tuple(int(n) for n in counts))
        route = "noisy sums, eigenvalues corrected for the noise"
        return Summary(factor, held, accounts, fingerprint, None, route=route)


def mean_row(sums: ClassSums) -> Float64[NDArray[Any], " d"]:
    """The mean of all rows, from public class sums; zero without rows."""
    return np.asarray(sums.sums).sum(axis=1) / max(1, sum(sums.counts))


def noisy_ridge(accounts: Accounts, out_features: int, share: float = RIDGE) -> Ridge:
    """The ridge parameter for summaries of noisy sums: a share of the noise of one of them.

    ``accounts.eps_quant`` adds up the norms of their noise, 2 ``spread`` each.
    """
    spread = accounts.eps_quant / (2 * max(1, accounts.parts))
    return Ridge.absolute(share * spread + LEAST_RIDGE * accounts.energy / out_features or 1.0)


def corrected(noisy: Float64[NDArray[Any], " d"], spread: float) -> Float64[NDArray[Any], " d"]:
    """What u'Gu is on average, for the eigenvectors u of G + noise; never negative.

    ``noisy`` are the ascending eigenvalues of a symmetric matrix G plus Gaussian noise, whose own
    eigenvalues fill a semicircle of radius 2 ``spread``. Noise spreads eigenvalues, and the
    eigenvectors of small ones say little about G. The estimate is x - 2 spread^2 Re g(x), with g
    the Stieltjes transform of the noisy eigenvalues (Bun, Allez, Bouchaud and Potters 2016). It
    varies from one eigenvalue to the next, so the nearest ascending sequence is returned.
    """
    from scipy.optimize import isotonic_regression  # slow to import

    if spread == 0:
        return np.maximum(noisy, 0.0)
    width = 2 * spread / len(noisy)
    g = np.empty_like(noisy)
    for i in range(0, len(noisy), BLOCK):
        gap = noisy[i : i + BLOCK, None] - noisy[None, :]
        g[i : i + BLOCK] = np.mean(gap / (gap * gap + width * width), axis=1)
    ascending = isotonic_regression(noisy - 2 * spread**2 * g).x
    return np.maximum(ascending, 0.0)
