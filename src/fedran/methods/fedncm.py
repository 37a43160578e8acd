"""FedNCM: nearest class mean on the raw features, by cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.labels import label_array, ordered
from fedran.methods.class_sums import ClassSumsClient, Sums, pack_sums, unpack_sums
from fedran.methods.protocol import Claims, Spec


@dataclass(frozen=True)
class FedNCM(ClassSumsClient):
    """The weight of a class is its normalised mean over all clients."""

    name = "FedNCM"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "yes: equals class means of the pooled rows"

    def init(self, spec: Spec, seed: int) -> Sums:  # noqa: ARG002
        """No class yet."""
        return {}

    def broadcast(self, state: Sums, task: int, round_: int) -> bytes:  # noqa: ARG002
        """The class sums and counts so far, in float32."""
        if not state:
            return b""
        classes = ordered(state)
        rows = np.stack([state[c][0] for c in classes]).astype(np.float32)
        return pack_sums(classes, [state[c][1] for c in classes], rows)

    def aggregate(
        self,
        state: Sums,
        task: int,  # noqa: ARG002
        round_: int,  # noqa: ARG002
        uploads: dict[str, bytes],
    ) -> Sums:
        """Add sums and counts."""
        total = dict(state)
        for blob in uploads.values():
            for c, (row, n) in unpack_sums(blob).items():
                before, count = total.get(c, (np.zeros_like(row), 0))
                total[c] = (before + row, count + n)
        return total

    def predict(self, state: Sums, X: NDArray[Any]) -> NDArray[Any]:
        """The class whose mean has the largest cosine with the row."""
        if not state:
            raise ValueError("nothing to predict with: no task was aggregated yet")
        classes = ordered(state)
        means = np.stack([state[c][0] / state[c][1] for c in classes])
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        scores = X @ (means / np.where(norms > 0, norms, 1.0)).T.astype(X.dtype)
        return label_array(classes)[scores.argmax(axis=1)]

    def dump(self, state: Sums) -> bytes:
        """Sums and counts."""
        classes = ordered(state)
        rows = np.stack([state[c][0] for c in classes]) if classes else np.zeros((0, 0))
        return pack_sums(classes, [state[c][1] for c in classes], rows)

    def load(self, blob: bytes, spec: Spec, seed: int) -> Sums:  # noqa: ARG002
        """The state that ``dump`` wrote."""
        return unpack_sums(blob, "F64")
