"""Real vectors as 32-bit integers modulo 2^32, so that they can be added under masks.

Each site multiplies its vector by public scales, rounds to whole numbers and writes them modulo
2^32. Sums modulo 2^32 are then exact: the sum over K sites differs from the sum of the real vectors
by at most K / (2 scale) per entry, the rounding of the sites, and by nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, positive_integer
from fedran.core.features import row_energy_range
from fedran.core.fingerprint import Fingerprint
from fedran.core.private.sketch_sums import section_sizes
from fedran.core.solve.nystrom import RoundingErrors

DEVIATIONS = 6.0
"""Standard deviations within which entries of random features, and their products with the
columns of Omega, lie: one of 10^9 is outside, and what is bounded here are sums over rows."""


@dataclass(frozen=True)
class FixedPoint:
    """A vector of several sections, each with its own public scale.

    >>> import numpy as np
    >>> fixed = FixedPoint(sizes=(2, 1), scales=(1.0, 256.0))
    >>> parts = [fixed.encode(np.array([3.0, -1.0, 0.5]), n_sites=2) for _ in range(2)]
    >>> parts[0].tolist()
    [3, 4294967295, 128]
    >>> fixed.decode(parts[0] + parts[1]).tolist()
    [6.0, -2.0, 1.0]
    """

    sizes: tuple[int, ...]
    """Entries of each section."""
    scales: tuple[float, ...]
    """What the entries of each section are multiplied by before they are rounded."""

    @classmethod
    def for_bounds(cls, sizes: Sequence[int], bounds: Sequence[float], n_sites: int) -> FixedPoint:
        """The finest scales, powers of two, at which entries up to these bounds are accepted.

        The bounds hold for one site's vector and must be known before the data.
        """
        limit = largest_code(n_sites)
        return cls(tuple(sizes), tuple(2.0 ** math.floor(math.log2(limit / b)) for b in bounds))

    @property
    def size(self) -> int:
        """Entries of the whole vector."""
        return sum(self.sizes)

    def encode(self, vector: NDArray[np.float64], n_sites: int) -> NDArray[np.uint32]:
        """The vector as integers modulo 2^32, for a sum over at most ``n_sites`` sites.

        ValueError where an entry is so large that the sum could leave the range of 32 bits.
        Nothing is clipped.
        """
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of {self.size} entries, got {vector.shape}")
        codes = np.rint(vector * np.repeat(self.scales, self.sizes))
        limit = largest_code(n_sites)
        if not np.all(np.abs(codes) <= limit):  # also where it is NaN
            worst = int(np.argmax(np.where(np.isnan(codes), np.inf, np.abs(codes))))
            section = int(np.searchsorted(np.cumsum(self.sizes), worst, side="right"))
            raise ValueError(
                f"entry {worst} of the vector is {vector[worst]:.6g}, and a sum over {n_sites} "
                f"sites holds at most {limit / self.scales[section]:.6g} per site there; "
                "nothing was sent: use fewer rows, or agree on smaller scales"
            )
        return codes.astype(np.int64).astype(np.uint32)

    def decode(self, total: NDArray[np.uint32]) -> NDArray[np.float64]:
        """The real vector of a sum modulo 2^32."""
        if total.dtype != np.uint32 or total.shape != (self.size,):
            got = f"{total.dtype} {list(total.shape)}"
            raise Refused("sum", f"uint32 [{self.size}]", got)
        return total.view(np.int32).astype(np.float64) * np.repeat(
            1 / np.array(self.scales), self.sizes
        )

    def errors(self) -> tuple[float, ...]:
        """Largest rounding error of one site's entry, per section: half a step."""
        return tuple(0.5 / scale for scale in self.scales)


def largest_code(n_sites: int) -> int:
    """The largest integer that ``n_sites`` sites may each add: the sum stays below 2^31."""
    limit = (2**31 - 1) // positive_integer(n_sites, "n_sites")
    if limit < 1:
        raise ValueError(f"32 bits cannot hold a sum over {n_sites} sites")
    return limit


def row_bounds(fingerprint: Fingerprint) -> tuple[float, float]:
    """Bounds on ||h|| and on an entry of h for random features h of any row, from public facts.

    Where prepared rows have unit norm, z P is N(0, 1): an entry of h is at most 6, and ||h||^2 lies
    in ``row_energy_range``. ValueError for a feature map whose rows have no bound.

    >>> from fedran import RandomFeatures
    >>> norm, entry = row_bounds(RandomFeatures(1280, 8192, kind="hellinger").fingerprint)
    >>> round(norm), entry
    (69, 6.0)
    """
    energies = row_energy_range(fingerprint)
    if energies is None:
        raise ValueError(
            "a secure sum needs rows of bounded norm, which this feature map does not have; use "
            "kind='cosine' or kind='hellinger'"
        )
    norm = math.sqrt(energies[1])
    return norm, min(DEVIATIONS, norm)


def sketch_fixed_point(
    fingerprint: Fingerprint, n_classes: int, width: int | None, *, most_rows: int, n_sites: int
) -> FixedPoint:
    """The scales for ``SketchSums``, from facts that are public before any data.

    Parameters
    ----------
    fingerprint:
        Of the features. ValueError if their rows have no bound (``row_bounds``).
    n_classes, width:
        The length C of the class list, and s (None for the packed Gram).
    most_rows:
        The most rows n of one site in this sum.
    n_sites:
        The most sites that are added.

    Notes
    -----
    Bounds per entry, for rows of norm R with entries e: n for counts, n R^2 for the energy, n e for
    class sums, n e^2 for the Gram, and 6 n e R / sqrt(s) for a sketch, because the columns of Omega
    have unit norm and directions that were drawn without looking at the rows (at random, or in the
    span of the last task).
    """
    R, e = row_bounds(fingerprint)
    M = fingerprint.fields["M"]
    assert isinstance(M, int)  # of random features, as row_bounds has checked
    n = positive_integer(most_rows, "most_rows")
    last = n * e**2 if width is None else n * e * R * min(1.5, DEVIATIONS / math.sqrt(width))
    bounds = (n, n * R**2, n * e, last)
    return FixedPoint.for_bounds(section_sizes(n_classes, M, width), bounds, n_sites)


def sketch_rounding(fixed: FixedPoint, n_sites: int) -> RoundingErrors:
    """The errors of ``SketchSums`` that travelled in this form, for ``sketch_to_summary``."""
    _, energy, sums, sketch = fixed.errors()
    return RoundingErrors(n_sites, sums, sketch, energy)
