"""Yardsticks of cost: send the features of every row, or the images themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_device
from fedran.core.errors import Refused
from fedran.core.labels import Label, encode_labels, label_array
from fedran.wire.container import Container, Tensor, pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import (
    LARGEST_ROW,
    AnalyticMethod,
    OptionalKind,
    Width,
    labelled_rows,
    require_range,
)
from fedran_bench.methods.analytic.gram_based import GramServer, GramState
from fedran_bench.methods.protocol import Claims, ClientData, Spec, Uploads


class RowsClient(AnalyticMethod):
    """Sends features and labels of its labelled rows, in float32."""

    family: Literal["analytic", "reference"] = "reference"
    sends = "every row: features in float32 and labels"
    message = "rows"
    """The kind of the uploads."""

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """The rows themselves."""
        X, classes, codes = labelled_rows(data)
        return cstate, pack_rows(self.message, classes, codes, {"rows": X.astype(np.float32)})

    def rows(self, uploads: Sequence[bytes], d: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Features (n, d) and labels of all uploads, client after client."""
        parts = [unpack_rows(self.message, blob) for blob in uploads]
        X = [self.features(message, (len(labels), d)) for message, labels in parts]
        return np.concatenate(X), label_array([c for _, labels in parts for c in labels])

    def features(self, message: Container, shape: tuple[int, int]) -> NDArray[Any]:
        """The features that a message holds."""
        rows = message.tensor("rows", "F32", shape)
        require_range(rows, "rows", LARGEST_ROW)
        return rows


@dataclass(frozen=True)
class SendFeatures(RowsClient, GramServer):
    """The server maps the rows itself and solves the exact ridge. No privacy of any kind."""

    out_features: Width = 8192
    """M, the number of random features."""
    kind: OptionalKind = None
    """Of the random features; none for the kind that the dataset declares."""
    device: str | None = None

    name = "Send features"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    verified = "yes: equals the dense joint ridge"

    def aggregate(self, state: GramState, task: int, round_: int, uploads: Uploads) -> GramState:
        """Map, add, solve."""
        return self.add_rows(state, *self.rows(list(uploads.values()), state.phi.in_features))

    def add_rows(self, state: GramState, X: NDArray[Any], y: NDArray[Any]) -> GramState:
        """The state with some more rows, solved."""
        classes, codes = encode_labels(y, len(y))
        state.total.add_rows(state.phi.blocks(to_device(X, self.device)), classes, codes)
        return self.solved(state)


@dataclass(frozen=True)
class SendFeatures8Bit(SendFeatures):
    """One byte per value: sign(z) sqrt|z| in 256 equal steps between the column's extremes."""

    name = "Send features, 8 bits"
    claims = Claims(order_free=True)
    sends = "every row: features in 8 bits and labels"
    message = "rows-8bit"
    verified = "yes: within half a step of the features"

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """The rows, one byte per value."""
        X, classes, codes = labelled_rows(data)
        return cstate, pack_rows(self.message, classes, codes, compand(X))

    def features(self, message: Container, shape: tuple[int, int]) -> NDArray[Any]:
        """The features as decoded from the bytes."""
        low_and_step = message.tensor("range", "F32", (2, shape[1]))
        require_range(low_and_step, "range", LARGEST_ROW**0.5 / 256)
        return expand(message.tensor("rows", "U8", shape), low_and_step)


def compand(X: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Bytes (n, d), and the minimum and step of sign(z) sqrt|z| per column, (2, d)."""
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


def pack_rows(
    kind: str, classes: tuple[Label, ...], codes: NDArray[np.int64], tensors: Mapping[str, Tensor]
) -> bytes:
    """A message of rows: their labels as class numbers of two bytes (four beyond 65,536)."""
    width = 2 if len(classes) <= 2**16 else 4
    fields = {"classes": list(classes), "n": len(codes), "width": width}
    return pack(kind, fields, {"codes": codes.astype(f"<u{width}").tobytes(), **tensors})


def unpack_rows(kind: str, blob: bytes) -> tuple[Container, list[Label]]:
    """The message and the label of each row."""
    message = unpack(blob, FILE_LIMITS).of_kind(kind)
    classes = message.header.labels("classes", FILE_LIMITS)
    n, width = message.header.integer("n"), message.header.integer("width", 2, 4)
    if width == 3:
        raise Refused("width", "2 or 4", width)
    codes = np.frombuffer(message.stream("codes"), dtype=f"<u{width}")
    if len(codes) != n or (n and codes.max() >= len(classes)):
        raise Refused("codes", f"{n} class numbers below {len(classes)}", f"{len(codes)} numbers")
    return message, [classes[c] for c in codes]


NO_IMAGES = (
    "send-images needs the images beside the features: leave it out, or use a dataset that has "
    "both (docs/how-to/features.md)"
)


@dataclass(frozen=True)
class SendImages(SendFeatures):
    """Encoded images as stored on disk, and labels."""

    name = "Send images"
    sends = "every image as stored on disk, and labels"
    verified = "yes: the same rows as with the features"

    def init(self, spec: Spec, seed: int) -> GramState:
        """An empty state. The server has the backbone of the dataset."""
        if spec.extract is None:
            raise ValueError(NO_IMAGES)
        return super().init(spec, seed)

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """The images of the labelled rows, one after the other."""
        if data.images is None:
            raise ValueError(NO_IMAGES)
        classes, codes = encode_labels(data.y, len(data.images))
        images = [data.images[int(i)] for i in np.flatnonzero(codes >= 0)]
        lengths = np.array([len(i) for i in images], dtype="<u4")
        tensors = {"blob": b"".join(images), "lengths": lengths.tobytes()}
        return cstate, pack_rows("images", classes, codes[codes >= 0], tensors)

    def aggregate(self, state: GramState, task: int, round_: int, uploads: Uploads) -> GramState:
        """Extract, then as with features."""
        assert state.spec.extract is not None
        parts = [unpack_images(blob) for blob in uploads.values()]
        X = state.spec.extract([image for images, _ in parts for image in images])
        y = label_array([c for _, labels in parts for c in labels])
        require_range(X, "features", LARGEST_ROW)
        return self.add_rows(state, X.astype(np.float32), y)


def unpack_images(blob: bytes) -> tuple[list[bytes], list[Any]]:
    """The encoded images of a message and their labels."""
    message, labels = unpack_rows("images", blob)
    lengths = np.frombuffer(message.stream("lengths"), dtype="<u4").astype(np.int64)
    data = message.stream("blob")
    if len(lengths) != len(labels) or lengths.sum() != len(data):
        raise Refused("lengths", f"{len(labels)} lengths that add up to {len(data)}", len(lengths))
    ends = np.cumsum(lengths)
    return [data[e - n : e] for e, n in zip(ends, lengths, strict=True)], labels
