"""Many summaries as one: what an edge aggregator forwards for the clients behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from operator import add

from fedran.core._linalg.arrays import like, namespace
from fedran.core._linalg.truncation import check_rank, leading
from fedran.core.summary import Summary


def combine(summaries: Iterable[Summary], rank: int | float | None = None) -> Summary:
    r"""One summary of everything that several describe, its columns orthogonal.

    With factors F_i (M, r_i) side by side, ``A = [F_1 .. F_n]`` (M, w), the sum of the Grams is
    ``A A' = sum_i F_i F_i'``; the result holds ``F = A U_k``, with U_k the leading eigenvectors
    of the small ``A'A`` (w, w), so that ``F F' = T_k(A A')``. Class sums add by label, accounts
    as ``Accounts`` says.

    Parameters
    ----------
    summaries:
        At least one, all of the same features.
    rank:
        None keeps everything: the sum of the Grams to rounding, accounts simply added. An int
        keeps that many columns, a float in (0, 1] that share of the energy; what is discarded is
        a truncating merge in the accounts, ``cut`` grows by its trace and ``eps_G`` by its norm,
        so the ridge and the bounds at the server stay right.

    Notes
    -----
    Cost: w^2 M + 4/3 w^3 + 2 w M k operations and w^2 + M w numbers; an (M, M) matrix is made
    only where w exceeds M. The same head as adding one after the other, in any order.

    Examples
    --------
    >>> import numpy as np, fedran
    >>> H = np.array([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> a, b = fedran.summarize(H, ["cat", "dog"]), fedran.summarize(H[1:], ["dog"])
    >>> combine([a, b]).gram().diagonal().round(9).tolist(), combine([a, b]).counts
    ([4.0, 2.0, 0.0], (1, 2))
    >>> round(combine([a, b], rank=1).accounts.cut, 9)
    2.0
    """
    parts, rank = list(summaries), check_rank(rank)
    if not parts:
        raise ValueError("combine takes at least one summary, got none")
    # Without their columns they add at no cost, every check and rule of ``+`` included.
    total = reduce(add, (replace(s, factor=s.factor[:, :0]) for s in parts))
    first = parts[0].factor
    stack = namespace(first).concat([like(s.factor, first) for s in parts], axis=1)
    if isinstance(rank, int) and rank >= min(stack.shape):
        rank = None
    result = leading(stack, rank, "the stacked factors")
    # Columns that are zero to rounding are no loss: without a rank the accounts are the sum.
    accounts = total.accounts if rank is None else total.accounts.after_merge_cut(result.loss)
    return replace(
        total, factor=result.factor, accounts=accounts, route=f"sum, {result.route}", digest=None
    )
