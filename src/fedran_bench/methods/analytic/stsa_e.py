"""STSA-E: the Gram estimated from class sums of random chunks ("dummy clients")."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_device, to_numpy
from fedran.core.labels import Label
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums, sum_by_code
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import (
    LARGEST_ROW,
    FeatureMap,
    Width,
    labelled_rows,
    require_range,
)
from fedran_bench.methods.analytic.gram_based import GramState, StsaServer
from fedran_bench.methods.protocol import Claims, ClientData, Uploads

Chunk = tuple[NDArray[Any], int]
"""The sum s (M,) and the number of the rows of one class in one chunk."""


@dataclass(frozen=True)
class STSAE(StsaServer):
    r"""``G = sum_c [A_c sum_j s_jc s_jc' / n_jc - B_c p_c p_c']`` with p_c the sum of class c.

    ``A_c = (N_c - 1)/(K - 1)``, ``B_c = (N_c - K)/((K - 1) N_c)``, both at least 0. The published
    code takes K = clients x dummies for every class, which shrinks the Gram wherever a chunk
    lacks a class; ``corrected`` takes the number of chunks that hold the class. A single chunk
    says nothing about the spread: then ``G_c = p_c p_c' / N_c``.
    """

    dummies: Width = 50
    """Random chunks that a client cuts its rows into."""
    name = "STSA-E"
    claims = Claims(order_free=True)
    verified = "partly: equals the published formula; biased when chunks lack classes, as published"
    corrected: ClassVar[bool] = False
    """Whether the chunks that hold a class count for it, instead of all chunks."""

    @property
    def sends(self) -> str:
        """Class sums and counts of every chunk."""
        return f"class sums and counts of {self.dummies} random chunks, float32"

    def formula(self, in_features: int, n_classes: int) -> int:
        """(d + 1) C (M + 1) x 8 bytes less the second count, d dummies: the paper's STSA column."""
        M, C = self.out_features, n_classes
        return 8 * (self.dummies * C * (M + 1) + M * C)

    def client(
        self, cstate: FeatureMap | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[FeatureMap, bytes]:
        """Permute the rows, cut them into chunks, sum each class in each chunk."""
        phi = cstate or self.feature_map(data.X.shape[1], seed)
        X, classes, codes = labelled_rows(data)
        who = zlib.crc32(f"{data.client}/{data.task}".encode())
        cells = codes * self.dummies + chunks(len(X), self.dummies, seed, who)
        used, cells = np.unique(cells, return_inverse=True)
        sums = np.zeros((self.out_features, len(used)))
        for rows, H in phi.blocks(to_device(X, self.device)):
            sums += to_numpy(sum_by_code(H, cells[rows], len(used)))
        fields = {
            "classes": list(classes),
            "of_class": (used // self.dummies).tolist(),
            "counts": np.bincount(cells, minlength=len(used)).tolist(),
        }
        return phi, pack("chunk-sums", fields, {"sums": sums.T.astype(np.float32)})

    def aggregate(self, state: GramState, task: int, round_: int, uploads: Uploads) -> GramState:
        """Estimate the task's Gram from all chunks, add it, solve."""
        found: dict[Label, list[Chunk]] = {}
        for blob in uploads.values():
            for c, chunk in _chunks(blob, self.out_features):
                found.setdefault(c, []).append(chunk)
        for c, held in found.items():
            S, n = np.stack([s for s, _ in held]), np.array([n for _, n in held], dtype=np.float64)
            p = S.sum(axis=0, dtype=np.float64)
            K = len(n) if self.corrected else len(state.spec.clients) * self.dummies
            a, b = weights(n.sum(), K)
            factor = S * np.sqrt(a / n).astype(np.float32)[:, None]
            state.total.add_factor(factor.T)
            state.total.add_factor((np.sqrt(b) * p)[:, None], -1.0)
            state.total.class_sums += ClassSums((c,), p[:, None], (int(n.sum()),))
            energy = float(np.sum(factor * factor, dtype=np.float64) - b * (p @ p))
            state.total.accounts += Accounts(int(n.sum()), max(energy, 0.0))
        return self.solved(state)


@dataclass(frozen=True)
class STSAECorrected(STSAE):
    """With K_c, the number of chunks that hold class c."""

    name = "STSA-E (corrected)"
    verified = "yes: exact Gram when every chunk holds one row; unbiased in a simulation"
    corrected: ClassVar[bool] = True


def chunks(n: int, dummies: int, seed: int, who: int) -> NDArray[np.int64]:
    """The chunk of each of n rows: equal sizes n // dummies, what remains in the last one.

    Fewer rows than chunks all go to the last one, as published.
    """
    place = np.random.default_rng([seed, who]).permutation(n)
    size = n // dummies
    return np.minimum(place // size, dummies - 1) if size else np.full(n, dummies - 1)


def weights(N: float, K: int) -> tuple[float, float]:
    """A_c and B_c for N rows in K chunks.

    >>> weights(6, 6), weights(6, 1)
    ((1.0, 0.0), (1.0, 0.0))
    """
    if K < 2:
        return 1.0, 0.0
    return max(0.0, (N - 1) / (K - 1)), max(0.0, (N - K) / ((K - 1) * N))


def _chunks(blob: bytes, M: int) -> Iterator[tuple[Label, Chunk]]:
    message = unpack(blob, FILE_LIMITS).of_kind("chunk-sums")
    classes = message.header.labels("classes", FILE_LIMITS)
    of_class = message.header.items("of_class", 10**7)
    of_class = message.header.integers("of_class", len(of_class), 0, len(classes) - 1)
    counts = message.header.integers("counts", len(of_class), 1)
    rows = message.tensor("sums", "F32", (len(of_class), M))
    require_range(rows, "sums", LARGEST_ROW)
    for i, row, n in zip(of_class, rows, counts, strict=True):
        yield classes[i], (row, n)
