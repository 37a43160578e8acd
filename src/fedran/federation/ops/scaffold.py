"""Making a federation: the server's folder, a site's folder, and a trial with both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from fedran.core.aggregator import check_id
from fedran.core.errors import Refused
from fedran.data.catalogue import digits
from fedran.data.dataset import Dataset
from fedran.federation.ops.enrolment import Card
from fedran.federation.ops.node_key import make_node_key
from fedran.federation.ops.tls import days_left, make_certificates
from fedran.federation.protocol.identity import Roster, SiteKey
from fedran.federation.protocol.settings import check_address
from fedran.federation.server.settings import ServerPaths, ServerSettings
from fedran.federation.site.settings import SitePaths, SiteSettings
from fedran.wire.files import write_atomically

CARD = "card.toml"
SAMPLE_FEATURES = 64
MOST_SITES = 1000
_SERVER = """\
# The server of a federation. `fedran federation server FOLDER` runs it.
"""
_SAID = {
    "federation": "",
    "address": "where Flower's SuperLink listens",
    "in_features": "columns of the sites' features",
    "out_features": "random features: more is better and larger",
    "source": "what makes the features; every site must mean the same",
    "budget_bytes": "the largest upload of a site",
    "min_clients": "a task with fewer uploads at its deadline is reported as short",
    "deadline": "seconds that a task waits for sites that are away",
    "validation": "accuracy after every task",
}
"""Settings that are written with a word about them; others only where they are not the default."""
_SITE = """\
# A site of a federation. `fedran federation client FOLDER` runs it.
# Data is named here and nowhere else: no message and no run can name a path.
federation = {federation}
client = {client}
server = {server}
folder = "data"  # TASK.npz with arrays features (or images) and labels; or instead:
# entry = "module:function"  # called with the task's name, returns rows and labels
min_class_count = 5  # classes with fewer rows are withheld
seconds = 600  # the longest that the work for one task may take
memory_mib = 4096
"""


def make_server(
    folder: Path, settings: ServerSettings, *, hosts: Sequence[str] = ()
) -> ServerPaths:
    """A server's folder with configuration, an empty roster and certificates."""
    place = ServerPaths(folder)
    _check_new(folder)
    make_certificates(place.tls, hosts)
    folder.chmod(0o700)
    place.nodes.mkdir(mode=0o700)
    write_atomically(place.settings_file, _server_text(settings).encode())
    Roster().save(place.roster)
    return place


def _server_text(settings: ServerSettings) -> str:
    lines = [_SERVER]
    usual = {f.name: f.default for f in fields(ServerSettings)}
    for name, value in vars(settings).items():
        said = _SAID.get(name)
        if value is None or (said is None and value == usual[name]):
            continue
        lines.append(f"{name} = {_toml(value)}" + (f"  # {said}\n" if said else "\n"))
    return "".join(lines)


def _toml(value: object) -> str:
    """A value as TOML writes it: text, a number, or a table of texts."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def make_site(folder: Path, *, federation: str, client: str, server: str, ca: Path) -> Card:
    """A site's folder with configuration and new keys; its card for the server's owner."""
    check_id(federation, "federation")
    check_id(client, "client")
    check_address(server)
    if not ca.is_file():
        raise FileNotFoundError(f"{ca}: no such file; expected the server's ca.crt")
    days_left(ca)  # refuses what is no certificate
    _check_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    (folder / "data").mkdir()
    key = SiteKey.generate()
    key.save(folder / SiteSettings.key)
    node = make_node_key(folder / SiteSettings.node_key)
    shutil.copyfile(ca, folder / SiteSettings.ca)
    said = {"federation": federation, "client": client, "server": server}
    text = _SITE.format(**{name: _toml(value) for name, value in said.items()})
    write_atomically(SitePaths(folder).settings_file, text.encode())
    card = Card(federation, client, key.public, node)
    card.save(folder / CARD)
    return card


def add_site(place: ServerPaths, card: Card) -> None:
    """Let a site upload and its node connect; a running server takes note by itself."""
    federation = place.settings().federation
    if card.federation != federation:
        raise Refused("federation", federation, card.federation)
    roster = Roster.load(place.roster).with_site(card.client, card.key)
    for path in place.nodes.glob("*.pub"):
        if (path.stem == card.client) != (path.read_text() == card.node):
            raise Refused(
                "node",
                "a key of its own" if path.stem != card.client else "the key it was added with",
                f"that of {path.stem}" if path.stem != card.client else "another",
                hint="`fedran federation remove` takes a site out, to add it anew",
            )
    roster.save(place.roster)
    write_atomically(place.nodes / f"{card.client}.pub", card.node.encode())


def remove_site(place: ServerPaths, client: str) -> None:
    """Let a site neither upload nor connect; what it sent before stays in."""
    roster = Roster.load(place.roster).without(client)
    (place.nodes / f"{client}.pub").unlink(missing_ok=True)
    roster.save(place.roster)


@dataclass(frozen=True)
class Trial:
    """What a trial on one machine is made of."""

    federation: str = "trial"
    n_sites: int = 2
    address: str = "127.0.0.1:9443"
    in_features: int | None = None
    """None: sample data is written (scikit-learn's digits)."""
    out_features: int = 1024
    tasks: int = 2
    """Of the sample: so many groups of classes, one after the other."""
    hosts: tuple[str, ...] = ()
    """Names by which sites on other machines reach the server."""


def make_trial(folder: Path, trial: Trial) -> list[SitePaths]:
    """A server and sites in one folder, ready to run on one machine."""
    if not 0 <= trial.n_sites <= MOST_SITES:
        raise Refused("sites", f"from 0 to {MOST_SITES}", trial.n_sites)
    sample = trial.in_features is None
    if sample and not 1 <= trial.tasks <= 10:
        raise Refused("tasks", "from 1 to 10, the digits' classes", trial.tasks)
    settings = ServerSettings(
        trial.federation,
        SAMPLE_FEATURES if trial.in_features is None else trial.in_features,
        trial.out_features,
        source="pixels of digits" if sample else "",
        budget_bytes=500_000 if sample else ServerSettings.budget_bytes,
        min_clients=max(1, trial.n_sites // 2),
        deadline=300.0 if trial.n_sites else ServerSettings.deadline,
        validation="validation.npz" if sample else None,
        address=trial.address,
    )
    server = make_server(folder / "server", settings, hosts=trial.hosts)
    sites = []
    for i in range(trial.n_sites):
        name = f"site-{i + 1:0{len(str(trial.n_sites))}d}"
        place = SitePaths(folder / "sites" / name)
        ca = server.tls / "ca.crt"
        card = make_site(
            place.folder, federation=trial.federation, client=name, server=trial.address, ca=ca
        )
        add_site(server, card)
        sites.append(place)
    if sample:
        _write_sample(digits(), server, sites, trial.tasks)
    return sites


def _write_sample(
    data: Dataset, server: ServerPaths, sites: Sequence[SitePaths], tasks: int
) -> None:
    """Rows of the digits, dealt to the sites; a task is a group of classes."""
    groups = np.array_split(np.unique(data.y_train), tasks)
    for number, classes in enumerate(groups, start=1):
        rows = np.flatnonzero(np.isin(data.y_train, classes))
        for i, place in enumerate(sites):
            mine = rows[i :: len(sites)]
            path = place.folder / "data" / f"task-{number}.npz"
            np.savez(path, features=data.X_train[mine], labels=data.y_train[mine])
    np.savez(server.folder / "validation.npz", features=data.X_test, labels=data.y_test)


def _check_new(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder}: is not empty; name a new folder")
