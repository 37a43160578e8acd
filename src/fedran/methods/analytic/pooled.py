"""Clients that send their rows: the centralised references and the yardsticks of cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.labels import Label, encode_labels, label_array, ordered
from fedran.methods.analytic.gram_based import LARGEST_ROW, labelled_rows, require_range
from fedran.methods.analytic.one_round import HeadMethod
from fedran.methods.protocol import ClientData
from fedran.wire.container import Container, pack, unpack
from fedran.wire.validation import FILE_LIMITS


class RowsClient(HeadMethod):
    """Sends features and labels of its labelled rows, in float32."""

    family: Literal["analytic", "reference"] = "reference"
    sends = "every row: features in float32 and labels"

    def formula(self, in_features: int, n_classes: int) -> int | None:
        """Depends on the rows: no formula."""

    def client(
        self,
        cstate: None,
        message: bytes,
        data: ClientData,
        seed: int,
    ) -> tuple[None, bytes]:
        """The rows themselves."""
        X, classes, codes = labelled_rows(data)
        return cstate, pack_rows("rows", classes, codes, {"rows": X.astype(np.float32)})

    def rows(self, uploads: Sequence[bytes], d: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Features (n, d) and labels of all uploads, client after client."""
        parts = [unpack_rows("rows", blob) for blob in uploads]
        X = [m.tensor("rows", "F32", (len(y), d)) for m, y in parts]
        for part in X:
            require_range(part, "rows", LARGEST_ROW)
        return np.concatenate(X), join_labels([y for _, y in parts])


def pack_rows(
    kind: str,
    classes: tuple[Label, ...],
    codes: NDArray[np.int64],
    tensors: dict[str, NDArray[Any]],
) -> bytes:
    """A message of rows: their labels as class numbers of two bytes (four beyond 65,536)."""
    width = 2 if len(classes) <= 2**16 else 4
    numbers = np.frombuffer(codes.astype(f"<u{width}").tobytes(), dtype=np.uint8)
    fields = {"classes": list(classes), "n": len(codes), "width": width}
    return pack(kind, fields, {"codes": numbers, **tensors})


def unpack_rows(kind: str, blob: bytes) -> tuple[Container, list[Label]]:
    """The message and the label of each row."""
    message = unpack(blob, FILE_LIMITS).of_kind(kind)
    classes = message.header.labels("classes", FILE_LIMITS)
    n, width = message.header.integer("n"), message.header.integer("width", 2, 4)
    if width == 3:
        raise Refused("width", "2 or 4", width)
    codes = np.frombuffer(message.stream("codes"), dtype=f"<u{width}")
    if len(codes) != n or (n and codes.max() >= len(classes)):
        raise Refused("codes", f"{n} class numbers below {len(classes)}", f"{len(codes)} others")
    return message, [classes[c] for c in codes]


def join_labels(parts: Sequence[Sequence[Label]]) -> NDArray[Any]:
    """All labels as one array."""
    labels = [c for part in parts for c in part]
    classes = ordered(set(labels))
    if not labels:
        return np.zeros(0, dtype=np.int64)
    _, codes = encode_labels(labels, len(labels))
    return label_array(classes)[codes]
