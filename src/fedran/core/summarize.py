"""From rows and labels to a summary: at once, or batch by batch under a memory limit."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Int64,
    as_matrix,
    cast,
    is_numpy_array,
    like,
    namespace,
    require_finite,
)
from fedran.core._linalg.truncation import check_rank, leading
from fedran.core.accounts import Accounts
from fedran.core.class_sums import SUM_BLOCK, ClassSums
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import MISSING, Label, encode_labels
from fedran.core.summary import Summary

Unlabelled = Literal["drop", "factor"]


def summarize(
    H: ArrayLike | Array,
    y: Any,
    rank: int | float | None = 256,
    *,
    fingerprint: Fingerprint | None = None,
    unlabelled: Unlabelled = "drop",
) -> Summary:
    r"""Summarize random features H (n, M) and their labels as one ``Summary``.

    ``F = V_r diag(sigma_r)`` with ``H = U diag(sigma) V'``, and ``b_c``, the sum of the rows of
    class c, for the classes that occur.

    Parameters
    ----------
    H:
        (n, M) random features, NumPy or torch, float32 or float64; n may be 0.
    y:
        n labels, int or str; None or NaN where there is none.
    rank:
        Columns to keep (int), share of the energy to keep (float in (0, 1]), or None for all.
    fingerprint:
        Of the features, normally ``phi.fingerprint``.
    unlabelled:
        Rows without a label are left out (``"drop"``), or they count in the factor, the energy
        and ``n_rows`` but in no class (``"factor"``).

    Notes
    -----
    Cost for n <= M: n^2 M + 4/3 n^3 + 2 n M r operations, and n^2 + M r numbers beside H.

    Examples
    --------
    >>> import numpy as np
    >>> s = summarize(np.eye(3), ["a", "b", "a"], rank=3)
    >>> s.sigma.tolist(), s.class_sums.T.tolist()
    ([1.0, 1.0, 1.0], [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    """
    rank = check_rank(rank)
    given = as_matrix(H, "H")
    H, classes, codes = _rows_in_use(given, y, unlabelled)
    try:
        result = leading(H.T, rank, "H")
    except ValueError:
        require_finite(given, "H")  # names the row by its number in the input
        raise
    start = Accounts(n_rows=int(H.shape[0]), energy=result.energy)
    return Summary(
        result.factor,
        ClassSums.from_codes(H, classes, codes),
        start.after_local_cut(result.loss),
        fingerprint,
        route=result.route,
    )


class Summarizer:
    r"""Builds a summary from batches of rows under a memory limit.

    Rows are collected. When they reach the limit they are compressed to the leading half (or to M
    columns, without loss, where that fits), which is again a factor of the same Gram. So
    ``||G - FF'||_2 <= accounts.eps_G`` always holds, and ``finish()`` agrees with ``summarize``
    within the sum of both error bounds.

    ``max_bytes`` limits the memory besides the given batch (and a copy of it where rows without
    a label are left out) and the class sums, 8 M bytes per class.

    >>> import numpy as np
    >>> rows = np.random.default_rng(0).random((100, 20))
    >>> streaming = Summarizer(out_features=20, rank=5)
    >>> for batch in np.array_split(rows, 7):
    ...     streaming.update(batch, ["a"] * len(batch))
    >>> s = streaming.finish()
    >>> bool(np.allclose(s.sigma, summarize(rows, ["a"] * 100, rank=5).sigma))
    True
    """

    def __init__(
        self,
        out_features: int,
        rank: int | float | None = 256,
        *,
        fingerprint: Fingerprint | None = None,
        unlabelled: Unlabelled = "drop",
        max_bytes: int = 512 * 2**20,
    ) -> None:
        self.out_features = out_features
        self.rank = check_rank(rank)
        self.fingerprint = fingerprint
        self.unlabelled: Unlabelled = unlabelled
        # Compressing w rows takes 3 row buffers of 8 w M bytes and 6 square ones of 8 w^2 bytes.
        linear, quadratic = 3 * 8 * out_features, 6 * 8
        root = np.sqrt(linear**2 + 4.0 * quadratic * max_bytes)
        self.capacity = int((root - linear) / (2 * quadratic))
        """Rows that are held before they are compressed."""
        least = self.rank if isinstance(self.rank, int) else 1
        if self.capacity < 2 * min(least, out_features):
            raise ValueError(
                f"max_bytes={max_bytes} holds {self.capacity} rows of {out_features} features; "
                f"rank {least} needs {2 * least}: raise max_bytes or lower rank"
            )
        self._pieces: list[Float[Array, "_ M"]] = []
        self._held = 0
        self._accounts = Accounts()
        self._sums: ClassSums | None = None
        self._compressions = 0

    def update(self, H: ArrayLike | Array, y: Any) -> None:
        """Add a batch (n, M) with its labels. A refused batch changes nothing."""
        given = as_matrix(H, "H", self.out_features)
        if self._pieces:
            given = like(given, self._pieces[0])
        H, classes, codes = _rows_in_use(given, y, self.unlabelled)
        xp = namespace(H)
        block = max(1, min(SUM_BLOCK, self.capacity // 8))
        blocks = (cast(H[i : i + block], "float64") for i in range(0, H.shape[0], block))
        energy = sum(float(xp.sum(part**2)) for part in blocks)
        if not np.isfinite(energy) or (energy == 0.0 and bool(xp.any(H != 0))):
            require_finite(given, "H")
            raise ValueError("H has squares out of the range of float64; rescale the features")
        sums = ClassSums.from_codes(H, classes, codes, block)
        self._sums = sums if self._sums is None else self._sums + sums
        self._accounts += Accounts(n_rows=int(H.shape[0]), energy=energy)
        start = 0
        while start < H.shape[0]:
            if self._held >= self.capacity:
                self._compress()
            part = H[start : start + self.capacity - self._held]
            # The caller may reuse its buffer for the next batch.
            self._pieces.append(xp.asarray(part, copy=True))
            self._held += int(part.shape[0])
            start += int(part.shape[0])

    def _compress(self) -> None:
        keep = self.out_features if self.capacity >= 2 * self.out_features else self.capacity // 2
        result = leading(self._stack(), keep, "H")
        self._accounts = self._accounts.after_local_cut(result.loss)
        self._pieces = [result.factor.T]
        self._held = int(result.factor.shape[1])
        self._compressions += 1

    def _stack(self) -> Float[Array, "M w"]:
        if not self._pieces:
            return np.zeros((self.out_features, 0), dtype=np.float32)
        pieces, self._pieces = self._pieces, []
        stack = pieces[0] if len(pieces) == 1 else namespace(pieces[0]).concat(pieces, axis=0)
        self._pieces = [stack]
        return stack.T

    def finish(self) -> Summary:
        """The summary of everything so far; more batches may follow."""
        rank, energy, cut = self.rank, self._accounts.energy, self._accounts.cut
        if isinstance(rank, float) and cut > 0:
            # A share of all energy is a larger share of the energy that compressions left.
            if rank * energy > (energy - cut) * (1 + 1e-9):
                raise ValueError(
                    f"rank={rank} asks for more energy than is left after compressing to the "
                    f"{self.capacity} rows that max_bytes allows ({1 - cut / energy:.1%}); "
                    "raise max_bytes"
                )
            rank = min(1.0, rank * energy / (energy - cut))
        result = leading(self._stack(), rank, "H")
        return Summary(
            result.factor,
            ClassSums.empty(self.out_features) if self._sums is None else self._sums,
            self._accounts.after_local_cut(result.loss),
            self.fingerprint,
            route=f"{result.route}; {self._compressions} compressions",
        )


def _rows_in_use(
    H: Float[Array, "n M"], y: Any, unlabelled: Unlabelled
) -> tuple[Float[Array, "used M"], tuple[Label, ...], Int64[NDArray[Any], " used"]]:
    """The rows that count, without unlabelled ones if they are dropped; their classes and codes."""
    if unlabelled not in ("drop", "factor"):
        raise ValueError(f"unlabelled must be 'drop' or 'factor', got {unlabelled!r}")
    classes, codes = encode_labels(y, int(H.shape[0]))
    keep = codes != MISSING
    if unlabelled == "drop" and not keep.all():
        rows = np.flatnonzero(keep)
        H = H[rows] if is_numpy_array(H) else H[like(rows, H)]
        codes = codes[keep]
    return H, classes, codes
