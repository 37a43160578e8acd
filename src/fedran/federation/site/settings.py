"""A site's configuration, ``site.toml``, and the files in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedran.core.errors import Refused
from fedran.core.ids import check_id
from fedran.federation.protocol.messages import FeatureSource, check_source
from fedran.federation.protocol.settings import check_address, check_range, load_settings


@dataclass(frozen=True)
class SiteSettings:
    """What a site is started with; data is named here and nowhere else."""

    federation: str
    client: str
    server: str = "127.0.0.1:9443"
    """Where the server's SuperLink listens, as host:port."""
    key: str = "site.key"
    """Signs uploads."""
    node_key: str = "node.key"
    """Lets this site's SuperNode connect."""
    ca: str = "ca.crt"
    """The certificate by which the server is known."""
    folder: str | None = None
    """Holds TASK.npz with ``labels`` and ``features`` or ``images``."""
    entry: str | None = None
    """``module:function`` instead, installed or beside this file; called with the task's name."""
    backbone: str = ""
    """For images: as `fedran features` takes it."""
    source: FeatureSource | None = None
    """What made this site's features; a task for others is refused. None: as the server says."""
    state: str = "state"
    min_class_count: int = 5
    pseudo_labels: Literal["margin", "none"] = "margin"
    seconds: float = 600.0
    """The longest that the work for one task may take."""
    memory_mib: int = 4096
    """The most memory that it may take."""
    own_process: bool = True
    """Whether it is done in a process of its own, under these two limits; false in simulations."""

    def __post_init__(self) -> None:
        check_id(self.federation, "federation")
        check_id(self.client, "client")
        check_address(self.server)
        if (self.folder is None) == (self.entry is None):
            raise Refused("data", "either folder or entry", "both" if self.folder else "neither")
        if self.source is not None:
            check_source(self.source)
        check_range("min_class_count", self.min_class_count, 1, 10**9)
        check_range("seconds", self.seconds, 1, 7 * 86400)
        check_range("memory_mib", self.memory_mib, 256, 2**30)


@dataclass(frozen=True)
class SitePaths:
    """A site's folder, the one that holds ``site.toml``."""

    folder: Path

    @classmethod
    def find(cls, folder: str | Path) -> SitePaths:
        """The folder itself."""
        place = cls(Path(folder).absolute())
        if not place.settings_file.is_file():
            raise FileNotFoundError(
                f"{folder}: no site.toml here; `fedran federation join` makes a site's folder"
            )
        return place

    @property
    def settings_file(self) -> Path:
        """The site's configuration."""
        return self.folder / "site.toml"

    def settings(self) -> SiteSettings:
        """What it says."""
        return load_settings(SiteSettings, self.settings_file)


def trial_sites(folder: str | Path) -> list[SitePaths]:
    """The sites of a trial, in the order of their names."""
    return [SitePaths(p.parent) for p in sorted(Path(folder).absolute().glob("sites/*/site.toml"))]
