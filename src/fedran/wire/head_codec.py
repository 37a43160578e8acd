"""Head <-> message: weights, landmarks, classes, diagnosis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_numpy
from fedran.core.errors import Refused, printable
from fedran.core.labels import Label
from fedran.core.solve.head import Diagnosis, Head
from fedran.wire.columns import NAMES, decode_columns, encode_columns, grid_steps
from fedran.wire.container import Container, Tensor, pack
from fedran.wire.validation import Limits, plain_calibration

WEIGHT_BYTES = 20
"""Bytes per weight that decoding a head allocates."""
MOST_WEIGHT = 1e30
"""Kernel values and random features of unit rows give finite scores with them."""
MOST_SCALE = 4.0
"""Rows of unit norm have squared distances of at most that."""
HEADER_ROOM = 2**16
"""Bytes of a header beside the labels."""


def head_fits(
    classes: Sequence[Label], out_features: int, limits: Limits, landmarks: int = 0
) -> bool:
    """Whether a reader with these limits accepts a head of these classes.

    >>> [head_fits(range(n), 8192, Limits()) for n in (6553, 6554)]
    [True, False]
    >>> [head_fits("ab", d, Limits(), landmarks=4096) for d in (10_000, 12_000)]
    [True, False]
    """
    count, support = len(classes), landmarks * out_features
    text = sum(len(json.dumps(label)) + 2 for label in classes)
    weights = 4 * landmarks if landmarks else 2 * out_features
    return (
        count <= limits.classes
        and _decoded_bytes(count, out_features, landmarks) <= limits.decoded
        and count * (weights + 8) + 2 * support + text + HEADER_ROOM <= limits.message
        and text + HEADER_ROOM <= limits.header
    )


def _decoded_bytes(classes: int, out_features: int, landmarks: int) -> int:
    """Bytes that decoding a head allocates."""
    weights = classes * max(landmarks, out_features)
    return weights * WEIGHT_BYTES + 24 * landmarks * out_features


def encode_head(head: Head) -> bytes:
    """A head as a message. The error of rounding to float16 is added to its bound ``eps_W``."""
    head = head.to(None)
    rows = np.ascontiguousarray(head.weights.T)
    support = None if head.landmarks is None else to_numpy(head.landmarks)
    if not np.all(np.isfinite(rows)):
        raise ValueError("the head holds NaN or infinite weights; solve again with a larger ridge")
    for name, value in asdict(head.diagnosis).items():
        if isinstance(value, (int, float)) and not np.isfinite(value):
            raise ValueError(f"diagnosis.{name} is {value}; rescale the features and solve again")
    peaks = np.max(np.abs(rows), axis=1).astype(np.float64)
    scale = np.where(peaks > 0, peaks, 1.0)
    # Weights of landmarks nearly cancel where landmarks are close to each other.
    stored = (rows / scale[:, None]).astype("<f2" if support is None else "<f4")
    lost = float(np.linalg.norm(_weights(stored, scale) - rows))
    diagnosis = replace(head.diagnosis, eps_W=head.diagnosis.eps_W + lost)
    header: dict[str, Any] = {
        "out_features": head.out_features,
        "landmarks": 0 if support is None else len(support),
        "scale": head.scale,
        "classes": list(head.classes),
        "diagnosis": asdict(diagnosis),
        "fingerprint": dict(head.fingerprint.fields) if head.fingerprint else None,
    }
    if head.calibration is not None:
        header["histograms"] = plain_calibration(head.calibration)
    tensors: dict[str, Tensor] = {"weights": stored, "weights_scale": scale}
    if support is not None:
        tensors |= encode_columns(support, grid_steps(support))
    if head.seen is not None:
        tensors["seen"] = np.ascontiguousarray(head.seen.T).astype("<f2")
    return pack("head", header, tensors)


def decode_head(message: Container, limits: Limits) -> Head:
    """The head in a verified message."""
    header = message.header
    M = header.integer("out_features", 1, limits.out_features)
    classes = header.labels("classes", limits)
    if not classes:
        raise Refused("classes", "at least one label", "none")
    seen_shape = message.tensors["seen"].shape if "seen" in message.tensors else (0, M)
    m = header.integer("landmarks", 0, limits.points)
    need = _decoded_bytes(len(classes), M, m) + seen_shape[0] * M * WEIGHT_BYTES
    if need > limits.decoded:
        raise Refused("message", f"at most {limits.decoded} bytes when decoded", need)
    stored = message.tensor("weights", "F32" if m else "F16", (len(classes), m or M))
    scale = message.tensor("weights_scale", "F64", (len(classes),))
    seen = None
    if "seen" in message.tensors:
        seen = message.tensor("seen", "F16", (min(seen_shape[0], M), M)).astype(np.float32).T
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.sum(seen * seen, axis=0)
        if not np.all(lengths <= 1.01):
            raise Refused("seen", "finite rows of norm at most 1", "others")
    message.only("weights", "weights_scale", *["seen"][: seen is not None], *NAMES[: 3 * (m > 0)])
    support = decode_columns(message, m, M) if m else None
    if not np.all(np.isfinite(scale)) or np.any(scale <= 0):
        raise Refused("weights_scale", "finite, positive values", "others")
    with np.errstate(over="ignore", invalid="ignore"):
        weights = _weights(stored, scale)
    if not np.sum(np.abs(weights), axis=1, dtype=np.float64).max() <= MOST_WEIGHT:
        expected = f"at most {MOST_WEIGHT:g} per class in all, so that scores are finite"
        raise Refused("weights", expected, "NaN, infinity or more")
    section = header.section("diagnosis")
    numbers: dict[str, Any] = {
        f.name: section.number(f.name)
        for f in fields(Diagnosis)
        if f.name not in ("route", "n_rows", "agreement", "largest_group")
    }
    if section.get("agreement") is not None:
        numbers["agreement"] = section.number("agreement", 1.0)
    numbers["largest_group"] = section.integer("largest_group")
    route = printable(section.text("route", 1000), 1000)
    diagnosis = Diagnosis(route=route, n_rows=section.integer("n_rows"), **numbers)
    calibration = header.calibration("histograms")
    fingerprint = header.fingerprint("fingerprint")
    return Head(
        weights.T,
        classes,
        diagnosis,
        fingerprint,
        message.digest,
        calibration,
        seen,
        support,
        header.number("scale", MOST_SCALE, 1e-6),
    )


def _weights(stored: NDArray[Any], scale: NDArray[np.float64]) -> NDArray[np.float32]:
    return (stored.astype(np.float64) * scale[:, None]).astype(np.float32)
