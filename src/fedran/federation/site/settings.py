"""A site's configuration, ``site.toml``, and the files in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from fedran.core.solve.head import Head
from fedran.data.rows import LABEL
from fedran.federation.protocol.configuration import is_address, is_id, load_settings
from fedran.federation.protocol.limits import MAX_SITES, MAX_WIDTH
from fedran.federation.protocol.messages import Offer, Privacy, check_source
from fedran.settings import Settings, between
from fedran.wire.codec import decode

OUTBOX, OFFER, HEAD, CONNECTION = "outbox", "offer.json", "head.fedran", "connection.json"
"""In a site's state folder: its uploads, the last offer, the newest head, the last connection."""
ALARMS = "alarms.jsonl"
"""In the state folder: one line per run whose app was not ours."""
NAME_LABEL = 'set label_column = "{}" in site.toml'
"""What a site says to a table without the column of labels. {} is a likely column."""


def last_offer(state: Path) -> Offer | None:
    """The last offer that came, in a site's state folder."""
    path = state / OFFER
    return Offer.load(path) if path.is_file() else None


def newest_head(state: Path) -> Head | None:
    """The newest head in a site's state folder; None without one that can be read."""
    try:
        return decode((state / HEAD).read_bytes(), Head)
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class SiteSettings(Settings):
    """The settings of a site. Only they say which data the site reads."""

    key: ClassVar[str] = "site.key"
    """In the site's folder: the private key that signs uploads."""
    node_key: ClassVar[str] = "node.key"
    """The private key that lets the site's SuperNode connect."""
    ca: ClassVar[str] = "ca.crt"
    """The certificate that identifies the server."""
    state: ClassVar[str] = "state"
    """Folder of the outbox and of the newest head."""
    federation: Annotated[str, is_id]
    """Id of the federation."""
    client: Annotated[str, is_id]
    """Id of this site."""
    server: Annotated[str, is_address] = "127.0.0.1:9443"
    """Address of the SuperLink, or of a proxy in front of it."""
    folder: str | None = None
    """Folder with one file per task: `TASK.npz` with `labels`, and `features` or `images`; or
    `TASK.csv` or `TASK.parquet` with a column of labels and columns of features. Either `folder` or
    `entry` is required."""
    label_column: str = LABEL
    """The column of labels in a CSV or Parquet file."""
    entry: str | None = None
    """A function, as `module:function`, instead of a folder. The module is installed or lies beside
    this file. The function is called with the name of the task and returns rows and labels."""
    backbone: str = ""
    """Backbone for images, as in `fedran features`."""
    source: str | dict[str, Any] | None = None
    """What made this site's features. An offer for other features is refused. Without it, the
    site relies on the server's `source`."""
    min_class_count: Annotated[int, between(1, 10**9)] = 5
    """Classes with fewer rows are withheld, and no group of points has fewer rows, because their
    sums would reveal single rows. Rows with pseudo-labels count. The `min_group` of the server may
    demand more."""
    max_out_features: Annotated[int, between(1, MAX_WIDTH)] = 2**16
    """Limit on the number of random features of a secure sum. An offer with more is refused."""
    privacy: Privacy = "none"
    """The least protection that this site demands. With `secure`, a server that asks for a plain
    upload gets none."""
    min_sites: Annotated[int, between(2, MAX_SITES)] = 3
    """The fewest sites of a secure sum in which this site takes part."""
    hold_out: Annotated[float, between(0, 0.5)] = 0.05
    """The share of the rows of each class that are in no upload of points, where that is at least
    two rows. The site counts how many of them a new classifier labels correctly, and tells the
    server, if its `site_validation` asks. 0 holds none out."""
    max_epsilon: Annotated[float, between(0.001, 1000)] = 8.0
    """The largest epsilon of a task's rows, over all its sums. With privacy = "dp", a server that
    asks for less noise gets nothing. Nor does one whose noise counts on more sites than the
    sum has besides those that may work with the server (a third of `min_sites`, at least one)."""
    max_total_epsilon: Annotated[float | None, between(0.001, 1000)] = None
    """The largest epsilon of a person with one row in every task, by this site's own record.
    Without it, there is no limit over tasks."""
    max_delta: Annotated[float, between(0, 0.01)] = 1e-5
    """The largest delta of a task's rows."""
    pseudo_labels: Literal["margin", "none"] = "margin"
    """Whether rows without a label get a pseudo-label, or are left out."""
    seconds: Annotated[float, between(1, 7 * 86400)] = 600.0
    """Time limit of the work for one message."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.folder is None) == (self.entry is None):
            got = "neither" if self.folder is None else "both"
            raise ValueError(f"a site needs either folder or entry, got {got}")
        if self.source is not None:
            check_source(self.source)
        for name in ("max_epsilon", "max_total_epsilon", "max_delta"):
            if self.privacy != "dp" and getattr(self, name) != getattr(SiteSettings, name):
                raise ValueError(
                    f'{name} is for privacy = "dp", and with privacy = "{self.privacy}" this site '
                    f'also sends without noise; set privacy = "dp", or leave {name} out'
                )


@dataclass(frozen=True)
class SitePaths:
    """The folder of a site, which holds ``site.toml``."""

    folder: Path

    @classmethod
    def find(cls, folder: str | Path) -> SitePaths:
        """The given folder, if it is a site's."""
        paths = cls(Path(folder).absolute())
        if paths.settings_file.is_file():
            return paths
        if (paths.folder / "server.toml").is_file():
            raise FileNotFoundError(f"{folder}: this is a server's folder, expected a site's")
        near = sorted(paths.folder.glob("sites/*/site.toml"))
        advice = f"try {near[0].parent}" if near else "`fedran federation join` makes such a folder"
        raise FileNotFoundError(f"{folder}: no site.toml here; {advice}")

    @property
    def settings_file(self) -> Path:
        """The site's configuration."""
        return self.folder / "site.toml"

    @property
    def runtime(self) -> Path:
        """Certificate and secret of the port between the SuperNode and the site's app."""
        return self.folder / "flower" / "runtime"

    def settings(self) -> SiteSettings:
        """The settings in the configuration."""
        return load_settings(SiteSettings, self.settings_file)

    @property
    def state(self) -> Path:
        """The folder of the outbox, of the last offer and of the newest head."""
        return self.folder / SiteSettings.state


def local_sites(folder: str | Path) -> list[SitePaths]:
    """The sites of a federation on one machine, sorted by name."""
    return [SitePaths(p.parent) for p in sorted(Path(folder).absolute().glob("sites/*/site.toml"))]
