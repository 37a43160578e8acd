"""What an upload is compared with: medians over the other sites, at a cost that does not grow.

Every site has one vote, however many uploads it sent. The medians are kept in sorted lists, so that
adding an upload or asking for the medians takes microseconds for thousands of sites.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from fedran.core.labels import Label
from fedran.federation.server.schema import Upload


@dataclass(frozen=True)
class Usual:
    """Medians over sites."""

    rows: float
    """Per site of an upload."""
    row_energy: float
    """Per row."""
    cut_share: float
    """The share of the energy that was cut."""


@dataclass
class _Site:
    """The uploads of one site: each figure sorted, and the classes of all of them."""

    columns: tuple[list[float], ...] = field(default_factory=lambda: ([], [], []))
    classes: set[Label] = field(default_factory=set)


class History:
    """The figures of all accepted uploads with which later ones are compared.

    ``scale`` times the energy of an upload is ||H||^2 of its rows: 1 for summaries, and M for
    mixtures, as if entries were normal, before the activation.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self._sites: dict[str, _Site] = {}
        self._medians: tuple[list[float], ...] = ([], [], [])
        """For each figure, the medians of all sites, sorted."""

    def add(self, upload: Upload) -> None:
        """Add an accepted upload, whose rows are in no earlier one."""
        energy = self.scale * upload.energy
        share = upload.cut / energy if energy > 0 else 0.0
        compared = upload.rows / upload.sites, energy / max(1, upload.rows), share
        site = self._sites.setdefault(upload.client, _Site())
        site.classes.update(label for label, _ in upload.classes)
        for values, medians, value in zip(site.columns, self._medians, compared, strict=True):
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
