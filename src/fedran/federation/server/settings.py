"""The server's configuration, ``server.toml``, and the files in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedran.core.ids import check_id
from fedran.federation.protocol.messages import (
    LARGEST_BUDGET,
    LARGEST_WIDTH,
    FeatureSource,
    Offer,
    check_source,
)
from fedran.federation.protocol.settings import check_address, check_range, load_settings
from fedran.wire.files import read_json_object


@dataclass(frozen=True)
class ServerSettings:
    """What a server is started with."""

    federation: str
    in_features: int
    out_features: int = 8192
    seed: int = 0
    source: FeatureSource = ""
    """What makes the features, a text or a table; all sites must mean the same."""
    budget_bytes: int = 1_500_000
    min_clients: int = 1
    """A task with fewer uploads at its deadline is reported as short."""
    deadline: float = 3600.0
    """Seconds after which a task goes on with what came."""
    snapshot_every: int = 20
    largest_upload: int = 64 * 2**20
    """Bytes of an envelope; a larger one is refused before it is read."""
    validation: str | None = None
    """An .npz file with ``features`` and ``labels``: accuracy after every task."""
    address: str = "127.0.0.1:9443"
    """Where the SuperLink listens."""
    catch_up: float = 60.0
    """Seconds between two looks for sites that came back and lack the newest head; 0: hourly
    looks for new keys only."""
    max_classes: int = 10_000
    """Of all uploads together."""
    roster: str = "roster.toml"
    state: str = "state"

    def __post_init__(self) -> None:
        check_id(self.federation, "federation")
        check_address(self.address)
        check_source(self.source)
        check_range("max_classes", self.max_classes, 1, 10**6)
        check_range("largest_upload", self.largest_upload, self.budget_bytes + 1024, LARGEST_BUDGET)
        check_range("catch_up", self.catch_up, 0, 86400)
        check_range("in_features", self.in_features, 1, LARGEST_WIDTH)
        check_range("out_features", self.out_features, 1, LARGEST_WIDTH)
        check_range("seed", self.seed, 0, 2**32 - 1)
        check_range("budget_bytes", self.budget_bytes, 1024, LARGEST_BUDGET)
        check_range("min_clients", self.min_clients, 1, 10**6)
        check_range("deadline", self.deadline, 1, 365 * 86400)
        check_range("snapshot_every", self.snapshot_every, 1, 10**6)

    def offer(self, task: str, earlier: Sequence[str] = ()) -> Offer:
        """What sites are asked for a task, and for those before it that they missed."""
        return Offer(
            self.federation,
            check_id(task, "task"),
            self.in_features,
            self.out_features,
            self.seed,
            self.source,
            self.budget_bytes,
            tuple(earlier),
        )


@dataclass(frozen=True)
class ServerPaths:
    """A server's folder, the one that holds ``server.toml``."""

    folder: Path
    flower_name: str = "flower"

    @classmethod
    def find(cls, folder: str | Path) -> ServerPaths:
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
        """Journal, snapshots, quarantine, event log."""
        return self.folder / self.settings().state

    @property
    def flower(self) -> Path:
        """What Flower itself keeps: its database, connection and our thin app."""
        return self.folder / self.flower_name

    @property
    def registered_nodes(self) -> Path:
        """JSON: client -> [node id at the SuperLink, public key of the node]."""
        return self.flower / "nodes.json"

    def node_owners(self) -> dict[str, str]:
        """Map node ids at the SuperLink to the clients whose keys they hold."""
        registered = read_json_object(self.registered_nodes)
        return {node: client for client, (node, _) in registered.items()}
