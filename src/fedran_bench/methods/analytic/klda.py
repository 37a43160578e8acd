"""KLDA: linear discriminant analysis on random Fourier features of a Gaussian kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedran.core._linalg.arrays import Array, like, namespace, to_device
from fedran.core._linalg.blas import matmul
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import solve_gram
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import (
    FLOAT32_ROUNDING,
    FeatureMap,
    Positive,
    Raw,
    Width,
    labelled_rows,
    with_ones,
)
from fedran_bench.methods.analytic.gaussian import gaussian_bias, lda_head, within_scatter
from fedran_bench.methods.analytic.gram_based import (
    GramServer,
    GramState,
    add_packed,
    pack_gram,
    unpack_gram,
)
from fedran_bench.methods.protocol import Claims, ClientData, Spec, Uploads


class FourierFeatures(Raw):
    """[phi_1(z), ..., phi_E(z), 1] with phi(z) = sqrt(2 / D) cos(z Omega + b), for E models.

    Omega (d, D) is drawn from N(0, 2 gamma) and b from U(0, 2 pi), by the seed and the number of
    the model, so that phi(z) phi(z')' approximates exp(-gamma |z - z'|^2).
    """

    def __init__(self, in_features: int, width: int, gamma: float, members: int, seed: int) -> None:
        super().__init__(in_features, members * width + 1)
        random = [np.random.RandomState([seed, member]) for member in range(members)]
        omega = np.hstack([r.standard_normal((in_features, width)) for r in random])
        shift = np.hstack([r.random_sample(width) for r in random])
        self.omega = (math.sqrt(2 * gamma) * omega).astype(np.float32)
        self.shift = (2 * math.pi * shift).astype(np.float32)
        self.scale = math.sqrt(2 / width)

    def __call__(self, Z: Array) -> Array:
        """The features of all models in float32."""
        Z = super().__call__(Z)
        phases = matmul(Z, like(self.omega, Z)) + like(self.shift, Z)
        return with_ones(self.scale * namespace(Z).cos(phases))


@dataclass(frozen=True)
class KLDA(GramServer):
    """The nearest class mean by Mahalanobis distance, on random features of a Gaussian kernel.

    ``w_c = S^-1 m_c`` and ``b_c = -1/2 m_c' w_c`` for the class means m_c and the covariance S
    within the classes, without priors. It is published for one learner that sees task after task.
    Its statistics add, so here the clients send them.

    The published code takes the pseudo-inverse of S in float32. Here the rounding of the uploads,
    as a share of the mean row energy, is added to the diagonal of S, which is as accurate on
    held-out rows and needs no eigenvalues. The published ensemble averages the probabilities of
    its models. Their logits are divided by the number of rows, and for logits that small it is the
    mean of the logits, which is used here. D^3 / 3 operations per task and model.
    """

    out_features: Width = 5000
    """D, the random Fourier features of one model."""
    gamma: Positive = 1e-4
    """Of the kernel exp(-gamma |z - z'|^2) on raw features. Published: 5e-6 to 5e-2, by network."""
    members: Width = 5
    """Models, each with its own features and Gram."""
    device: str | None = None

    name = "KLDA"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "partly: equals its formula on pooled rows; its tables use other backbones"
    gram_dtype = "float64"

    @property
    def sends(self) -> str:
        """One Gram per model."""
        return f"{self.members} packed (D, D) Grams of Fourier features, class sums, float32"

    def formula(self, in_features: int, n_classes: int) -> int:
        """(D^2 + D C) x 4 bytes per model: the scatter within the classes and their means."""
        return 4 * self.members * self.out_features * (self.out_features + n_classes)

    def feature_map(self, in_features: int, seed: int) -> FeatureMap:
        """The features of all models and a column of ones."""
        return FourierFeatures(in_features, self.out_features, self.gamma, self.members, seed)

    def init(self, spec: Spec, seed: int) -> GramState:
        """Nothing seen yet."""
        first, *others = (self.new_total(self.out_features) for _ in range(self.members))
        return GramState(spec, self.feature_map(spec.in_features, seed), first, seed, more=others)

    def client(
        self, cstate: FeatureMap | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[FeatureMap, bytes]:
        """The sums of every model, each as a message of its own."""
        D, phi = self.out_features, cstate or self.feature_map(data.X.shape[1], seed)
        X, classes, codes = labelled_rows(data)
        totals = [self.new_total(D) for _ in range(self.members)]
        for rows, H in phi.blocks(to_device(X, self.device)):
            for i, total in enumerate(totals):
                total.add_rows([(rows, H[:, i * D : (i + 1) * D])], classes, codes)
        return phi, pack("klda", {}, {str(i): pack_gram(total) for i, total in enumerate(totals)})

    def aggregate(self, state: GramState, task: int, round_: int, uploads: Uploads) -> GramState:
        """Check every upload, then add all, then solve."""
        parts, totals = [], [state.total, *state.more]
        for blob in uploads.values():
            message = unpack(blob, FILE_LIMITS).of_kind("klda")
            message.only(*(str(i) for i in range(self.members)))
            for i, total in enumerate(totals):
                parts.append((total, unpack_gram(message.stream(str(i)), self.out_features)))
        for total, part in parts:
            add_packed(total, *part)
        return self.solved(state)

    def solve(self, state: GramState) -> Head:
        """One factorisation of a (D, D) matrix per model."""
        sums, accounts = state.total.class_sums, state.total.accounts
        lam, solutions = FLOAT32_ROUNDING * accounts.mean_row_energy, []
        bias = like(np.zeros(len(sums)), sums.sums)
        for total in (state.total, *state.more):
            S = within_scatter(total) / max(accounts.n_rows - len(sums), 1)
            solutions.append(solve_gram(S, total.class_sums.means, lam))
            bias += gaussian_bias(total.class_sums.means, solutions[-1].weights) / self.members
        return lda_head(solutions, bias, sums.classes, lam, accounts.n_rows)
