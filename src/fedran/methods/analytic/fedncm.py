"""FedNCM: nearest class mean on the raw features, by cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.labels import label_array, ordered
from fedran.methods.analytic.class_sums import ClassSumsClient, Sums, pack_sums, unpack_sums
from fedran.methods.protocol import Claims, Spec


@dataclass(frozen=True)
class NcmState:
    """Sum and count of every class; ``width`` is d."""

    width: int
    sums: Sums


@dataclass(frozen=True)
class FedNCM(ClassSumsClient):
    """The weight of a class is its normalised mean over all clients."""

    name = "FedNCM"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "yes: equals class means of the pooled rows"

    def init(self, spec: Spec, seed: int) -> NcmState:
        """No class yet."""
        return NcmState(spec.in_features, {})

    def broadcast(self, state: NcmState, task: int, round_: int) -> bytes:
        """The class sums and counts so far, in float32."""
        return _pack(state, np.float32) if state.sums else b""

    def aggregate(
        self,
        state: NcmState,
        task: int,
        round_: int,
        uploads: dict[str, bytes],
    ) -> NcmState:
        """Add sums and counts."""
        total = dict(state.sums)
        for blob in uploads.values():
            for c, (row, n) in unpack_sums(blob, state.width).items():
                before, count = total.get(c, (np.zeros_like(row), 0))
                total[c] = (before + row, count + n)
        return NcmState(state.width, total)

    def predict(self, state: NcmState, X: NDArray[Any]) -> NDArray[Any]:
        """The class whose mean has the largest cosine with the row."""
        if not state.sums:
            raise ValueError("nothing to predict with: no task was aggregated yet")
        classes = ordered(state.sums)
        means = np.stack([state.sums[c][0] / state.sums[c][1] for c in classes])
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        scores = X @ (means / np.where(norms > 0, norms, 1.0)).T.astype(X.dtype)
        return label_array(classes)[scores.argmax(axis=1)]

    def dump(self, state: NcmState) -> bytes:
        """Sums and counts."""
        return _pack(state, np.float64)

    def load(self, blob: bytes, spec: Spec, seed: int) -> NcmState:
        """The state that ``dump`` wrote."""
        return NcmState(spec.in_features, unpack_sums(blob, spec.in_features, "F64"))


def _pack(state: NcmState, dtype: type) -> bytes:
    classes = ordered(state.sums)
    rows = [state.sums[c][0] for c in classes]
    sums = np.stack(rows) if rows else np.zeros((0, state.width))
    return pack_sums(classes, [state.sums[c][1] for c in classes], sums.astype(dtype))
