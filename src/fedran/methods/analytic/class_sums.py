"""The smallest message that can work: sums and counts of each class, raw features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.labels import Label
from fedran.core.summarize import class_sums
from fedran.methods.analytic.gram_based import LARGEST_GRAM, labelled_rows, require_range
from fedran.methods.analytic.one_round import OneRound
from fedran.methods.protocol import ClientData
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS

Sums = dict[Label, tuple[NDArray[np.float64], int]]


class ClassSumsClient(OneRound):
    """Clients that send class sums and counts of their labelled rows, in float32."""

    sends = "class sums of the raw features and counts, float32"

    def formula(self, in_features: int, n_classes: int) -> int:
        """(d + 1) C x 4 bytes: a mean and a count of every class seen."""
        return 4 * n_classes * (in_features + 1)

    def client(
        self,
        cstate: None,
        message: bytes,
        data: ClientData,
        seed: int,
    ) -> tuple[None, bytes]:
        """Sums and counts of the labelled rows."""
        X, classes, codes = labelled_rows(data)
        counts = np.bincount(codes, minlength=len(classes))
        sums = class_sums(X, codes, len(classes)).T
        return cstate, pack_sums(classes, counts.tolist(), sums.astype(np.float32))


def pack_sums(classes: tuple[Label, ...], counts: list[int], sums: NDArray[Any]) -> bytes:
    """A message of kind ``class-sums``."""
    return pack("class-sums", {"classes": list(classes), "counts": counts}, {"sums": sums})


def unpack_sums(blob: bytes, width: int, dtype: str = "F32") -> Sums:
    """Sum and count of each class, refused unless complete, in range and ``width`` wide."""
    message = unpack(blob, FILE_LIMITS).of_kind("class-sums")
    classes = message.header.labels("classes", FILE_LIMITS)
    counts = message.header.integers("counts", len(classes), 1)
    rows = message.tensor("sums", dtype, (len(classes), width))
    require_range(rows, "sums", LARGEST_GRAM)
    return {c: (row.astype(np.float64), n) for c, row, n in zip(classes, rows, counts, strict=True)}
