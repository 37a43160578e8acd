"""Methods that send class sums alone: FedNCM and FedCOF."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedran.core.solve.head import Head, make_head
from fedran.core.solve.ridge import solve_gram
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import (
    LARGEST_GRAM,
    AnalyticMethod,
    Positive,
    Raw,
    labelled_rows,
    require_range,
    unbounded_head,
    unit_columns,
)
from fedran_bench.methods.protocol import Claims, ClientData, Spec, Uploads


@dataclass(frozen=True)
class SumsState:
    """The class sums of every upload, and the newest head."""

    phi: Raw
    uploads: Sequence[ClassSums] = ()
    head: Head | None = None


class ClassSumsMethod(AnalyticMethod, ABC):
    """Clients send class sums and counts of their labelled rows, in float32.

    The smallest message from which a classifier can be built.
    """

    sends = "class sums of the raw features and counts, float32"

    @abstractmethod
    def solve(self, uploads: Sequence[ClassSums], total: ClassSums) -> Head:
        """The head, from the class sums of every upload and those of all together."""

    def formula(self, in_features: int, n_classes: int) -> int:
        """(d + 1) C x 4 bytes: a mean and a count of every class seen."""
        return 4 * n_classes * (in_features + 1)

    def init(self, spec: Spec, seed: int) -> SumsState:
        """No class yet."""
        return SumsState(Raw(spec.in_features))

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """Sums and counts of the labelled rows."""
        return cstate, pack_sums(ClassSums.from_codes(*labelled_rows(data)))

    def aggregate(self, state: SumsState, task: int, round_: int, uploads: Uploads) -> SumsState:
        """Collect the class sums, solve."""
        arrived = [unpack_sums(blob, state.phi.in_features) for blob in uploads.values()]
        found = [*state.uploads, *arrived]
        total = sum(found, ClassSums.empty(state.phi.in_features))
        return replace(state, uploads=found, head=self.solve(found, total) if total else None)


@dataclass(frozen=True)
class FedNCM(ClassSumsMethod):
    """The class whose mean over all clients has the largest cosine with the row."""

    name = "FedNCM"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "yes: equals class means of the pooled rows"

    def solve(self, uploads: Sequence[ClassSums], total: ClassSums) -> Head:
        """The weight of a class is its normalised mean."""
        means, n_rows = np.ascontiguousarray(total.means), sum(total.counts)
        route = "class means; no bound"
        return unit_columns(unbounded_head(means, total.classes, route, n_rows, len(total)))


@dataclass(frozen=True)
class FedCOF(ClassSumsMethod):
    r"""W_c from ``G = sum_c (N_c - 1)(S_c + gamma I) + N m m'`` and the class sums.

    ``S_c = sum_k n_kc (m_kc - m_c)(m_kc - m_c)' / (K_c - 1)`` over the K_c clients that hold
    class c (zero for one client), m the mean of all rows. The scatter between classes is left
    out on purpose, as published. (K C) d^2 operations per task.
    """

    gamma: Positive = 1.0
    """Shrinkage of every class covariance towards the identity. The published scripts use 0.1 for
    MobileNetV2 and 1 for SqueezeNet and ViT-B/16."""

    name = "FedCOF"
    claims = Claims(order_free=True)
    verified = "yes: equals its formula written out and the weights of the published code"

    def solve(self, uploads: Sequence[ClassSums], total: ClassSums) -> Head:
        """Estimate the covariances and solve; every class weight is normalised."""
        counts = np.array(total.counts, dtype=np.float64)
        G = np.zeros((total.out_features, total.out_features))
        for c, n in zip(total.classes, counts, strict=True):
            holders = [u for u in uploads if c in u]
            sums = np.array([u[c] for u in holders])
            G += (n - 1) * scatter(sums, np.array([u.count(c) for u in holders]))
        mean = np.sum(total.sums, axis=1) / counts.sum()
        G += counts.sum() * np.outer(mean, mean)
        lam = self.gamma * float(np.sum(counts - 1)) or self.gamma  # one row per class
        accounts = Accounts(int(counts.sum()), float(np.trace(G)))
        solution = solve_gram(np.asfortranarray(G), total.sums, lam)
        return unit_columns(make_head(solution, total, lam, accounts))


def pack_sums(sums: ClassSums) -> bytes:
    """A message of kind ``class-sums``: one row of sums and one count per class."""
    fields = {"classes": list(sums.classes), "counts": list(sums.counts)}
    return pack(
        "class-sums", fields, {"sums": np.ascontiguousarray(sums.sums.T.astype(np.float32))}
    )


def unpack_sums(blob: bytes, width: int) -> ClassSums:
    """Inverse of ``pack_sums``; refused unless complete, in range and ``width`` wide."""
    message = unpack(blob, FILE_LIMITS).of_kind("class-sums")
    classes = message.header.labels("classes", FILE_LIMITS)
    counts = message.header.integers("counts", len(classes), 1)
    rows = message.tensor("sums", "F32", (len(classes), width)).astype(np.float64)
    require_range(rows, "sums", LARGEST_GRAM)
    return ClassSums(classes, rows.T, tuple(counts))


def scatter(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """S_c of one class, (d, d), from the sums (k, d) and counts (k,) of k clients.

    Unbiased where the rows of all clients have the same distribution; zero for one client.
    """
    if len(counts) < 2:
        return np.zeros((sums.shape[1],) * 2)
    centred = sums / counts[:, None] - sums.sum(axis=0) / counts.sum()
    return (centred.T * counts) @ centred / (len(counts) - 1)
