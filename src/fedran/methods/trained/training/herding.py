"""iCaRL's exemplars: a buffer of fixed size, filled so that class means are kept."""

from __future__ import annotations

from collections.abc import Sequence

from fedran.methods.trained.training.lazy_torch import Tensor, torch


def herd(features: Tensor, count: int) -> Tensor:
    """Indices of ``count`` rows whose running mean follows the mean of all (n, d), in that order.

    Greedy: the k-th row brings the mean of the first k closest to the mean of all. O(n d) a row.
    """
    target = features.mean(0)
    total = torch.zeros_like(target)
    left = torch.ones(len(features), dtype=torch.bool, device=features.device)
    chosen = []
    for k in range(1, min(count, len(features)) + 1):
        distance = torch.linalg.vector_norm(target - (total + features) / k, dim=1)
        distance[~left] = torch.inf
        best = distance.argmin()
        left[best] = False
        total = total + features[best]
        chosen.append(best)
    return torch.stack(chosen) if chosen else torch.zeros(0, dtype=torch.long, device=left.device)


def quotas(rows: Sequence[int], size: int) -> list[int]:
    """How many exemplars each class gets of the rows it has: as equal as can be, ``size`` in all.

    What a small class cannot use goes to the others.

    >>> quotas([9, 9, 9], 8), quotas([1, 9, 9], 8)
    ([3, 3, 2], [1, 4, 3])
    """
    level = 0
    while level < max(rows, default=0) and sum(min(n, level + 1) for n in rows) <= size:
        level += 1
    given = [min(n, level) for n in rows]
    for i in [i for i, n in enumerate(rows) if n > level][: size - sum(given)]:
        given[i] += 1
    return given
