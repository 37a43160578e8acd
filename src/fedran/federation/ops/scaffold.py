"""Creates the folders of a federation: a server's, a site's, or a server with sites."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fedran.core.errors import check_id
from fedran.core.labels import ordered
from fedran.core.prepare import kind_for
from fedran.data.catalogue import digits
from fedran.data.feature_file import read_feature_file
from fedran.data.rows import LABEL
from fedran.federation.ops.enrolment import ENROLMENT_FILE, Enrolment, add_site
from fedran.federation.protocol.configuration import check_address
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.keys import days_left, make_certificates, make_node_key
from fedran.federation.protocol.limits import MAX_COLUMNS, MAX_TRIAL_SITES
from fedran.federation.protocol.messages import OF_POINTS, Privacy
from fedran.federation.protocol.ranges import proposed_ranges
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.site.pinning import PinnedRoster, roster_fingerprint
from fedran.federation.server.settings import ServerPaths, ServerSettings
from fedran.federation.site.settings import SitePaths, SiteSettings
from fedran.wire.files import write_atomically

VALIDATION = "validation.npz"
AUTHORITY = "authority"
"""Folder of the certificate authority's key, beside the server's folder, until it is moved."""
_SERVER_COMMENTS = {
    "federation": "",
    "address": "where Flower's SuperLink listens",
    "in_features": "columns of the sites' features",
    "columns": "names of these columns; sites put their tables in this order",
    "ranges": "their usual values in your rows; every site sees them, and warns its own people",
    "kind": "hellinger: features are never negative; cosine: features of any sign",
    "min_group": "the fewest rows of which a mean leaves a site; 1 is more accurate",
    "source": "what computes the features; must be the same at every site",
    "budget_bytes": "the largest upload of a site",
    "min_clients": "a task with fewer uploads at its deadline is reported as short",
    "deadline": "seconds that a task waits for missing sites",
    "trusted": "whether a class counts that one site alone has sent",
    "validation": "rows on which every new classifier is tested",
    "privacy": "none: sites send points; secure: only sums over several sites; dp: with noise",
}
"""Settings that are always written, with a comment. Others are written if not the default."""
_SITE_TEMPLATE = """\
# A site of a federation. `fedran federation client FOLDER` runs it.
# Data is named only here: no message and no run can name a path.
federation = {federation}
client = {client}
server = {server}
folder = "data"  # one file per task: TASK.npz with arrays features (or images) and labels, or
# TASK.csv or TASK.parquet with a column of labels; or instead of a folder:
# entry = "module:function"  # called with the task's name, returns rows and labels
label_column = {label_column}  # the column of labels in TASK.csv and TASK.parquet
min_class_count = 5  # no mean of fewer rows is sent, and classes with fewer are withheld
pseudo_labels = "margin"  # rows without a label may get one; "none" leaves them out
seconds = 600  # time limit for the work on one task
privacy = {privacy}  # the least that this site demands: none, secure or dp
"""
_SAMPLE = {"in_features": 64, "kind": "hellinger", "source": "pixels of digits"}


def settings_of_file(path: Path, label: str = LABEL, privacy: Privacy = "none") -> dict[str, Any]:
    """Settings of a server for features as in a file of `fedran features`, or in a table.

    With secure sums, the classes are those of the file. With differential privacy, nothing that
    follows from rows is told without noise.
    """
    data = read_feature_file(path, label=label)
    names = data.columns if len(data.columns) <= MAX_COLUMNS else ()
    return {
        "in_features": data.X_train.shape[1],
        "kind": data.feature_kind,
        "source": dict(data.source) or "",
        "columns": list(names) or None,
        "ranges": None if privacy == "dp" else proposed_ranges(data.X_train, names),
        "label_column": label,
        "classes": None if privacy == "none" else ordered(np.unique(data.y_train).tolist()),
    }


def settings_of_backbone(spec: str) -> dict[str, Any]:
    """Settings of a server for the features of a backbone, for example ``"efficientnet-lite0"``."""
    from fedran.backbones.catalogue import load_backbone

    network = load_backbone(spec)
    kind = kind_for(network.nonnegative)
    return {"in_features": network.out_features, "kind": kind, "source": network.source}


def make_federation(
    folder: Path,
    *,
    n_sites: int = 2,
    hosts: Sequence[str] = (),
    offline_ca: Path | None = None,
    **settings: Any,
) -> list[SitePaths]:
    """Create a server and sites in one folder, ready to run on this machine.

    ``settings`` are those of ``ServerSettings``. Without ``in_features``, the sites get sample
    data: scikit-learn's digits in two tasks of different classes. ``hosts`` are names by which
    sites on other machines reach the server. ``offline_ca`` is a folder for the key of the
    certificate authority; None: ``authority`` in ``folder``.
    """
    sample, classes = "in_features" not in settings, settings.pop("classes", None)
    privacy = settings.get("privacy", "none")
    least = 1 if privacy == "none" else ServerSettings.min_sites
    if not 0 <= n_sites <= MAX_TRIAL_SITES:
        raise ValueError(f"sites: expected from 0 to {MAX_TRIAL_SITES}, got {n_sites}")
    if 0 < n_sites < least:
        raise ValueError(f"sites: a secure sum needs at least {least}, got {n_sites}")
    if sample and classes:
        raise ValueError(
            "classes are for the sites' own features, and the sample rows have the classes 0 to 9; "
            "leave out --classes, or name your features with --in-features"
        )
    declared: dict[str, Any] = {
        "federation": "trial",
        "classes": list(classes or (range(10) if sample and privacy != "none" else ())) or None,
        "min_clients": max(least, n_sites // 2),
    }
    if n_sites:
        declared |= {"deadline": 300.0, "trusted": True}  # the sites are the owner's
    if sample:
        declared |= {**_SAMPLE, "budget_bytes": 500_000, "validation": VALIDATION}
    if privacy != "none" and sample:
        declared["out_features"] = 1024
    if privacy == "dp":  # noise grows with the width
        declared["out_features"] = (declared | settings)["in_features"]
    made = ServerSettings(**(declared | settings))
    server = make_server(folder / "server", made, hosts=hosts, offline_ca=offline_ca)
    sites = _make_sites(folder / "sites", n_sites, server, made)
    if sample:
        _write_sample(server, sites)
    return sites


def make_server(
    folder: Path,
    settings: ServerSettings,
    *,
    hosts: Sequence[str] = (),
    offline_ca: Path | None = None,
) -> ServerPaths:
    """Create a server's folder with configuration, an empty roster and certificates.

    The key of the certificate authority is not in it, but in ``offline_ca`` or beside the folder.
    """
    paths, offline_ca = ServerPaths(folder), offline_ca or folder.parent / AUTHORITY
    _check_empty(folder)
    if offline_ca.absolute().is_relative_to(folder.absolute()):
        raise ValueError(f"{offline_ca}: is in the server's folder; name a folder outside of it")
    make_certificates(paths.tls, hosts, offline_ca)
    folder.chmod(0o700)
    paths.nodes.mkdir(mode=0o700)
    lines = ["# The server of a federation. `fedran federation server FOLDER` runs it.\n"]
    defaults = {f.name: f.default for f in fields(ServerSettings)}
    for name, value in vars(settings).items():
        unused = settings.privacy != "none" and name in OF_POINTS
        comment = None if unused else _SERVER_COMMENTS.get(name)
        if value is None or (comment is None and value == defaults[name]):
            continue
        lines.append(f"{name} = {_toml(value)}" + (f"  # {comment}\n" if comment else "\n"))
    write_atomically(paths.settings_file, "".join(lines).encode())
    Roster().save(paths.roster)
    return paths


def make_site(
    folder: Path,
    *,
    federation: str,
    client: str,
    server: str,
    ca: Path,
    privacy: Privacy = "none",
    label_column: str = LABEL,
    max_epsilon: float = SiteSettings.max_epsilon,
) -> Enrolment:
    """Create a site's folder with configuration and new keys; returns its enrolment.

    ``max_epsilon`` is the site's own limit under differential privacy.
    """
    check_id(federation, "federation")
    check_id(client, "client")
    check_address(server)
    if not ca.is_file():
        raise FileNotFoundError(f"{ca}: no such file; expected the server's ca.crt")
    days_left(ca)  # refuses a file that is not a certificate
    _check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    (folder / "data").mkdir()
    key = SiteKey.generate()
    key.save(folder / SiteSettings.key)
    node = make_node_key(folder / SiteSettings.node_key)
    shutil.copyfile(ca, folder / SiteSettings.ca)
    told = {"federation": federation, "client": client, "server": server, "privacy": privacy}
    told["label_column"] = label_column
    text = _SITE_TEMPLATE.format(**{name: _toml(value) for name, value in told.items()})
    if privacy == "dp":
        comment = "the most that a row of this site may spend in a task"
        text += f"max_epsilon = {max_epsilon}  # {comment}\n"
    write_atomically(SitePaths(folder).settings_file, text.encode())
    enrolment = Enrolment(federation, client, key.public, node)
    enrolment.save(folder / ENROLMENT_FILE)
    return enrolment


def _make_sites(
    folder: Path, n_sites: int, server: ServerPaths, settings: ServerSettings
) -> list[SitePaths]:
    """Create sites on the server's machine that are in its roster, and have pinned it."""
    sites = []
    for i in range(n_sites):
        name = f"site-{i + 1:0{len(str(n_sites))}d}"
        enrolment = make_site(
            folder / name,
            federation=settings.federation,
            client=name,
            server=settings.address,
            ca=server.tls / "ca.crt",
            privacy=settings.privacy,
            label_column=settings.label_column,
            max_epsilon=settings.epsilon or SiteSettings.max_epsilon,
        )
        add_site(server, enrolment)
        sites.append(SitePaths(folder / name))
    if settings.privacy != "none":  # on one machine there is nobody to compare the roster with
        clients = Roster.load(server.roster).clients
        for site in sites:
            pinned = PinnedRoster(site.folder / SiteSettings.state)
            pinned.pin(clients, roster_fingerprint(clients))
    return sites


def _write_sample(server: ServerPaths, sites: Sequence[SitePaths]) -> None:
    """Distribute the digits over the sites. Each task has its own classes."""
    data = digits()
    groups = np.array_split(np.unique(data.y_train), 2)
    for number, classes in enumerate(groups, start=1):
        rows = np.flatnonzero(np.isin(data.y_train, classes))
        for i, site in enumerate(sites):
            mine = rows[i :: len(sites)]
            path = site.folder / "data" / f"task-{number}.npz"
            np.savez(path, features=data.X_train[mine], labels=data.y_train[mine])
    np.savez(server.folder / VALIDATION, features=data.X_test, labels=data.y_test)


def _toml(value: object) -> str:
    """Text, a number, or a table of texts in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder}: is not empty; name a new folder")
