"""The summary of one client's rows in one task: factor, class sums, accounts, and their sum."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float64,
    cast,
    like,
    namespace,
    to_device,
    to_numpy,
)
from fedran.core._linalg.truncation import check_rank, leading, square_factor
from fedran.core.errors import Refused
from fedran.core.features import row_energy_range
from fedran.core.fingerprint import Fingerprint, check_fingerprint, require_same
from fedran.core.labels import Label
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums

Center = Literal["class"]
SAME_CENTER = "summaries add only if they were made with the same center"
ENERGY_SLACK = 1e-4
"""Relative tolerance for rounding in the checks of factor and class sums against the energy."""


@dataclass(frozen=True, eq=False)
class Summary:
    r"""Factor, class sums and accounts of some rows H (n, M) with labels.

    Summaries form a commutative monoid: ``a + b`` describes the rows of both, exactly. With
    ``center="class"`` the factor describes the rows minus their class means, so that the Gram
    ``G = H'H`` is ``F F' + sum_c b_c b_c' / n_c`` with class sums b_c and counts n_c. With
    ``center=None``, the form of the paper, it is ``F F'``. Nothing assumes that the columns of F
    are orthogonal.

    >>> import numpy as np, fedran
    >>> H = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]])
    >>> a = fedran.summarize(H, ["cat", "dog"], rank=2)
    >>> b = fedran.summarize(H[:1], ["eel"], rank=2)
    >>> (a + b).classes, (a + b).counts, (a + b).accounts.energy
    (('cat', 'dog', 'eel'), (1, 1, 1), 20.0)
    """

    factor: Float[Array, "M r"]
    """F, (M, r). Under ``+`` side by side, with one more column per shared class if centred
    (Chan's formula); reduced to M columns without loss when wider."""
    sums: ClassSums
    """Sum and number of the labelled rows of each class that occurs. Under ``+`` added by label."""
    accounts: Accounts
    """Rows, energy and error bounds. Under ``+`` see ``Accounts``."""
    fingerprint: Fingerprint | None = None
    """The feature map. Must be equal under ``+``."""
    center: Center | None = "class"
    """What was subtracted from the rows before the factor was made. Must be equal under ``+``."""
    route: str = field(default="", repr=False)
    """How the factor was computed, fallbacks included."""
    digest: str | None = field(default=None, repr=False)
    """SHA-256 of the upload this was decoded from; None when it was not decoded."""

    def __post_init__(self) -> None:
        check_fingerprint(self.fingerprint)
        check_center(self.center)
        if self.factor.ndim != 2:
            raise Refused("factor", "a matrix (M, r)", f"shape {tuple(self.factor.shape)}")
        if self.sums.out_features != self.out_features:
            expected = f"shape {(self.out_features, len(self.classes))}"
            raise Refused("class_sums", expected, tuple(self.class_sums.shape))

    @property
    def class_sums(self) -> Float64[Array, "M C"]:
        """B, (M, C) float64, one column per class."""
        return self.sums.sums

    @property
    def classes(self) -> tuple[Label, ...]:
        """The labels that occur, in canonical order."""
        return self.sums.classes

    @property
    def counts(self) -> tuple[int, ...]:
        """Labelled rows per class, all positive."""
        return self.sums.counts

    @property
    def out_features(self) -> int:
        """M, the width of the random features."""
        return int(self.factor.shape[0])

    @property
    def rank(self) -> int:
        """r, the number of columns of the factor."""
        return int(self.factor.shape[1])

    @cached_property
    def sigma(self) -> Float64[NDArray[Any], " r"]:
        """Norms of the factor's columns, (r,) float64: the singular values when orthogonal."""
        total = np.zeros(self.rank)
        for i in range(0, self.out_features, 512):  # never a float64 copy of the whole factor
            block = cast(self.factor[i : i + 512, :], "float64")
            total += to_numpy(namespace(block).sum(block * block, axis=0))
        return np.sqrt(total)

    def __repr__(self) -> str:
        return (
            f"Summary(M={self.out_features}, rank={self.rank}, rows={self.accounts.n_rows}, "
            f"classes={len(self.classes)}, cut={self.accounts.cut_fraction:.3g}, "
            f"center={self.center!r})"
        )

    def __add__(self, other: object) -> Summary:
        if not isinstance(other, Summary):
            return NotImplemented
        if self.out_features != other.out_features:
            raise Refused("out_features", str(self.out_features), other.out_features)
        require_same(self.fingerprint, other.fingerprint, "both summaries")
        if self.center != other.center:
            raise Refused("center", repr(self.center), repr(other.center), hint=SAME_CENTER)
        xp = namespace(self.factor)
        parts = [self.factor, like(other.factor, self.factor)]
        if self.center == "class":
            parts.append(xp.astype(self.sums.differences(other.sums), self.factor.dtype))
        factor = xp.concat(parts, axis=1)
        if factor.shape[1] > self.out_features:
            factor = square_factor(factor)
        return Summary(
            factor,
            self.sums + other.sums,
            self.accounts + other.accounts,
            self.fingerprint,
            self.center,
            route="sum",
        )

    def __radd__(self, other: object) -> Summary:
        """Lets ``sum([a, b, c])`` start from 0."""
        if isinstance(other, int) and other == 0:
            return self
        raise TypeError(
            f"a Summary adds only to a Summary, got {type(other).__name__}; "
            "summaries add up with summaries"
        )

    def truncate(self, rank: int | None) -> Summary:
        """The best summary of at most this rank; the accounts record the loss as a merge."""
        result = leading(self.factor, check_rank(rank), "the factor")
        return replace(
            self,
            factor=result.factor,
            accounts=self.accounts.after_merge_cut(result.loss),
            route=result.route,
            digest=None,
        )

    def gram_factor(self) -> Float[Array, "M w"]:
        """Columns whose Gram approximates H'H: F, followed by b_c / sqrt(n_c) if centred."""
        if self.center is None or not self.classes:
            return self.factor
        xp = namespace(self.factor)
        between = xp.astype(like(self.sums.scaled, self.factor), self.factor.dtype)
        return xp.concat([self.factor, between], axis=1)

    def gram(self) -> Float[Array, "M M"]:
        """The dense (M, M) approximation of H'H, for small M."""
        columns = self.gram_factor()
        return columns @ columns.T

    def to(self, device: str | None) -> Summary:
        """The same summary on a torch device, or in NumPy when ``device`` is None."""
        return replace(self, factor=to_device(self.factor, device), sums=self.sums.to(device))

    def validate(self) -> Summary:
        """Refuse numbers that cannot describe real rows; returns self.

        All values are finite, counts are positive and add up to at most ``n_rows``, a centred
        factor has at most ``n_rows`` minus the number of classes columns, cut <= M eps_G, and
        ||F||^2 + cut = energy, where a centred summary adds sum_c ||b_c||^2 / n_c on the left.
        Without centring that sum is at most the energy (Cauchy-Schwarz). Where the feature map
        bounds the norm of a row by R, energy <= n_rows R^2 and ||b_c|| <= n_c R. Limits are per
        row, so every row counts once.
        """
        acc, counts = self.accounts, self.counts
        for name, value in asdict(acc).items():
            if not (math.isfinite(value) and value >= 0):
                raise Refused(f"accounts.{name}", "a finite number, at least 0", value)
        if self.sums.weights is not None or acc.weight_excess:
            raise Refused(
                "weights", "rows that count once", "weighted rows", hint="repeat rows instead"
            )
        if acc.n_rows == 0 and acc.energy > 0:
            raise Refused("accounts.energy", "0 where n_rows is 0", acc.energy)
        if not min(acc.n_rows, 1) <= acc.parts <= acc.n_rows:
            raise Refused("accounts.parts", f"1 to n_rows = {acc.n_rows}", acc.parts)
        if any(n < 1 for n in counts):
            raise Refused("counts", "at least one row for every class listed", min(counts))
        if sum(counts) > acc.n_rows:
            raise Refused("counts", f"at most n_rows = {acc.n_rows} in all", sum(counts))
        free = acc.n_rows - (len(self.classes) if self.center else 0)
        if self.rank > free:
            what = "n_rows - classes" if self.center else "n_rows"
            raise Refused("rank", f"at most {what} = {free}", self.rank)
        _check_energy(self)
        energies = None if self.fingerprint is None else row_energy_range(self.fingerprint)
        if energies is not None:
            _check_row_norms(self, math.sqrt(energies[1]))
        if max(acc.eta_loc, acc.eta_merge) > 1 + ENERGY_SLACK:
            raise Refused("accounts", "eta_loc and eta_merge of at most 1", "larger shares")
        least = (acc.cut - ENERGY_SLACK * acc.energy) / self.out_features
        if acc.eps_G < least:
            raise Refused("accounts.eps_G", f"at least cut / M = {least:.6g}", acc.eps_G)
        return self

    def content_digest(self) -> str:
        """``digest``, or SHA-256 over the arrays and fields where the summary was not decoded."""
        if self.digest is not None:
            return self.digest
        sha = hashlib.sha256()
        for array in (self.factor, self.class_sums):
            # Row-major first, so that equal values have equal hashes whatever their layout.
            sha.update(np.ascontiguousarray(to_numpy(array)).data)
        fields = (self.classes, self.counts, self.accounts, self.fingerprint, self.center)
        sha.update(repr(fields).encode())
        return sha.hexdigest()


def check_center(center: object) -> Center | None:
    """``center`` if it is "class" or None; ValueError otherwise."""
    if center not in ("class", None):
        raise ValueError(f"center must be 'class' or None, got {center!r}")
    return None if center is None else "class"


def _check_energy(summary: Summary) -> None:
    """The squared norms of the factor and the class sums, and what was cut, are the energy."""
    acc = summary.accounts
    with np.errstate(over="ignore", invalid="ignore"):
        held = float(np.sum(summary.sigma**2))
        norms = np.linalg.norm(to_numpy(summary.class_sums), axis=0)
        between = float(np.sum(norms**2 / np.asarray(summary.counts)))
    if not math.isfinite(held):
        raise Refused("factor", "finite values", "NaN or infinity")
    if not np.all(np.isfinite(norms)):
        raise Refused("class_sums", "finite values", "NaN, infinity or beyond float64")
    # The wire format keeps every ||b_c||, so eps_B excuses nothing.
    if between > acc.energy * (1 + ENERGY_SLACK):
        raise Refused(
            "class_sums",
            f"sums that energy {acc.energy:.6g} and the counts allow",
            f"sums that need {between:.6g}",
        )
    total, parts = held + acc.cut, "||F||^2 + cut"
    if summary.center:
        total, parts = total + between, f"{parts} + sum_c ||b_c||^2 / n_c"
    if not abs(total - acc.energy) <= ENERGY_SLACK * acc.energy:
        raise Refused("accounts.energy", f"{parts} = {total:.6g}", f"{acc.energy:.6g}")


def _check_row_norms(summary: Summary, largest: float) -> None:
    """Energy and class sums are at most those of rows of this norm."""
    acc = summary.accounts
    if acc.energy > acc.n_rows * largest**2 * (1 + ENERGY_SLACK):
        expected = f"at most {largest**2:.6g} per row, as rows of this feature map have"
        raise Refused("accounts.energy", expected, f"{acc.mean_row_energy:.6g}")
    norms = np.linalg.norm(to_numpy(summary.class_sums), axis=0) / np.asarray(summary.counts)
    if np.any(norms > largest * (1 + ENERGY_SLACK)):
        c = int(np.argmax(norms))
        raise Refused(
            "class_sums",
            f"a norm of at most n_c {largest:.6g}, as rows of this feature map have",
            f"{norms[c]:.6g} per row of class {summary.classes[c]!r}",
        )
