"""The size of a message before it exists, and sizes in bytes as text."""

from __future__ import annotations

import math
import re

from fedran.wire.quantisation import allocate_sum_bits

HEADER = 1200
"""Bytes of a typical header: accounts, a fingerprint of a dozen fields, framing."""
PER_CLASS = 24
"""Bytes per class: label, count, norm, bits."""
VALUE_BITS = 2.25
"""Bits per value of prepared rows at step 1. Measured: 1.8 with EfficientNet-Lite0, 2.0 to 2.4 with
ResNet-18, 2.3 to 2.5 with ViT-Ti and MiniLM. Normal columns have 2.1, and classes add to it."""
LANDMARK_BITS = 4.5
"""Bits per value of the landmarks of a head."""
PER_COLUMN = 1.7
"""Bytes per column of points: step, least code, a share of the tables of frequencies."""
PER_GROUP = 2.75
"""Bytes per group: norm and count. Of single rows both are 1 and take nothing."""
SHORT_HEADER, PER_LABEL = 750, 12
"""Bytes of the header of points and kernel heads, and of a class in it."""
ROWS_PER_CLASS = 100
"""Assumed rows per class at one client in one task where the caller does not know them."""
SAVED_SUM_BITS = 2.0
"""Bits per value that compression saves on class sums: most of their entries have the same sign."""
_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


def upload_bytes(
    out_features: int,
    rank: int,
    n_classes: int,
    bits: float = 5.0,
    rows_per_class: int = ROWS_PER_CLASS,
) -> int:
    """About how many bytes the message of a summary takes.

    The estimate assumes normal entries. Features of real backbones give smaller messages
    (CIFAR-100: by a sixth), heavy-tailed features some percent larger ones. Sums of more rows get
    more bits. Long labels add to the size. ``encode(..., max_bytes=...)`` guarantees a limit.
    """
    M, r, C = out_features, rank, n_classes
    values = M * r * max(bits - _coding_gain(M), 1.0) / 8 + r
    width = int(allocate_sum_bits((rows_per_class,), bits)[0])
    sums = M * C * max(width - SAVED_SUM_BITS, 1.0) / 8
    return int(values + sums) + 8 * r + PER_CLASS * C + HEADER


def points_bytes(
    in_features: int,
    rows: int,
    n_classes: int,
    group_size: int = 1,
    min_group: int = 1,
    step: float = 1.0,
    value_bits: float = VALUE_BITS,
) -> int:
    """About how many bytes the message of points takes.

    The bits per value follow from those of single rows at step 1, ``value_bits``, which depend on
    the backbone. Given them, the estimate was within 10 % for groups of at most 3 rows and steps of
    0.5 to 2, and within 25 % for groups of 10.
    """
    groups = point_groups(rows, n_classes, group_size, min_group)
    mean_size = max(1.0, rows / groups)
    # Group means have smaller deviations than rows, so the same step is coarser for them.
    step *= mean_size**0.12
    bits = value_bits * math.log(1 + 2 / step) / math.log(3)
    size = groups * (in_features * bits / 8 + PER_GROUP * (mean_size > 1))
    return int(size + PER_COLUMN * in_features) + PER_LABEL * n_classes + SHORT_HEADER


def point_groups(rows: int, n_classes: int, group_size: int, min_group: int = 1) -> int:
    """About how many groups ``condense`` makes. Small ones that join others make fewer.

    >>> point_groups(2000, 20, 5), point_groups(2000, 20, 5, min_group=5)
    (400, 256)
    """
    size = max(group_size, min_group)
    joined = 0.7 * (min_group - 1) * (min_group / size) ** 1.5
    return max(1, n_classes, round(rows / (size + joined)))


def kernel_head_bytes(in_features: int, n_classes: int, landmarks: int) -> int:
    """About how many bytes a head with so many landmarks takes: landmarks, and float32 weights."""
    size = landmarks * (in_features * LANDMARK_BITS / 8 + 4 * n_classes)
    return int(size + PER_COLUMN * in_features) + PER_LABEL * n_classes + SHORT_HEADER


def _coding_gain(out_features: int) -> float:
    """Bits per value that compression saves on M normal entries.

    L = 2^(b - 1) levels span the largest entry m (in standard deviations), so the entropy is
    log2(sqrt(2 pi e) L / m) = b - 1 + log2(4.13 / m). m is the usual extreme-value estimate.
    """
    root = math.sqrt(2 * math.log(2 * max(out_features, 2)))
    largest = root - (math.log(root**2 / 2) + math.log(4 * math.pi)) / (2 * root)
    return 1.0 - math.log2(4.13 / max(largest, 1.0))


def head_bytes(out_features: int, n_classes: int) -> int:
    """Bytes of a head over random features."""
    return 2 * out_features * n_classes + PER_CLASS * n_classes + HEADER


def parse_bytes(text: str) -> int:
    """``"1.5MiB"`` -> 1572864. Plain numbers are bytes.

    >>> parse_bytes("2MB"), parse_bytes("1 KiB"), parse_bytes("300")
    (2000000, 1024, 300)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS:
        raise ValueError(f"expected a size such as 2000000, 2MB or 1.5MiB, got {text!r}")
    size = float(match[1]) * _UNITS[match[2].lower()]
    if size >= 2**63:
        raise ValueError(f"expected a size below 2^63 bytes, got {text[:40]!r}")
    return int(size)


def human_bytes(n: int) -> str:
    """1572864 -> ``"1.50 MiB"``.

    >>> human_bytes(300), human_bytes(21_000), human_bytes(1572864)
    ('300 B', '20.5 KiB', '1.50 MiB')
    """
    if n < 2**10:
        return f"{n} B"
    if n < 2**20:
        return f"{n / 2**10:.1f} KiB"
    if n < 2**30:
        return f"{n / 2**20:.2f} MiB"
    return f"{n / 2**30:.2f} GiB"
