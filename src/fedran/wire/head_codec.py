"""Head <-> message: weights, classes, diagnosis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, printable
from fedran.core.labels import Label
from fedran.core.solve.head import Diagnosis, Head
from fedran.wire.container import Container, pack
from fedran.wire.validation import Limits, plain_calibration

WEIGHT_BYTES = 20
"""Bytes per weight that decoding a head allocates."""
HEADER_ROOM = 2**16
"""Bytes of a header beside the labels."""


def classes_fit(classes: Sequence[Label], out_features: int, limits: Limits) -> bool:
    """Whether a reader with these limits accepts a head of these classes.

    >>> [classes_fit(range(n), 8192, Limits()) for n in (6553, 6554)]
    [True, False]
    """
    count = len(classes)
    text = sum(len(json.dumps(label)) + 2 for label in classes)
    return (
        count <= limits.classes
        and count * out_features * WEIGHT_BYTES <= limits.decoded
        and count * (2 * out_features + 8) + text + HEADER_ROOM <= limits.message
        and text + HEADER_ROOM <= limits.header
    )


def encode_head(head: Head) -> bytes:
    """A head as a message. The error of rounding to float16 is added to its bound ``eps_W``."""
    head = head.to(None)
    rows = np.ascontiguousarray(head.weights.T)
    if not np.all(np.isfinite(rows)):
        raise ValueError("the head holds NaN or infinite weights; solve again with a larger ridge")
    for name, value in asdict(head.diagnosis).items():
        if not isinstance(value, str) and not np.isfinite(value):
            raise ValueError(f"diagnosis.{name} is {value}; rescale the features and solve again")
    peaks = np.max(np.abs(rows), axis=1).astype(np.float64)
    scale = np.where(peaks > 0, peaks, 1.0)
    stored = (rows / scale[:, None]).astype("<f2")
    lost = float(np.linalg.norm(_weights(stored, scale) - rows))
    diagnosis = replace(head.diagnosis, eps_W=head.diagnosis.eps_W + lost)
    header: dict[str, Any] = {
        "precision": "float16",
        "out_features": head.out_features,
        "classes": list(head.classes),
        "diagnosis": asdict(diagnosis),
        "fingerprint": dict(head.fingerprint.fields) if head.fingerprint else None,
    }
    if head.calibration is not None:
        header["histograms"] = plain_calibration(head.calibration)
    tensors = {"weights": stored, "weights_scale": scale}
    if head.seen is not None:
        tensors["seen"] = np.ascontiguousarray(head.seen.T).astype("<f2")
    return pack("head", header, tensors)


def decode_head(message: Container, limits: Limits) -> Head:
    """The head in a verified message."""
    header = message.header
    header.one_of("precision", "float16")
    M = header.integer("out_features", 1, limits.out_features)
    classes = header.labels("classes", limits)
    if not classes:
        raise Refused("classes", "at least one label", "none")
    seen_shape = message.tensors["seen"].shape if "seen" in message.tensors else (0, M)
    need = (len(classes) + seen_shape[0]) * M * WEIGHT_BYTES
    if need > limits.decoded:
        raise Refused("message", f"at most {limits.decoded} bytes when decoded", need)
    stored = message.tensor("weights", "F16", (len(classes), M))
    scale = message.tensor("weights_scale", "F64", (len(classes),))
    seen = None
    if "seen" in message.tensors:
        seen = message.tensor("seen", "F16", (min(seen_shape[0], M), M)).astype(np.float32).T
        lengths = np.sum(seen * seen, axis=0)
        if not np.all(np.isfinite(lengths)) or np.any(lengths > 1.01):
            raise Refused("seen", "finite rows of norm at most 1", "others")
    message.only("weights", "weights_scale", *(["seen"] if seen is not None else []))
    if not np.all(np.isfinite(scale)) or np.any(scale <= 0):
        raise Refused("weights_scale", "finite, positive values", "others")
    with np.errstate(over="ignore", invalid="ignore"):
        weights = _weights(stored, scale)
    if not np.all(np.isfinite(weights)):
        raise Refused("weights", "finite values within float32", "NaN, infinity or larger")
    section = header.section("diagnosis")
    numbers: dict[str, Any] = {
        f.name: section.number(f.name)
        for f in fields(Diagnosis)
        if f.name not in ("route", "n_rows")
    }
    route = printable(section.text("route", 1000), 1000)
    diagnosis = Diagnosis(route=route, n_rows=section.integer("n_rows"), **numbers)
    calibration = header.calibration("histograms")
    fingerprint = header.fingerprint("fingerprint")
    return Head(weights.T, classes, diagnosis, fingerprint, message.digest, calibration, seen)


def _weights(stored: NDArray[Any], scale: NDArray[np.float64]) -> NDArray[np.float32]:
    return (stored.astype(np.float64) * scale[:, None]).astype(np.float32)
