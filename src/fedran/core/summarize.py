"""From rows and labels to a summary: at once, or batch by batch under a memory limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Int64,
    as_matrix,
    cast,
    eps,
    like,
    namespace,
    require_finite,
    to_numpy,
)
from fedran.core._linalg.truncation import check_rank, leading
from fedran.core.errors import positive_integer
from fedran.core.fingerprint import Fingerprint, check_fingerprint
from fedran.core.labels import MISSING, Label, encode_labels
from fedran.core.summary import Center, Summary, check_center
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import SUM_BLOCK, ClassSums


def summarize(
    H: ArrayLike | Array,
    y: Any,
    rank: int | float | None = 256,
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
        Columns to keep (int), share of the energy to keep (float in (0, 1]), or None for all.
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
    H, classes, codes = _labelled(given, y)
    sums = ClassSums.from_codes(H, classes, codes)
    rows = H if center is None else sums.residuals(H, codes)
    between = 0.0 if center is None else sums.energy
    if isinstance(rank, float):
        rank = share_of_rest(rank, _energy(rows, SUM_BLOCK), between)
    elif center == "class":
        rank = _within_span(rank, int(H.shape[0]), sums)
    try:
        result = leading(rows.T, rank, "H")
    except ValueError:
        require_finite(given, "H")  # names the row by its number in the input
        raise
    start = Accounts(n_rows=int(H.shape[0]), energy=result.energy + between)
    accounts = start.after_local_cut(result.loss)
    factor = without_rounding(result.factor, sums, accounts, center)
    return Summary(factor, sums, accounts, fingerprint, center, route=result.route)


class Summarizer:
    r"""Builds a summary from batches of rows under a memory limit.

    Rows are collected, minus the class means of their batch; where a class was seen before, one
    more row corrects for the difference of the means (Chan's formula). When they reach the limit
    they are compressed to the leading half (or to M columns, without loss, where that fits),
    which is again a factor of the same Gram. So the error of the Gram is at most
    ``accounts.eps_G``, and ``finish()`` agrees with ``summarize`` within the sum of both bounds.

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
        center: Center | None = "class",
        fingerprint: Fingerprint | None = None,
        max_bytes: int = 512 * 2**20,
    ) -> None:
        self.out_features = positive_integer(out_features, "out_features")
        self.rank = check_rank(rank)
        self.center = check_center(center)
        check_fingerprint(fingerprint)
        self.fingerprint = fingerprint
        # Compressing w rows takes 3 row buffers of 8 w M bytes and 6 square ones of 8 w^2 bytes.
        linear, quadratic = 3 * 8 * out_features, 6 * 8
        root = np.sqrt(linear**2 + 4.0 * quadratic * max_bytes)
        self.capacity = int((root - linear) / (2 * quadratic))
        """Rows that are held before they are compressed."""
        least = min(self.rank, out_features) if isinstance(self.rank, int) else 1
        if self.capacity < 2 * least:
            raise ValueError(
                f"max_bytes={max_bytes} holds {self.capacity} rows of {out_features} features; "
                f"rank {least} needs {2 * least}: raise max_bytes or lower rank"
            )
        self._pieces: list[Float[Array, "_ M"]] = []
        self._held = 0
        self._accounts = Accounts()
        self._sums = ClassSums.empty(out_features)
        self._compressions = 0

    def update(self, H: ArrayLike | Array, y: Any) -> None:
        """Add a batch (n, M) with its labels. A refused batch changes nothing."""
        given = as_matrix(H, "H", self.out_features)
        if self._pieces:
            given = like(given, self._pieces[0])
        H, classes, codes = _labelled(given, y)
        if self.center and 2 * len(classes) >= self.capacity:
            raise ValueError(
                f"a batch of {len(classes)} classes needs room for {2 * len(classes) + 1} rows, "
                f"and max_bytes allows {self.capacity}: raise max_bytes or sort the rows by class"
            )
        xp = namespace(H)
        block = max(1, min(SUM_BLOCK, self.capacity // 8))
        energy = _energy(H, block)
        if not np.isfinite(energy) or (energy == 0.0 and bool(xp.any(H != 0))):
            require_finite(given, "H")
            raise ValueError("H has squares out of the range of float64; rescale the features")
        if not self._pieces:
            self._sums = ClassSums((), like(np.zeros((self.out_features, 0)), H), ())
        self._accounts += Accounts(n_rows=int(H.shape[0]), energy=energy)
        start, corrections = 0, len(classes) if self.center else 0
        while start < H.shape[0]:
            if self._held + corrections >= self.capacity:
                self._compress()
            rows = slice(start, start + self.capacity - self._held - corrections)
            part, of_part = H[rows], codes[rows]
            sums = ClassSums.from_codes(part, classes, of_part, block)
            if self.center:
                self._keep(xp.astype(self._sums.differences(sums).T, H.dtype))
                self._keep(sums.residuals(part, of_part))
            else:  # a copy: the caller may reuse its buffer for the next batch
                self._keep(xp.asarray(part, copy=True))
            self._sums = self._sums + sums
            start += int(part.shape[0])

    def _keep(self, rows: Float[Array, "_ M"]) -> None:
        self._pieces.append(rows)
        self._held += int(rows.shape[0])

    def _compress(self) -> None:
        keep = self.out_features if self.capacity >= 2 * self.out_features else self.capacity // 2
        result = leading(self._stack(), keep, "H")
        accounts = self._accounts.after_local_cut(result.loss)
        # Every truncation adds to eps_G, and a receiver has to know how many there were.
        merges = accounts.merges + (result.loss.trace > 0)
        self._accounts = replace(accounts, merges=merges)
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
        if isinstance(rank, float):
            between = self._sums.energy if self.center else 0.0
            left = energy - cut - between
            if rank * energy > (energy - cut) * (1 + 1e-9):
                raise ValueError(
                    f"rank={rank} asks for more energy than is left after compressing to the "
                    f"{self.capacity} rows that max_bytes allows ({1 - cut / energy:.1%}); "
                    "raise max_bytes"
                )
            rank = share_of_rest(rank, left, between, cut)
        elif self.center == "class":
            rank = _within_span(rank, self._accounts.n_rows, self._sums)
        result = leading(self._stack(), rank, "H")
        accounts = self._accounts.after_local_cut(result.loss)
        factor = without_rounding(result.factor, self._sums, accounts, self.center)
        route = f"{result.route}; {self._compressions} compressions"
        return Summary(factor, self._sums, accounts, self.fingerprint, self.center, route=route)


def _energy(H: Float[Array, "n M"], block: int) -> float:
    """||H||_F^2 in float64, ``block`` rows at a time."""
    total = 0.0
    for i in range(0, H.shape[0], block):
        part = cast(H[i : i + block], "float64")
        total += float(to_numpy(namespace(part).sum(part**2, axis=1)).sum())
    return total


def _within_span(rank: int | None, n_rows: int, sums: ClassSums) -> int:
    """``rank``, at most the number of directions that n rows minus C class means span, n - C.

    The other eigenvalues are rounding. A request for them would be computed in float64 for
    nothing.
    """
    most = n_rows - len(sums)
    return max(1, most if rank is None else min(rank, most))


def share_of_rest(share: float, rest: float, known: float, lost: float = 0.0) -> float:
    """The share of ``rest`` to keep so that, with ``known``, the share of all energy is kept.

    All energy is ``rest + known + lost``. A share must be positive: the smallest one keeps a
    single column.
    """
    wanted = share * (rest + known + lost) - known
    return min(1.0, max(wanted / rest, np.finfo(np.float64).tiny)) if rest > 0 else 1.0


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


def _labelled(
    H: Float[Array, "n M"], y: Any
) -> tuple[Float[Array, "used M"], tuple[Label, ...], Int64[NDArray[Any], " used"]]:
    """The rows that have a label, the classes, and the codes of these rows."""
    classes, codes = encode_labels(y, int(H.shape[0]))
    keep = codes != MISSING
    if not keep.all():
        H, codes = H[like(np.flatnonzero(keep), H)], codes[keep]
    return H, classes, codes
