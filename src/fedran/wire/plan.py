"""Which points, and which rank of a summary, fit a byte budget."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from fedran.core.errors import positive_integer, real_number
from fedran.core.sums.aggregator import LANDMARKS
from fedran.wire.codec import DEFAULT_BITS
from fedran.wire.quantisation import check_bits
from fedran.wire.sizes import (
    VALUE_BITS,
    head_bytes,
    kernel_head_bytes,
    points_bytes,
    upload_bytes,
)

FRONT = (
    *((1, 1.0), (1, 1.5), (1, 2.0), (2, 1.0), (2, 1.5), (3, 1.0), (3, 1.5)),
    *((5, 1.0), (5, 1.5), (8, 1.0)),
)
"""Group sizes and steps by falling bytes, each the most accurate at its size (CIFAR-100,
EfficientNet-Lite0: docs/how-to/budget.md). Larger groups have ``COARSE`` steps."""
LARGE, COARSE = 10, 1.5


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
