"""What an upload is compared with: medians over the other sites, at a cost that does not grow.

Every site has one vote, however many uploads it sent. The medians are kept in sorted lists, so that
adding an upload or asking for the medians takes microseconds for thousands of sites.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from fedran.core.labels import Label
from fedran.federation.protocol.identity import UploadId


@dataclass(frozen=True)
class Figures:
    """The figures of one upload with which uploads of other sites are compared."""

    rows: int
    energy: float
    cut: float
    sites: int
    """1, or the number of sites whose rows a forwarded sum holds."""
    classes: tuple[Label, ...]

    @property
    def compared(self) -> tuple[float, float, float]:
        """Rows per site, energy per row, and the share of the energy that was cut."""
        share = self.cut / self.energy if self.energy > 0 else 0.0
        return self.rows / self.sites, self.energy / max(1, self.rows), share


@dataclass(frozen=True)
class Usual:
    """Medians over sites."""

    rows: float
    row_energy: float
    cut_share: float


@dataclass
class _Site:
    """The uploads of one site: each figure sorted, and the classes of all of them."""

    columns: tuple[list[float], ...] = field(default_factory=lambda: ([], [], []))
    classes: set[Label] = field(default_factory=set)


class History:
    """The figures of all accepted uploads.

    >>> history = History()
    >>> for site, rows in (("a", 10), ("b", 20), ("c", 90)):
    ...     history.add((site, "may"), Figures(rows, 2.0 * rows, 0.0, 1, ("cat",)))
    >>> history.usual(), history.usual("a").rows
    (Usual(rows=20.0, row_energy=2.0, cut_share=0.0), 55.0)
    """

    def __init__(self) -> None:
        self.figures: dict[UploadId, Figures] = {}
        self._sites: dict[str, _Site] = {}
        self._medians: tuple[list[float], ...] = ([], [], [])
        """For each figure, the medians of all sites, sorted."""

    def add(self, key: UploadId, figures: Figures) -> None:
        """Add an accepted upload, which is in no earlier one."""
        self.figures[key] = figures
        site = self._sites.setdefault(key[0], _Site())
        site.classes.update(figures.classes)
        for values, medians, value in zip(
            site.columns, self._medians, figures.compared, strict=True
        ):
            if values:
                del medians[bisect_left(medians, _median(values))]
            insort(values, value)
            insort(medians, _median(values))

    def usual(self, without: str = "") -> Usual | None:
        """Medians over all sites but one; None without another site."""
        site = self._sites.get(without)
        if len(self._sites) == (site is not None):
            return None
        found = []
        for column, medians in enumerate(self._medians):
            own = None if site is None else bisect_left(medians, _median(site.columns[column]))
            found.append(_median(medians, own))
        return Usual(*found)

    def classes_of(self, client: str) -> set[Label]:
        """The classes of all uploads of a site."""
        return set(self._sites[client].classes) if client in self._sites else set()


def _median(values: list[float], without: int | None = None) -> float:
    """The median of a sorted list, or of all its values but one."""

    def at(i: int) -> float:
        return values[i if without is None or i < without else i + 1]

    size = len(values) - (without is not None)
    middle = size // 2
    return at(middle) if size % 2 else (at(middle - 1) + at(middle)) / 2
