"""Where things lie: the folder of a server, of a site, and of a trial with both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedran.federation.protocol.settings import ServerSettings, SiteSettings, load_settings


@dataclass(frozen=True)
class ServerPlace:
    """A server's folder, the one that holds ``server.toml``."""

    folder: Path
    flower_name: str = "flower"

    @classmethod
    def find(cls, folder: str | Path) -> ServerPlace:
        """The folder itself, or ``server`` below it."""
        given = Path(folder).absolute()
        for place in (cls(given), cls(given / "server")):
            if place.settings_file.is_file():
                return place
        if (given / "site.toml").is_file():
            raise FileNotFoundError(
                f"{folder}: this is a site's folder, expected a server's; what the site does is in "
                "its log/fedran.log"
            )
        raise FileNotFoundError(
            f"{folder}: no server.toml here or in server/; `fedran federation init` makes one"
        )

    @property
    def settings_file(self) -> Path:
        """The server's configuration."""
        return self.folder / "server.toml"

    def settings(self) -> ServerSettings:
        """What it says."""
        return load_settings(ServerSettings, self.settings_file)

    @property
    def roster(self) -> Path:
        """Who may upload."""
        return self.folder / self.settings().roster

    @property
    def nodes(self) -> Path:
        """Public keys of the nodes that may connect, ``CLIENT.pub``."""
        return self.folder / "nodes"

    @property
    def tls(self) -> Path:
        """Certificates and their keys."""
        return self.folder / "tls"

    @property
    def state(self) -> Path:
        """Journal, snapshots, quarantine, logbook."""
        return self.folder / self.settings().state

    @property
    def flower(self) -> Path:
        """What Flower itself keeps: its database, connection and our thin app."""
        return self.folder / self.flower_name


@dataclass(frozen=True)
class SitePlace:
    """A site's folder, the one that holds ``site.toml``."""

    folder: Path

    @classmethod
    def find(cls, folder: str | Path) -> SitePlace:
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


def trial_sites(folder: str | Path) -> list[SitePlace]:
    """The sites of a trial, in the order of their names."""
    return [SitePlace(p.parent) for p in sorted(Path(folder).absolute().glob("sites/*/site.toml"))]
