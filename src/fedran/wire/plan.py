"""Which message and which rank or group size fit a byte budget."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Literal

from fedran.core.errors import positive_integer
from fedran.wire.codec import DEFAULT_BITS
from fedran.wire.quantisation import check_bits
from fedran.wire.sizes import head_bytes, mixture_bytes, upload_bytes

MIXTURE_WORTH = 1 / 16
"""A mixture of small groups was as accurate as a summary of this rank per row, at the same width M,
with the features of a network (docs/explanation/mathematics.md). Other features may differ."""
LEAST_GROUP_SIZE = 5
"""Groups below this size take more bytes and are hardly more accurate."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A message with its rank or group size, and costs per client and task. Sizes are in bytes."""

    out_features: int
    n_classes: int
    bits: float
    budget: int | None
    """The given budget; None if the rank was given."""
    message: Literal["summary", "mixture"]
    """By rule of thumb: a mixture if one fits and ``rank`` is below a sixteenth of the rows."""
    rank: int
    """The given rank, or the largest that fits. 0: no column fits beside the class sums, or every
    class has one row only."""
    upload: int
    """Bytes of a summary of that rank, with labels of usual length, an estimate."""
    group_size: int | None
    """The smallest group size whose mixture fits. None: none fits, d or the rows are unknown, or a
    class has fewer than ``min_group`` rows on average, so that a mixture would leave most out."""
    mixture_upload: int | None
    """Bytes of that mixture, an estimate."""
    download: int
    """Bytes of the head in float16, with all classes seen so far."""


def plan(
    budget_bytes: int | None = None,
    *,
    out_features: int,
    n_classes: int,
    rank: int | None = None,
    in_features: int | None = None,
    n_rows: int | None = None,
    min_group: int = 5,
    classes_seen: int | None = None,
    bits: float = DEFAULT_BITS,
) -> Plan:
    """Find the message, and its rank or group size, for a byte budget; or the costs of a rank.

    Parameters
    ----------
    budget_bytes, rank:
        Give one of them.
    out_features:
        M, the width of the random features.
    n_classes:
        The classes that one client holds in one task. Only their sums are sent.
    in_features:
        d, the width of the raw features.
    n_rows:
        The labelled rows that one client holds in one task. With ``in_features``, mixtures are
        considered too.
    min_group:
        As for ``condense``.
    classes_seen:
        All classes that the head knows (default: ``n_classes``).
    bits:
        As for ``encode``.

    Examples
    --------
    >>> import fedran
    >>> p = fedran.plan(budget_bytes=2_000_000, out_features=8192, n_classes=20)
    >>> p.rank > 256 and p.upload <= 2_000_000
    True
    >>> p = fedran.plan(200_000, out_features=8192, n_classes=20, in_features=1280, n_rows=2000)
    >>> p.message, p.group_size
    ('mixture', 6)
    """
    check_bits(bits)
    sizes = {
        "out_features": out_features,
        "n_classes": n_classes,
        "budget_bytes": budget_bytes,
        "rank": rank,
        "in_features": in_features,
        "n_rows": n_rows,
        "min_group": min_group,
        "classes_seen": classes_seen,
    }
    for name, size in sizes.items():
        if size is not None or name in ("out_features", "n_classes", "min_group"):
            positive_integer(size, name)
    if (budget_bytes is None) == (rank is None):
        raise ValueError("give either budget_bytes or rank")
    M, C = out_features, n_classes
    if rank is not None and rank > M:
        raise ValueError(f"rank must be at most out_features = {M}, got {rank}")
    if budget_bytes is not None:
        rank = _largest_rank(budget_bytes, M, C, bits)
        if n_rows is not None:  # rows minus their class means span no more directions
            rank = min(rank, max(0, n_rows - C))
    assert rank is not None
    mixture = None
    if budget_bytes is not None and in_features is not None and n_rows is not None:
        mixture = _smallest_groups(budget_bytes, in_features, n_rows, C, min_group, bits)
    small_rank = rank < MIXTURE_WORTH * (n_rows or 0)
    return Plan(
        out_features=M,
        n_classes=C,
        bits=bits,
        budget=budget_bytes,
        message="mixture" if mixture and small_rank else "summary",
        rank=rank,
        upload=upload_bytes(M, rank, C, bits),
        group_size=None if mixture is None else mixture[0],
        mixture_upload=None if mixture is None else mixture[1],
        download=head_bytes(M, classes_seen or C),
    )


def _largest_rank(budget: int, M: int, C: int, bits: float) -> int:
    """The largest rank whose summary fits; 0 if none does. Bisection: sizes grow with the rank."""
    sizes = range(M + 1)
    fitting = bisect_right(sizes, budget, key=lambda r: upload_bytes(M, r, C, bits))
    return max(0, fitting - 1)


def _smallest_groups(
    budget: int, d: int, n_rows: int, C: int, min_group: int, bits: float
) -> tuple[int, int] | None:
    """The smallest group size whose mixture fits, and its bytes; None if none does.

    A mixture leaves out classes with fewer rows than ``min_group``.
    """

    def need(size: int) -> int:
        return mixture_bytes(d, n_rows, C, size, min_group, bits=bits)

    if n_rows < min_group * C:
        return None
    sizes = range(max(LEAST_GROUP_SIZE, min_group + 1 if min_group > 1 else 0), n_rows + 1)
    # Bisection: larger groups take fewer bytes.
    found = bisect_left(sizes, True, key=lambda size: need(size) <= budget)
    return None if found == len(sizes) else (sizes[found], need(sizes[found]))
