"""Sizes of messages before they exist: which points fit a byte budget."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from dataclasses import dataclass

from fedran.core.errors import positive_integer, real_number
from fedran.core.sums.aggregator import LANDMARKS

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
FRONT = (
    *((1, 1.0), (1, 1.5), (1, 2.0), (2, 1.0), (2, 1.5), (3, 1.0), (3, 1.5)),
    *((5, 1.0), (5, 1.5), (8, 1.0)),
)
"""Group sizes and steps by falling bytes, each the most accurate at its size (CIFAR-100,
EfficientNet-Lite0: docs/how-to/budget.md). Larger groups have ``COARSE`` steps."""
LARGE, COARSE = 10, 1.5
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True, slots=True)
class Plan:
    """Points for a budget, and costs per client and task. Sizes are in bytes."""

    budget: int
    group_size: int | None
    """Of ``condense``. None: no points fit."""
    step: float | None
    """Of ``encode``."""
    upload: int | None
    """Bytes of these points, an estimate."""
    all_rows: int
    """Bytes of every row by itself at step 1, an estimate."""
    download: int
    """Bytes of a head of these classes with as many landmarks as ``solve`` makes by default."""

    @property
    def all_rows_fit(self) -> bool:
        """Whether nothing has to be saved."""
        return self.all_rows <= self.budget


def plan(
    budget_bytes: int,
    in_features: int,
    n_classes: int,
    rows: int,
    *,
    min_group: int = 1,
    value_bits: float = VALUE_BITS,
) -> Plan:
    """Find the group size and the step of points for a byte budget.

    Parameters
    ----------
    budget_bytes:
        Most bytes of an upload.
    in_features:
        d, the width of the features.
    n_classes:
        The classes that one client holds in one task.
    rows:
        The labelled rows that one client holds in one task.
    min_group:
        As for ``condense``.
    value_bits:
        Bits per value of rows at step 1, as ``fedran inspect`` shows them for a message of many
        single rows. The default suits most backbones and is high for features with many zeros:
        EfficientNet-Lite0 has 1.8.

    Examples
    --------
    >>> import fedran
    >>> p = fedran.plan(budget_bytes=2_000_000, in_features=1280, n_classes=20, rows=2000)
    >>> p.all_rows_fit, p.group_size, p.step
    (True, 1, 1.0)
    >>> p = fedran.plan(200_000, in_features=1280, n_classes=20, rows=2000)
    >>> p.group_size, p.step, p.upload <= 200_000
    (3, 1.5, True)
    """
    sizes = {
        "budget_bytes": budget_bytes,
        "in_features": in_features,
        "n_classes": n_classes,
        "rows": rows,
        "min_group": min_group,
    }
    for name, given in sizes.items():
        positive_integer(given, name)
    if not 0 < real_number(value_bits, "value_bits") <= 16:
        raise ValueError(f"value_bits must lie in 0 .. 16, got {value_bits!r}")
    d, C = in_features, n_classes
    chosen = _first_that_fits(budget_bytes, d, rows, C, min_group, value_bits)
    size, step, upload = chosen or (None, None, None)
    every = points_bytes(d, rows, C, value_bits=value_bits)
    return Plan(budget_bytes, size, step, upload, every, kernel_head_bytes(d, C, LANDMARKS))


def _first_that_fits(
    budget: int, d: int, rows: int, C: int, min_group: int, value_bits: float
) -> tuple[int, float, int] | None:
    """The first group size and step of the front that fit, and their bytes; None if none do.

    None too where a class has fewer rows than ``min_group`` on average: most would be withheld.
    """

    def need(size: int, step: float) -> int:
        return points_bytes(d, rows, C, size, min_group, step, value_bits)

    if rows < min_group * C:
        return None
    front = [pair for pair in FRONT if pair[0] >= min_group]
    if (min_group, 1.0) not in front:
        front[:0] = [(min_group, 1.0), (min_group, COARSE)]
    for size, step in front:
        if need(size, step) <= budget:
            return size, step, need(size, step)
    # Bisection: larger groups take fewer bytes.
    larger = range(max(LARGE, min_group), max(rows, LARGE, min_group) + 1)
    found = bisect_left(larger, True, key=lambda size: need(size, COARSE) <= budget)
    return None if found == len(larger) else (larger[found], COARSE, need(larger[found], COARSE))


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
    for size, digits, unit in ((2**30, 2, "GiB"), (2**20, 2, "MiB"), (2**10, 1, "KiB")):
        if n >= size:
            return f"{n / size:.{digits}f} {unit}"
    return f"{n} B"
