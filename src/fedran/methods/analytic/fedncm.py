"""FedNCM: nearest class mean on the raw features, by cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.class_sums import ClassSums
from fedran.core.labels import label_array
from fedran.methods.analytic.base import LARGEST_GRAM, AnalyticMethod, labelled_rows, require_range
from fedran.methods.protocol import Claims, ClientData, Spec, Uploads
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS


class ClassSumsClient(AnalyticMethod):
    """Clients that send class sums and counts of their labelled rows, in float32.

    The smallest message from which a classifier can be built; FedCOF sends the same.
    """

    sends = "class sums of the raw features and counts, float32"

    def formula(self, in_features: int, n_classes: int) -> int:
        """(d + 1) C x 4 bytes: a mean and a count of every class seen."""
        return 4 * n_classes * (in_features + 1)

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """Sums and counts of the labelled rows."""
        return cstate, pack_sums(ClassSums.from_codes(*labelled_rows(data)), np.float32)


@dataclass(frozen=True)
class FedNCM(ClassSumsClient):
    """The weight of a class is its normalised mean over all clients. The state is a ClassSums."""

    name = "FedNCM"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "yes: equals class means of the pooled rows"

    def init(self, spec: Spec, seed: int) -> ClassSums:
        """No class yet."""
        return ClassSums.empty(spec.in_features)

    def broadcast(self, state: ClassSums, task: int, round_: int) -> bytes:
        """The class sums and counts so far, in float32."""
        return pack_sums(state, np.float32) if state else b""

    def aggregate(self, state: ClassSums, task: int, round_: int, uploads: Uploads) -> ClassSums:
        """Add sums and counts."""
        return sum((unpack_sums(blob, state.out_features) for blob in uploads.values()), state)

    def predict(self, state: ClassSums, X: NDArray[Any]) -> NDArray[Any]:
        """The class whose mean has the largest cosine with the row."""
        if not state:
            raise ValueError("nothing to predict with: no task was aggregated yet")
        norms = np.linalg.norm(state.means, axis=0)
        scores = X @ (state.means / np.where(norms > 0, norms, 1.0)).astype(X.dtype)
        return label_array(state.classes)[scores.argmax(axis=1)]

    def dump(self, state: ClassSums) -> bytes:
        """Sums and counts."""
        return pack_sums(state, np.float64)

    def load(self, blob: bytes, spec: Spec, seed: int) -> ClassSums:
        """The state that ``dump`` wrote."""
        return unpack_sums(blob, spec.in_features, "F64")


def pack_sums(sums: ClassSums, dtype: type) -> bytes:
    """A message of kind ``class-sums``: one row of sums and one count per class."""
    fields = {"classes": list(sums.classes), "counts": list(sums.counts)}
    return pack("class-sums", fields, {"sums": np.ascontiguousarray(sums.sums.T.astype(dtype))})


def unpack_sums(blob: bytes, width: int, dtype: str = "F32") -> ClassSums:
    """Inverse of ``pack_sums``; refused unless complete, in range and ``width`` wide."""
    message = unpack(blob, FILE_LIMITS).of_kind("class-sums")
    classes = message.header.labels("classes", FILE_LIMITS)
    counts = message.header.integers("counts", len(classes), 1)
    rows = message.tensor("sums", dtype, (len(classes), width)).astype(np.float64)
    require_range(rows, "sums", LARGEST_GRAM)
    return ClassSums(classes, rows.T, tuple(counts))
