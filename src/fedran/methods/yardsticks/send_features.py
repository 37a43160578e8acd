"""Yardsticks of cost: send every row's features, in float32 or in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_device
from fedran.core.accounts import Accounts
from fedran.core.accumulate import accumulate
from fedran.core.features import RandomFeatures
from fedran.core.labels import encode_labels
from fedran.methods.analytic.gram_based import (
    LARGEST_ROW,
    GramServer,
    GramState,
    labelled_rows,
    require_range,
)
from fedran.methods.analytic.maps import FeatureMap
from fedran.methods.analytic.pooled import RowsClient, join_labels, pack_rows, unpack_rows
from fedran.methods.protocol import Claims, ClientData


@dataclass(frozen=True)
class SendFeatures(RowsClient, GramServer):
    """The server maps the rows itself and solves the exact ridge. No privacy of any kind."""

    out_features: int = 8192
    device: str | None = None

    name = "Send features"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "yes: equals the dense joint ridge"

    def feature_map(self, in_features: int, seed: int) -> FeatureMap:
        """relu(Z P)."""
        return RandomFeatures(in_features, self.out_features, seed=seed)

    def aggregate(
        self,
        state: GramState,
        task: int,
        round_: int,
        uploads: dict[str, bytes],
    ) -> GramState:
        """Map, add, solve."""
        return self.take_in(state, *self.rows(list(uploads.values()), state.phi.in_features))

    def take_in(self, state: GramState, X: NDArray[Any], y: NDArray[Any]) -> GramState:
        """The state with some more rows, solved."""
        classes, codes = encode_labels(y, len(y))
        blocks = state.phi.blocks(to_device(X, self.device))
        sums, energy = accumulate(state.total, blocks, codes, len(classes))
        state.add_sums(classes, sums.T)
        state.accounts += Accounts(len(X), energy)
        return self.solved(state)


@dataclass(frozen=True)
class SendFeatures8Bit(SendFeatures):
    """One byte a number: sign(z) sqrt|z| between the column's least and largest, evenly cut."""

    name = "Send features, 8 bits"
    claims = Claims(order_free=True)
    sends = "every row: features in 8 bits and labels"
    verified = "yes: within half a step of the features"

    def client(
        self,
        cstate: None,
        message: bytes,
        data: ClientData,
        seed: int,
    ) -> tuple[None, bytes]:
        """The rows, one byte a number."""
        X, classes, codes = labelled_rows(data)
        return cstate, pack_rows("rows-8bit", classes, codes, compand(X))

    def rows(self, uploads: Sequence[bytes], d: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Features as the bytes tell them, and labels."""
        parts = [unpack_rows("rows-8bit", blob) for blob in uploads]
        X = []
        for m, y in parts:
            low_and_step = m.tensor("range", "F32", (2, d))
            require_range(low_and_step, "range", LARGEST_ROW**0.5 / 256)
            X.append(expand(m.tensor("rows", "U8", (len(y), d)), low_and_step))
        return np.concatenate(X), join_labels([y for _, y in parts])


def compand(X: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Bytes (n, d) and each column's range of sign(z) sqrt|z|, (2, d)."""
    roots = np.sign(X) * np.sqrt(np.abs(X))
    if not len(X):
        return {"rows": np.zeros(X.shape, np.uint8), "range": np.zeros((2, X.shape[1]), np.float32)}
    low, high = roots.min(axis=0), roots.max(axis=0)
    step = np.where(high > low, (high - low) / 255, 1)
    codes = np.rint((roots - low) / step).astype(np.uint8)
    return {"rows": codes, "range": np.stack([low, step]).astype(np.float32)}


def expand(codes: NDArray[np.uint8], low_and_step: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inverse of ``compand``, to half a step.

    >>> Z = np.array([[0.0, -4.0], [1.0, 9.0]])
    >>> expand(compand(Z)["rows"], compand(Z)["range"]).tolist()
    [[0.0, -4.0], [1.0, 9.0]]
    """
    low, step = low_and_step
    roots = codes.astype(np.float32) * step + low
    return np.sign(roots) * roots**2
