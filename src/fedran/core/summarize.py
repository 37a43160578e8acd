"""From rows and labels to a summary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedran.core._linalg.arrays import (
    Array,
    Float,
    as_matrix,
    cast,
    eps,
    like,
    namespace,
    require_finite,
    to_numpy,
)
from fedran.core._linalg.truncation import check_rank, leading
from fedran.core.fingerprint import Fingerprint, check_fingerprint
from fedran.core.labels import MISSING, encode_labels
from fedran.core.summary import Center, Summary, check_center
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums


def summarize(
    H: ArrayLike | Array,
    y: Any,
    rank: int | None = 256,
    *,
    center: Center | None = "class",
    fingerprint: Fingerprint | None = None,
) -> Summary:
    r"""Summarize random features H (n, M) and their labels as one ``Summary``.

    It holds b_c, the sum of the rows of class c, for the classes that occur, and the factor
    ``F = V_r diag(sigma_r)`` of the rows minus their class means, ``U diag(sigma) V'``. The class
    sums are needed anyway, so the between-class part of H'H costs nothing, and all r columns
    describe what the sums do not.

    Parameters
    ----------
    H:
        (n, M) random features, NumPy or torch, float32 or float64; n may be 0.
    y:
        n labels, int or str. Rows without a label (None or NaN) are left out.
    rank:
        Columns to keep, or None for all.
    center:
        ``"class"``, or None to factorise H itself as the paper does.
    fingerprint:
        Of the features, normally ``phi.fingerprint``.

    Notes
    -----
    Cost for n <= M: n^2 M + 4/3 n^3 + 2 n M r operations, and n^2 + M r numbers beside H and its
    centred copy.

    Examples
    --------
    >>> import numpy as np
    >>> s = summarize([[3.0, 0.0], [1.0, 0.0], [0.0, 5.0]], ["a", "a", "b"], rank=2)
    >>> s.class_sums.T.tolist(), abs(s.factor).round(6).tolist()
    ([[4.0, 0.0], [0.0, 5.0]], [[1.414214], [0.0]])
    >>> s.gram().round(6).tolist()
    [[10.0, 0.0], [0.0, 25.0]]
    """
    rank, center = check_rank(rank), check_center(center)
    check_fingerprint(fingerprint)
    given = as_matrix(H, "H")
    width = int(given.shape[1])
    if fingerprint is not None and fingerprint.fields.get("M", width) != width:
        raise ValueError(
            f"H has {width} columns, and its fingerprint says M = {fingerprint.fields['M']}; "
            "pass phi(Z), not Z"
        )
    classes, codes = encode_labels(y, int(given.shape[0]))
    labelled = np.flatnonzero(codes != MISSING)
    H = given if len(labelled) == len(codes) else given[like(labelled, given)]
    codes = codes[labelled]
    sums = ClassSums.from_codes(H, classes, codes)
    rows = H if center is None else sums.residuals(H, codes)
    between = 0.0 if center is None else sums.energy
    if center == "class":  # n rows minus C class means span n - C directions, the rest is rounding
        most = int(H.shape[0]) - len(sums)
        rank = max(1, most if rank is None else min(rank, most))
    try:
        result = leading(rows.T, rank, "H")
    except ValueError:
        require_finite(given, "H")  # names the row by its number in the input
        raise
    start = Accounts(n_rows=int(H.shape[0]), energy=result.energy + between)
    accounts = start.after_local_cut(result.loss)
    factor = without_rounding(result.factor, sums, accounts, center)
    return Summary(factor, sums, accounts, fingerprint, center, route=result.route)


def without_rounding(
    factor: Float[Array, "M r"], sums: ClassSums, accounts: Accounts, center: Center | None
) -> Float[Array, "M k"]:
    """The factor without columns that only rounding of the class means can have made.

    n labelled rows minus the means of C classes span at most n - C directions.
    """
    if center is None or not factor.shape[1]:
        return factor
    xp = namespace(factor)
    squares = to_numpy(xp.sum(cast(factor, "float64") ** 2, axis=0))
    floor = (8 * eps(factor)) ** 2 * accounts.energy
    most = accounts.n_rows - len(sums)
    return factor[:, : min(most, int(np.count_nonzero(squares > floor)))]
