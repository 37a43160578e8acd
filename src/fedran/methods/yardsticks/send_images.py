"""Yardstick of cost: send the images, let the server run the backbone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.labels import encode_labels, label_array
from fedran.methods.analytic.base import LARGEST_ROW, require_range
from fedran.methods.analytic.gram_based import GramState
from fedran.methods.protocol import ClientData, Spec, Uploads
from fedran.methods.yardsticks.send_features import SendFeatures, pack_rows, unpack_rows

NO_IMAGES = (
    "send-images needs the images beside the features: leave it out, or use a dataset that has "
    "both (docs/how-to/features.md)"
)


@dataclass
class ImageState(GramState):
    """A Gram state whose server has the backbone."""

    extract: Callable[[Sequence[bytes]], NDArray[Any]] | None = None


@dataclass(frozen=True)
class SendImages(SendFeatures):
    """Encoded images as stored on disk, and labels."""

    name = "Send images"
    sends = "every image as stored on disk, and labels"
    verified = "yes: the same rows as with the features"

    def init(self, spec: Spec, seed: int) -> ImageState:
        """An empty state with the backbone of the dataset."""
        if spec.extract is None:
            raise ValueError(NO_IMAGES)
        start = super().init(spec, seed)
        return ImageState(start.phi, start.total, extract=spec.extract)

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
        assert isinstance(state, ImageState)
        assert state.extract is not None
        parts = [unpack_images(blob) for blob in uploads.values()]
        X = state.extract([image for images, _ in parts for image in images])
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
