"""The two configuration files: the server's and a site's own. A wrong key is named."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedran.core.aggregator import check_id
from fedran.core.errors import Refused, nearest, printable
from fedran.federation.protocol.offer import (
    LARGEST_BUDGET,
    LARGEST_WIDTH,
    FeatureSource,
    Offer,
    check_source,
)
from fedran.federation.site.source import require_one
from fedran.federation.site.task_work import MIN_CLASS_COUNT
from fedran.settings import has_type as fits
from fedran.wire.files import read_toml

T = TypeVar("T")


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
        _within("max_classes", self.max_classes, 1, 10**6)
        _within("largest_upload", self.largest_upload, self.budget_bytes + 1024, LARGEST_BUDGET)
        _within("catch_up", self.catch_up, 0, 86400)
        _within("in_features", self.in_features, 1, LARGEST_WIDTH)
        _within("out_features", self.out_features, 1, LARGEST_WIDTH)
        _within("seed", self.seed, 0, 2**32 - 1)
        _within("budget_bytes", self.budget_bytes, 1024, LARGEST_BUDGET)
        _within("min_clients", self.min_clients, 1, 10**6)
        _within("deadline", self.deadline, 1, 365 * 86400)
        _within("snapshot_every", self.snapshot_every, 1, 10**6)

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
    min_class_count: int = MIN_CLASS_COUNT
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
        require_one(self.folder, self.entry)
        if self.source is not None:
            check_source(self.source)
        _within("min_class_count", self.min_class_count, 1, 10**9)
        _within("seconds", self.seconds, 1, 7 * 86400)
        _within("memory_mib", self.memory_mib, 256, 2**30)


def check_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``.

    >>> check_address("127.0.0.1:9443")
    ('127.0.0.1', 9443)
    """
    host, _, port = address.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16 or not is_host(host):
        raise Refused("address", "host:port, such as 127.0.0.1:9443", address)
    return host, int(port)


def is_host(text: str) -> bool:
    """Whether a text is a host name or an IP address.

    >>> is_host("fl.example.org"), is_host("::1"), is_host("https://fl.example.org")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(text)
    except ValueError:
        label = "(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
        return len(text) <= 253 and re.fullmatch(rf"{label}(\.{label})*", text) is not None
    return True


def load_settings(kind: type[T], path: str | Path) -> T:
    """Settings from a TOML file; paths in it are relative to the file."""
    given = read_toml(path, "a configuration")
    try:
        return kind(**_checked(kind, given))
    except ValueError as reason:
        raise ValueError(f"{path}: {reason}") from None


def configured(kind: type[T], variable: str, whose: str) -> tuple[T, Path]:
    """Settings from the file that an environment variable names, and the folder it lies in."""
    where = os.environ.get(variable)
    if not where:
        raise Refused(variable, f"the path of the {whose} configuration (.toml)", "nothing")
    return load_settings(kind, where), Path(where).parent


def _checked(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    for name, value in given.items():
        if name not in hints:
            known = ", ".join(hints)
            raise ValueError(f"no setting {name!r}{nearest(name, hints)}; it has {known}")
        if not any(fits(value, kind) for kind in _kinds(hints[name])):
            raise ValueError(f"{name} must be {_shown(hints[name])}, got {printable(value)}")
    for f in fields(kind):
        if f.name not in given and f.default is MISSING:
            raise ValueError(f"expected a setting {f.name!r}, found {', '.join(given) or 'none'}")
    return dict(given)


def _kinds(hint: Any) -> list[Any]:
    """The plain types that a hint allows: ``dict`` for ``dict[str, str]``."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return [dict if get_origin(kind) is dict else kind for kind in kinds]


def _shown(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    names = {int: "an integer", float: "a number", str: "text", dict: "a table"}
    names |= {bool: "true or false"}
    return " or ".join(names[kind] for kind in _kinds(hint) if kind in names)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise Refused(name, f"from {low:g} to {high:g}", value)
