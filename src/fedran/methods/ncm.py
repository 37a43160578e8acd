"""Nearest class mean on the raw features, by cosine: the smallest message that can work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.arrays import as_matrix, require_finite
from fedran.core.errors import Refused
from fedran.core.labels import Label, encode_labels, label_array, ordered
from fedran.core.summarize import class_sums
from fedran.methods.one_round import OneRound
from fedran.methods.protocol import Claims, ClientData, Spec
from fedran.wire.container import Container, pack, unpack
from fedran.wire.limits import DEFAULT_LIMITS

Sums = dict[Label, tuple[NDArray[np.float64], int]]


@dataclass(frozen=True)
class NearestClassMean(OneRound):
    """Clients send class sums and counts; the server compares with the class means."""

    name = "Nearest mean"
    claims = Claims(order_free=True, partition_free=True)
    sends = "class sums of the raw features, float32"

    def params(self) -> dict[str, Any]:
        """None."""
        return {}

    def init(self, spec: Spec, seed: int) -> Sums:  # noqa: ARG002
        """No class yet."""
        return {}

    def broadcast(self, state: Sums, task: int, round_: int) -> bytes:  # noqa: ARG002
        """The class means so far."""
        return self.dump(state) if state else b""

    def client(
        self,
        cstate: None,
        message: bytes,  # noqa: ARG002
        data: ClientData,
        seed: int,  # noqa: ARG002
    ) -> tuple[None, bytes]:
        """Sums and counts of the labelled rows."""
        X = as_matrix(data.X, "X")
        require_finite(X, "X")
        classes, codes = encode_labels(data.y, len(X))
        counts = np.bincount(codes[codes >= 0], minlength=len(classes))
        sums = class_sums(X, codes, len(classes)).T
        return cstate, _pack(classes, counts.tolist(), sums.astype(np.float32))

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
            for c, (row, n) in _unpack(blob, "F32").items():
                before, count = total.get(c, (np.zeros_like(row), 0))
                total[c] = (before + row, count + n)
        return total

    def predict(self, state: Sums, X: NDArray[Any]) -> NDArray[Any]:
        """The class whose mean has the largest cosine with the row."""
        classes = ordered(state)
        means = np.stack([state[c][0] / state[c][1] for c in classes])
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        scores = X @ (means / np.where(norms > 0, norms, 1.0)).T.astype(X.dtype)
        return label_array(classes)[scores.argmax(axis=1)]

    def dump(self, state: Sums) -> bytes:
        """Sums and counts."""
        classes = ordered(state)
        rows = np.stack([state[c][0] for c in classes]) if classes else np.zeros((0, 0))
        return _pack(classes, [state[c][1] for c in classes], rows)

    def load(self, blob: bytes, spec: Spec, seed: int) -> Sums:  # noqa: ARG002
        """The state that ``dump`` wrote."""
        return _unpack(blob, "F64")


def _pack(classes: tuple[Label, ...], counts: list[int], sums: NDArray[Any]) -> bytes:
    return pack("class-sums", {"classes": list(classes), "counts": counts}, {"sums": sums})


def _unpack(blob: bytes, dtype: str) -> Sums:
    message = unpack(blob, DEFAULT_LIMITS)
    if message.kind != "class-sums":
        raise Refused("kind", "class-sums", message.kind)
    classes = message.header.labels("classes", DEFAULT_LIMITS)
    counts = message.header.integers("counts", len(classes), 1)
    rows = message.tensor("sums", dtype, _shape(message, len(classes)))
    if not np.all(np.isfinite(rows)):
        raise Refused("sums", "finite values", "NaN or infinity")
    return {c: (row.astype(np.float64), n) for c, row, n in zip(classes, rows, counts, strict=True)}


def _shape(message: Container, n_classes: int) -> tuple[int, int]:
    width = message.tensors["sums"].shape[-1] if "sums" in message.tensors else 0
    return (n_classes, width)
