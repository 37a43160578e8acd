"""Points <-> message: rounded means, and beside each its norm and its count.

Rounding changes norms, so the norm of every mean travels, and decoded means are scaled to it.
"""

from __future__ import annotations

import numpy as np

from fedran.core._linalg.arrays import to_numpy
from fedran.core.errors import Refused, real_number
from fedran.core.points import MAX_ROWS, Points
from fedran.wire.columns import (
    NAMES,
    column_steps,
    decode_columns,
    encode_columns,
    expand,
    planes,
    squeeze,
)
from fedran.wire.container import Container, pack
from fedran.wire.validation import Limits

DEFAULT_STEP = 1.0
"""Step of a column over the deviation of its rows: 2 costs 0.5 points and saves a third."""
STEPS = (0.01, 16.0)
WHOLE_NORM = 2**16 - 1


def check_step(step: float) -> float:
    """The step over the deviation. ValueError unless it is a sensible number."""
    if not STEPS[0] <= real_number(step, "step") <= STEPS[1]:
        raise ValueError(f"step must lie in {STEPS[0]} .. {STEPS[1]}, got {step!r}")
    return float(step)


def encode_points(points: Points, step: float) -> bytes:
    """Points as a message. Classes that were withheld are not mentioned."""
    points = points.to(None).validate()
    means = to_numpy(points.means)
    header = {
        "in_features": points.in_features,
        "fingerprint": None if points.fingerprint is None else dict(points.fingerprint.fields),
        "classes": list(points.classes),
        "points": np.bincount(points.codes, minlength=len(points.classes)).tolist(),
    }
    deviation = points.deviation
    if deviation is None:
        deviation = means.std(axis=0) if len(means) else np.ones(means.shape[1])
    norms = np.sqrt(np.einsum("ij,ij->i", means, means, dtype=np.float64))
    whole = np.rint(np.minimum(norms, 1.0) * WHOLE_NORM).astype("<u2")
    tensors = encode_columns(means, column_steps(means, deviation, step))
    tensors["rows"] = squeeze(planes(whole, 2), planes(points.counts, 6))
    return pack("points", header, tensors)


def decode_points(message: Container, limits: Limits) -> Points:
    """The points in a verified message, after every check of docs/reference/wire-format.md."""
    header = message.header
    message.only(*NAMES, "rows")
    d = header.integer("in_features", 1, limits.out_features)
    classes = header.labels("classes", limits)
    per_class = header.integers("points", len(classes), 1, limits.points)
    n = sum(per_class)
    if n > limits.points:
        raise Refused("points", f"at most {limits.points}", n)
    need = 24 * n * d + 64 * (n + d)
    if need > limits.decoded:
        raise Refused("message", f"at most {limits.decoded} bytes when decoded", need)
    whole, counts = expand(message, "rows", n, (2, 6))
    if n and (counts.min() < 1 or int(counts.sum()) > MAX_ROWS):
        raise Refused("rows", f"positive counts of at most {MAX_ROWS} in all", "others")
    values = decode_columns(message, n, d)
    lengths = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
    wanted = whole / WHOLE_NORM
    values *= (wanted / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)[:, None]
    return Points(
        classes,
        np.repeat(np.arange(len(classes)), per_class),
        values,
        counts,
        header.fingerprint("fingerprint"),
        digest=message.digest,
    ).validate()
