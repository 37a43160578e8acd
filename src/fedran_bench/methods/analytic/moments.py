"""Methods whose clients send first and second moments: class sums, counts and Z'Z."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, namespace, to_device, to_numpy
from fedran.core._linalg.blas import matmul
from fedran.core.errors import Refused
from fedran.core.solve.head import Head
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums
from fedran.core.sums.exact_sum import ExactSum
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import LARGEST_GRAM, labelled_rows, require_range
from fedran_bench.methods.analytic.feature_maps import FeatureMap, Raw, WithBias
from fedran_bench.methods.analytic.gram_based import GramServer, GramState
from fedran_bench.methods.protocol import ClientData, Uploads

FLOAT32_ROUNDING = float(np.finfo(np.float32).eps)
"""Moments arrive in float32: differences below this share of them are rounding errors."""


class MomentMethod(GramServer, ABC):
    """Clients send class sums, counts and the lower triangle of Z'Z, in float32.

    These add over clients and tasks, so the server's moments are those of the pooled rows. The
    last weight of the head is the intercept.
    """

    gram_dtype = "float64"
    sends = "packed (d, d) Gram of the raw features, class sums and counts, float32"

    @abstractmethod
    def solve(self, state: GramState) -> Head:
        """The head that the moments of all rows give."""

    def formula(self, in_features: int, n_classes: int) -> int:
        """(d^2 + d C + C) x 4 bytes: the full matrix, a sum and a count of every class."""
        return 4 * (in_features**2 + in_features * n_classes + n_classes)

    def feature_map(self, in_features: int, seed: int) -> WithBias:
        """[Z, 1], the input of the head."""
        return WithBias(in_features)

    def new_total(self, phi: FeatureMap) -> ExactSum:
        """An empty sum over the raw features."""
        return ExactSum(phi.in_features, self.gram_dtype, self.device, stack=False)

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """The moments of the labelled rows, computed in float64 and rounded once."""
        X, classes, codes = labelled_rows(data)
        raw = Raw(X.shape[1])
        total = self.new_total(raw)
        total.add_rows(raw.blocks(to_device(X, self.device)), classes, codes)
        return cstate, pack_moments(total)

    def aggregate(self, state: GramState, task: int, round_: int, uploads: Uploads) -> GramState:
        """Check every upload, then add all, then solve."""
        d = state.phi.in_features
        parts = [unpack_moments(blob, d) for blob in uploads.values()]
        for packed, sums, accounts in parts:
            state.total.add_packed(packed.astype(np.float64), sums, accounts)
        return self.solved(state)

    def gram(self, state: GramState) -> tuple[Callable[[Any], Any], Any]:
        """Z'Z of the raw features."""
        return Raw(state.phi.in_features), state.total.gram()


def within_scatter(total: ExactSum) -> Array:
    """The sum over all rows of (z - m_c)(z - m_c)', m_c the mean of the row's class."""
    sums = total.class_sums
    return total.gram() - matmul(sums.means, sums.sums.T)


def total_scatter(total: ExactSum) -> Array:
    """The sum over all rows of (z - m)(z - m)', m the mean of all rows."""
    sum_of_rows = namespace(total.class_sums.sums).sum(total.class_sums.sums, axis=1)[:, None]
    return total.gram() - matmul(sum_of_rows, sum_of_rows.T) / sum(total.class_sums.counts)


def gaussian_bias(means: Array, weights: Array) -> Array:
    """-1/2 m_c' w_c, (C,): the intercept of a Gaussian class with w_c = S^-1 m_c."""
    return -0.5 * namespace(means).sum(means * weights, axis=0)


def log_priors(sums: ClassSums) -> NDArray[np.float64]:
    """log(n_c / N), (C,)."""
    counts = np.array(sums.counts, dtype=np.float64)
    return np.log(counts / counts.sum())


def pack_moments(total: ExactSum) -> bytes:
    """A message of classes, counts, class sums (C, d) and the packed lower triangle of Z'Z."""
    sums = total.class_sums
    fields = {"classes": list(sums.classes), "counts": list(sums.counts)}
    with np.errstate(over="ignore"):
        tensors = {
            "gram": total.packed_gram().astype(np.float32),
            "sums": to_numpy(sums.sums).T.astype(np.float32, order="C"),
        }
    for name, values in tensors.items():
        if not np.all(np.isfinite(values)):
            raise ValueError(f"the {name} of the features exceed float32; rescale the features")
    return pack("moments", fields, tensors)


def unpack_moments(blob: bytes, d: int) -> tuple[NDArray[Any], ClassSums, Accounts]:
    """Inverse of ``pack_moments``; refused unless some rows can have these moments per column."""
    message = unpack(blob, FILE_LIMITS).of_kind("moments")
    message.only("gram", "sums")
    classes = message.header.labels("classes", FILE_LIMITS)
    counts = message.header.integers("counts", len(classes), 1)
    packed = message.tensor("gram", "F32", (d * (d + 1) // 2,))
    rows = message.tensor("sums", "F32", (len(classes), d)).astype(np.float64)
    require_range(packed, "gram", LARGEST_GRAM)
    require_range(rows, "sums", LARGEST_GRAM)
    diagonal = packed[np.cumsum([0, *range(d, 1, -1)])].astype(np.float64)
    least = np.sum(rows**2 / np.array(counts, dtype=np.float64)[:, None], axis=0)
    if not np.all(diagonal >= least * (1 - 4 * FLOAT32_ROUNDING)):
        column = int(np.argmin(diagonal - least))
        expected = f"at least {least[column]:g} on the diagonal in column {column}, from the sums"
        raise Refused("gram", expected, diagonal[column])
    accounts = Accounts(sum(counts), float(diagonal.sum()))
    return packed, ClassSums(classes, rows.T, tuple(counts)), accounts
