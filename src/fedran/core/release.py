"""Noisy sums that are public, and the classifier that they give."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from fedran.core._linalg.arrays import Float64
from fedran.core.fingerprint import Fingerprint
from fedran.core.head import Diagnosis, Head
from fedran.core.labels import Label, ordered

RIDGE = 0.25
"""lambda per mean eigenvalue of the Gram, chosen on held-out training rows."""
BLOCK = 256
"""Eigenvalues that are corrected at a time."""


@dataclass(frozen=True, eq=False)
class Release:
    """Noisy sums over rows, and the variances of their noise. They are public.

    ``a + b`` describes the rows of both. A row in only one of them spends what that one states; a
    row in both spends both (``dp.composed``).
    """

    classes: tuple[Label, ...]
    gram: Float64[NDArray[Any], "d d"]
    """H'H, symmetric. The noise may make it indefinite."""
    sums: Float64[NDArray[Any], "d C"]
    counts: Float64[NDArray[Any], " C"]
    gram_variance: float
    """Of the noise on the diagonal of the Gram; half of it off the diagonal."""
    sums_variance: Float64[NDArray[Any], " C"]

    def __add__(self, other: object) -> Release:
        if not isinstance(other, Release):
            return NotImplemented
        if self.gram.shape != other.gram.shape:
            raise ValueError(f"expected {len(self.gram)} features, got {len(other.gram)}")
        classes = ordered(self.classes + other.classes)
        sums, counts = np.zeros((len(self.gram), len(classes))), np.zeros(len(classes))
        sums_variance = np.zeros(len(classes))
        for part in (self, other):
            where = [classes.index(c) for c in part.classes]
            sums[:, where] += part.sums
            counts[where] += part.counts
            sums_variance[where] += part.sums_variance
        gram, variance = self.gram + other.gram, self.gram_variance + other.gram_variance
        return Release(classes, gram, sums, counts, variance, sums_variance)

    @property
    def mean(self) -> Float64[NDArray[Any], " d"]:
        """The mean of all rows."""
        return self.sums.sum(axis=1) / max(1.0, float(self.counts.sum()))

    def solve(self, fingerprint: Fingerprint | None = None, ridge: float = RIDGE) -> Head:
        """The classifier W = U (E + lambda I)^-1 U'B.

        U holds the eigenvectors of the noisy Gram, and E the ``corrected`` eigenvalues. lambda is
        ``ridge`` times the mean of E. 10 d^3 operations.
        """
        d = len(self.gram)
        noisy, U = np.linalg.eigh(self.gram)
        E = corrected(noisy, math.sqrt(d * self.gram_variance / 2))
        lam = ridge * float(np.mean(E)) or 1.0
        W = U @ ((U.T @ self.sums) / (E + lam)[:, None])
        energy = float(E @ E)
        diagnosis = Diagnosis(
            route="noisy sums: eigenvalues corrected for the noise, no bound",
            lam=lam,
            f=0.0,
            n_rows=max(0, round(float(self.counts.sum()))),
            effective_rank=float(E.sum()) ** 2 / energy if energy else 0.0,
            condition=float(E.max() + lam) / lam,
            residual=0.0,
            eps_W=sys.float_info.max,
            eps_W_paper=sys.float_info.max,
        )
        return Head(W.astype(np.float32), self.classes, diagnosis, fingerprint)


def corrected(noisy: Float64[NDArray[Any], " d"], spread: float) -> Float64[NDArray[Any], " d"]:
    """What u'Gu is on average, for the eigenvectors u of G + noise; never negative.

    ``noisy`` are the ascending eigenvalues of a symmetric matrix G plus Gaussian noise, whose own
    eigenvalues fill a semicircle of radius 2 ``spread``. Noise spreads eigenvalues, and the
    eigenvectors of small ones say little about G. The estimate is x - 2 spread^2 Re g(x), with g
    the Stieltjes transform of the noisy eigenvalues (Bun, Allez, Bouchaud and Potters 2016). It
    varies from one eigenvalue to the next, so the nearest ascending sequence is returned.
    """
    if spread == 0:
        return np.maximum(noisy, 0.0)
    width = 2 * spread / len(noisy)
    g = np.empty_like(noisy)
    for i in range(0, len(noisy), BLOCK):
        gap = noisy[i : i + BLOCK, None] - noisy[None, :]
        g[i : i + BLOCK] = np.mean(gap / (gap * gap + width * width), axis=1)
    ascending = isotonic_regression(noisy - 2 * spread**2 * g).x
    return np.maximum(ascending, 0.0)
