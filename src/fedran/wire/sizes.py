"""Sizes of messages before they exist: which points, and which rank of a summary, fit a budget."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from fedran.core.errors import positive_integer, real_number
from fedran.core.sums.aggregator import LANDMARKS
from fedran.wire.codec import DEFAULT_BITS
from fedran.wire.quantisation import allocate_sum_bits, check_bits

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
    """Points and summary for a budget, and costs per client and task. Sizes are in bytes."""

    budget: int
    group_size: int | None
    """Of ``condense``. None: no points fit, or the columns or rows are not known."""
    step: float | None
    """Of ``encode``, for points."""
    upload: int | None
    """Bytes of these points, an estimate."""
    all_rows: int | None
    """Bytes of every row by itself at step 1, an estimate."""
    rank: int | None
    """The largest that fits. 0: no column fits beside the class sums, or every class has one row
    only. None without ``out_features``."""
    summary_upload: int | None
    """Bytes of a summary of that rank, with labels of usual length, an estimate."""
    download: int
    """Bytes of the head with all classes seen so far: one with as many landmarks as ``solve``
    makes by default, or without points that fit, one over random features in float16."""

    @property
    def all_rows_fit(self) -> bool:
        """Whether nothing has to be saved."""
        return self.all_rows is not None and self.all_rows <= self.budget


def plan(
    budget_bytes: int,
    in_features: int | None = None,
    n_classes: int | None = None,
    rows: int | None = None,
    *,
    min_group: int = 1,
    out_features: int | None = None,
    classes_seen: int | None = None,
    bits: float = DEFAULT_BITS,
    value_bits: float = VALUE_BITS,
) -> Plan:
    """Find the group size and the step of points for a byte budget, and the rank of a summary.

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
    out_features:
        M, the width of random features. With it, the rank of a summary that fits is planned too.
    classes_seen:
        All classes that the head knows (default: ``n_classes``).
    bits:
        Of summaries, as for ``encode``.
    value_bits:
        Of points: bits per value of rows at step 1, as ``fedran inspect`` shows them for a message
        of many single rows. The default suits most backbones and is high for features with many
        zeros: EfficientNet-Lite0 has 1.8.

    Examples
    --------
    >>> import fedran
    >>> p = fedran.plan(budget_bytes=2_000_000, in_features=1280, n_classes=20, rows=2000)
    >>> p.all_rows_fit, p.group_size, p.step
    (True, 1, 1.0)
    >>> p = fedran.plan(200_000, in_features=1280, n_classes=20, rows=2000, out_features=8192)
    >>> p.group_size, p.step, p.upload <= 200_000, p.rank
    (3, 1.5, True, 13)
    """
    check_bits(bits)
    sizes = {
        "budget_bytes": budget_bytes,
        "in_features": in_features,
        "n_classes": n_classes,
        "rows": rows,
        "min_group": min_group,
        "out_features": out_features,
        "classes_seen": classes_seen,
    }
    for name, size in sizes.items():
        if size is not None or name in ("budget_bytes", "n_classes", "min_group"):
            positive_integer(size, name)
    if not 0 < real_number(value_bits, "value_bits") <= 16:
        raise ValueError(f"value_bits must lie in 0 .. 16, got {value_bits!r}")
    if out_features is None and None in (in_features, rows):
        raise ValueError("give in_features and rows, or out_features")
    d, C, seen = in_features, n_classes, classes_seen or n_classes
    assert C is not None
    assert seen is not None
    rank = summary = None
    if out_features is not None:
        rank = _largest_rank(budget_bytes, out_features, C, bits)
        if rows is not None:  # rows minus their class means span no more directions
            rank = min(rank, max(0, rows - C))
        summary = upload_bytes(out_features, rank, C, bits)
    chosen, every = None, None
    if d is not None and rows is not None:
        chosen = _first_that_fits(budget_bytes, d, rows, C, min_group, value_bits)
        every = points_bytes(d, rows, C, value_bits=value_bits)
    if d is not None and (chosen is not None or out_features is None):
        download = kernel_head_bytes(d, seen, LANDMARKS)
    else:
        assert out_features is not None
        download = head_bytes(out_features, seen)
    group_size, step, upload = chosen or (None, None, None)
    return Plan(budget_bytes, group_size, step, upload, every, rank, summary, download)


def _largest_rank(budget: int, M: int, C: int, bits: float) -> int:
    """The largest rank whose summary fits; 0 if none does. Bisection: sizes grow with the rank."""
    sizes = range(M + 1)
    fitting = bisect_right(sizes, budget, key=lambda r: upload_bytes(M, r, C, bits))
    return max(0, fitting - 1)


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
    # 2^(b - 1) levels span the largest of M normal entries, in standard deviations (the usual
    # extreme-value estimate), so that their entropy is b - 1 + log2(4.13 / largest) bits.
    root = math.sqrt(2 * math.log(2 * max(M, 2)))
    largest = root - (math.log(root**2 / 2) + math.log(4 * math.pi)) / (2 * root)
    saved = 1.0 - math.log2(4.13 / max(largest, 1.0))
    values = M * r * max(bits - saved, 1.0) / 8 + r
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
    for size, digits, unit in ((2**30, 2, "GiB"), (2**20, 2, "MiB"), (2**10, 1, "KiB")):
        if n >= size:
            return f"{n / size:.{digits}f} {unit}"
    return f"{n} B"
