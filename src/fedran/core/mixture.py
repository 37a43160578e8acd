"""The message that does not grow with the width: raw features as groups of nearby rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, Float32, Float64, Int64, to_device, to_numpy
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint, require_same
from fedran.core.labels import Label, ordered
from fedran.core.sums.accounts import Accounts

DRAWS = 2
"""Rows that the server draws per real row (docs/explanation/mathematics.md says why 2)."""
MAX_DRAWS = 256
"""Most rows drawn for one group, so that a stated count cannot keep a server busy."""
MAX_DRAWN_ROWS = 2**20
"""Most rows drawn for a mixture of fewer than half as many groups."""
MAX_DIRECTIONS = 1024
"""Most residual directions of a part: making q of them orthonormal takes about q^3 operations."""
NORM_SLACK = 1e-3
"""Tolerance for rounding where rows have norm 1."""
UNIT_NORM_KINDS = ("cosine", "hellinger")


@dataclass(frozen=True, eq=False)
class MixturePart:
    """Groups of rows that share one set of residual directions: one call of ``condense``."""

    classes: tuple[Label, ...]
    """Distinct labels in canonical order. Each has at least one group."""
    codes: Int64[NDArray[Any], " g"]
    """The class of each group as a position in ``classes``, ascending."""
    means: Float32[Array, "g d"]
    counts: Int64[NDArray[Any], " g"]
    """Rows per group."""
    spreads: Float64[NDArray[Any], " g"]
    """Mean squared distance of the rows of a group from their mean."""
    directions: Float32[Array, "q d"]
    """Orthonormal rows: the leading directions of all residuals of the part."""
    shares: Float64[NDArray[Any], " q"]
    """Each direction's share of the squared residuals; the rest is isotropic."""

    def __post_init__(self) -> None:
        g, q = len(self.counts), len(self.shares)
        if self.means.ndim != 2 or self.means.shape[0] != g or g == 0:
            expected = f"one row for each of {g} groups, at least one"
            raise Refused("means", expected, f"shape {tuple(self.means.shape)}")
        if q > min(self.means.shape[1], MAX_DIRECTIONS):
            expected = f"at most {MAX_DIRECTIONS} and {self.means.shape[1]}, the number of columns"
            raise Refused("directions", expected, q)
        if tuple(self.directions.shape) != (q, self.means.shape[1]):
            expected = f"shape {(q, int(self.means.shape[1]))}"
            raise Refused("directions", expected, tuple(self.directions.shape))
        for name in ("codes", "spreads"):
            if getattr(self, name).shape != (g,):
                raise Refused(name, f"{g} values", getattr(self, name).shape)
        if self.classes != ordered(self.classes):
            raise Refused("classes", "distinct labels in order, ints before strs", self.classes)
        present = np.unique(self.codes)
        if not np.array_equal(present, np.arange(len(self.classes))):
            raise Refused("codes", f"groups of all {len(self.classes)} classes", present.tolist())

    @property
    def tail(self) -> float:
        """The share of the squared residuals per dimension outside the directions."""
        rest = int(self.means.shape[1]) - len(self.shares)
        return max(0.0, 1.0 - float(self.shares.sum())) / rest if rest > 0 else 0.0


@dataclass(frozen=True, eq=False)
class Mixture:
    r"""Labelled rows as groups: means, counts, spreads and shared residual directions.

    The rows are features as the map prescribes them before its projection (``phi.prepare``). A
    group of n rows with mean mu and spread s stands for n independent rows

    .. math:: x = \mu + \sqrt{s}\, (U' a + e), \qquad a_j \sim N(0, p_j), \quad
              e \sim N(0, \tau (I - U'U))

    with the q shared directions U (orthonormal rows), their shares p of the squared residuals
    and the isotropic tail tau = (1 - sum p) / (d - q), so that E||x - mu||^2 = s. Means and
    traces of second moments are those of the rows. The shape of the residuals is that of all
    groups together, and everything beyond second moments is lost.

    ``a + b`` holds the parts of both, each with its own directions. A mixture can be lifted to
    random features of any width and seed. There is no bound on the error of the lifted Gram.

    >>> import numpy as np, fedran
    >>> phi = fedran.RandomFeatures(in_features=3, out_features=8)
    >>> Z = np.random.default_rng(0).random((40, 3))
    >>> m = fedran.condense(Z, ["cat"] * 20 + ["dog"] * 18 + ["eel"] * 2, phi, directions=1)
    >>> m.classes, m.counts, m.withheld
    (('cat', 'dog'), (20, 18), {'eel': 2})
    """

    parts: tuple[MixturePart, ...]
    fingerprint: Fingerprint
    """``phi.input_fingerprint``, which names no width and no seed. Must be equal under ``+``."""
    withheld: dict[Label, int] = field(default_factory=dict)
    """Rows per class that are left out, being fewer than ``min_group``. Never sent."""
    digest: str | None = field(default=None, repr=False)
    """SHA-256 of the upload this was decoded from; None when it was not decoded."""

    def __post_init__(self) -> None:
        if not isinstance(self.fingerprint, Fingerprint):
            got = type(self.fingerprint).__name__
            raise TypeError(f"fingerprint must be a Fingerprint, got {got}; condense sets it")
        widths = {int(part.means.shape[1]) for part in self.parts}
        if len(widths) > 1:
            raise Refused("means", "parts of one width", sorted(widths))

    @property
    def classes(self) -> tuple[Label, ...]:
        """The labels that occur, in canonical order."""
        return ordered(label for part in self.parts for label in part.classes)

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows per class."""
        total = dict.fromkeys(self.classes, 0)
        for part in self.parts:
            rows = np.bincount(part.codes, part.counts, len(part.classes))
            for label, n in zip(part.classes, rows, strict=True):
                total[label] += int(n)
        return tuple(total.values())

    @property
    def n_rows(self) -> int:
        """Rows that the groups describe."""
        return sum(int(part.counts.sum()) for part in self.parts)

    @property
    def n_groups(self) -> int:
        """Group means of all parts."""
        return sum(len(part.counts) for part in self.parts)

    @property
    def smallest_group(self) -> int:
        """Rows of the smallest group; 0 without groups."""
        return min((int(part.counts.min()) for part in self.parts), default=0)

    @property
    def in_features(self) -> int:
        """Width of the means: d, or d + 1 with a bias."""
        if self.parts:
            return int(self.parts[0].means.shape[1])
        d, bias = (self.fingerprint.fields.get(name) for name in ("d", "bias"))
        return (d if isinstance(d, int) else 0) + (bias is True)

    @property
    def energy(self) -> float:
        """Sum of the squared norms of the rows that the groups describe."""
        return float(sum(part.counts @ _row_energy(part) for part in self.parts))

    @property
    def accounts(self) -> Accounts:
        """Rows and energy before the lift. The error of the lifted Gram has no bound."""
        return Accounts(n_rows=self.n_rows, energy=self.energy, mixture_rows=self.n_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays in memory; ``len(encode(mixture))`` is the size of the upload."""
        numbers = sum(int(p.means.size) + int(p.directions.size) for p in map(_on_cpu, self.parts))
        return 4 * numbers + sum(24 * len(p.counts) + 8 * len(p.shares) for p in self.parts)

    def __repr__(self) -> str:
        return (
            f"Mixture(d={self.in_features}, groups={self.n_groups}, rows={self.n_rows}, "
            f"classes={len(self.classes)}, parts={len(self.parts)}, "
            f"withheld={sum(self.withheld.values())})"
        )

    def __add__(self, other: object) -> Mixture:
        if not isinstance(other, Mixture):
            return NotImplemented
        require_same(self.fingerprint, other.fingerprint, "both mixtures")
        withheld = dict(self.withheld)
        for label, n in other.withheld.items():
            withheld[label] = withheld.get(label, 0) + n
        return Mixture(self.parts + other.parts, self.fingerprint, withheld)

    def __radd__(self, other: object) -> Mixture:
        """Lets ``sum([a, b, c])`` start from 0."""
        if isinstance(other, int) and other == 0:
            return self
        raise TypeError(
            f"a Mixture adds only to a Mixture, got {type(other).__name__}; "
            "an Aggregator absorbs summaries and mixtures together"
        )

    def to(self, device: str | None) -> Mixture:
        """The same mixture on a torch device, or in NumPy when ``device`` is None."""
        moved = tuple(
            replace(
                part,
                means=to_device(part.means, device),
                directions=to_device(part.directions, device),
            )
            for part in self.parts
        )
        return replace(self, parts=moved)

    def validate(self) -> Mixture:
        """Check that the numbers can describe real rows; returns self or raises Refused.

        All values are finite, counts are positive, directions are orthonormal and their shares
        add up to at most 1. Where the map scales rows to norm 1, ||mean||^2 + spread <= 1 for
        every group, and hellinger means are not negative.
        """
        kind = self.fingerprint.fields.get("kind")
        for part in map(_on_cpu, self.parts):
            if part.counts.min() < 1:
                raise Refused("counts", "at least one row per group", int(part.counts.min()))
            for name in ("spreads", "shares"):
                values = getattr(part, name)
                if not (np.all(np.isfinite(values)) and np.all(values >= 0)):
                    raise Refused(name, "finite values, at least 0", "others")
            if float(part.shares.sum()) > 1 + NORM_SLACK:
                raise Refused("shares", "at most 1 in all", f"{part.shares.sum():.6g}")
            with np.errstate(over="ignore", invalid="ignore"):
                energy = _row_energy(part)
                off = part.directions @ part.directions.T - np.eye(len(part.shares))
            if not np.all(np.isfinite(energy)):
                raise Refused("means", "finite values", "NaN, infinity or beyond float64")
            if not np.all(np.abs(off) <= NORM_SLACK):
                raise Refused("directions", "orthonormal rows", "others")
            if kind in UNIT_NORM_KINDS and energy.max() > 1 + NORM_SLACK:
                expected = "||mean||^2 + spread of at most 1, as rows have norm 1"
                raise Refused("means", expected, f"{energy.max():.6g}")
            if kind == "hellinger" and float(part.means.min()) < -NORM_SLACK:
                expected = "values of at least 0, as hellinger features are"
                raise Refused("means", expected, f"{float(part.means.min()):.3g}")
        return self

    def content_digest(self) -> str:
        """``digest``, or SHA-256 over the arrays and fields where the mixture was not decoded."""
        if self.digest is not None:
            return self.digest
        sha = hashlib.sha256(repr(self.fingerprint).encode())
        for part in map(_on_cpu, self.parts):
            sha.update(repr(part.classes).encode())
            arrays = (part.codes, part.counts, part.spreads, part.shares, part.means)
            for array in (*arrays, part.directions):
                sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()

    def _draws_per_group(self) -> int:
        """The most rows per group, at least 2, that keep the mixture below MAX_DRAWN_ROWS."""
        if not self.parts:
            return MAX_DRAWS
        counts = np.concatenate([part.counts for part in self.parts])
        random = np.concatenate([part.spreads for part in self.parts]) > 0
        wished = np.where(random, np.minimum(DRAWS * counts, MAX_DRAWS), 1)
        totals = [int(np.minimum(wished, most).sum()) for most in range(2, MAX_DRAWS + 1)]
        return 2 + max(0, int(np.searchsorted(totals, MAX_DRAWN_ROWS, side="right")) - 1)

    def draw(self, max_rows: int = 4096, device: str | None = None) -> Iterator[Draw]:
        """Rows of the mixture as blocks of whole groups, of about ``max_rows`` rows each.

        The seed is the content digest, through NumPy's ``RandomState``, whose stream never
        changes. So the same mixture always gives the same rows. A group of n rows gives
        ``DRAWS * n`` rows, at most ``MAX_DRAWS``, whose mean is exactly the group's, and one row
        where its spread is 0. If that is more than ``MAX_DRAWN_ROWS`` in all, the largest groups
        give fewer rows. Rows are drawn on the CPU and moved to ``device``.
        """
        seed = np.frombuffer(bytes.fromhex(self.content_digest())[:16], dtype="<u4")
        generator = np.random.RandomState(seed)
        most = self._draws_per_group()
        for part in map(_on_cpu, self.parts):
            draws = np.clip(DRAWS * part.counts, 2, most)
            draws[part.spreads == 0] = 1
            ends = np.cumsum(draws)
            first = 0
            while first < len(draws):
                room = ends[first] - draws[first] + max_rows
                last = max(first + 1, int(np.searchsorted(ends, room, side="right")))
                groups = slice(first, last)
                yield _draw_groups(part, groups, draws[groups], generator, device)
                first = last


class Draw(NamedTuple):
    """A block of drawn rows. Row i counts ``weights[i]`` times for ``classes[codes[i]]``."""

    rows: Float32[Array, "k d"]
    weights: Float64[NDArray[Any], " k"]
    classes: tuple[Label, ...]
    codes: Int64[NDArray[Any], " k"]


def _draw_groups(
    part: MixturePart,
    groups: slice,
    draws: Int64[NDArray[Any], " b"],
    generator: np.random.RandomState,
    device: str | None,
) -> Draw:
    """``draws`` rows for each of some groups, with residuals that have mean 0 in each group."""
    owner = np.repeat(np.arange(len(draws)), draws)
    rows = np.repeat(part.means[groups], draws, axis=0)
    random = np.flatnonzero(draws[owner] > 1)  # groups of spread 0 take nothing from the stream
    if len(random):
        normal = generator.standard_normal((len(random), rows.shape[1])).astype(np.float32)
        size = draws[draws > 1]
        starts = np.cumsum(size) - size
        centre = np.add.reduceat(normal, starts, axis=0) / size[:, None].astype(np.float32)
        normal -= np.repeat(centre, size, axis=0)
        # Of the coordinates along the directions, the isotropic tail is taken away again.
        along = (np.sqrt(part.shares) - math.sqrt(part.tail)).astype(np.float32)
        residual = np.float32(math.sqrt(part.tail)) * normal
        residual += ((normal @ part.directions.T) * along) @ part.directions
        # Centring k draws removes one of k degrees of freedom.
        scale = np.sqrt(part.spreads[groups][draws > 1] * size / (size - 1))
        rows[random] += residual * np.repeat(scale, size)[:, None].astype(np.float32)
    weights = (part.counts[groups] / draws)[owner]
    return Draw(to_device(rows, device), weights, part.classes, part.codes[groups][owner])


def _row_energy(part: MixturePart) -> Float64[NDArray[Any], " g"]:
    """||mean||^2 + spread: the mean squared norm of the rows of each group."""
    means = to_numpy(part.means)
    return np.einsum("ij,ij->i", means, means, dtype=np.float64) + part.spreads


def _on_cpu(part: MixturePart) -> MixturePart:
    return replace(part, means=to_numpy(part.means), directions=to_numpy(part.directions))
