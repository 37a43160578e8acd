"""What a status contains: one tree, for a server and for a site."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from fedran.federation.server.store.schema import SolvedHead

ACCEPTED = ("accepted", "duplicate")
"""Outcomes of an upload that counts."""


@dataclass(frozen=True)
class Finding:
    """One thing that was examined."""

    level: Literal["ok", "warning", "problem"]
    text: str
    remedy: str = ""
    """What to do about it."""


@dataclass(frozen=True)
class Outcome:
    """What became of an upload or of a secure sum, or why a site does not count."""

    at: float | None
    client: str
    """Empty for a classifier, and for what a site says about itself."""
    task: str
    state: str
    """set aside, waits, refused, declined, failed, pending, the code of a receipt, or the stage of
    a secure sum."""
    reason: str = ""
    verified: bool = True
    """Whether the named client signed it. If not, anyone may have written it."""
    times: int = 1
    commands: list[str] = field(default_factory=list)
    """Where a person decides: the commands for that."""
    rows: int = 0
    """Of a secure sum."""
    members: list[str] = field(default_factory=list)
    """The sites of a secure sum."""


@dataclass
class TaskStatus:
    """One task."""

    task: str
    state: str = "unknown"
    """open, complete, quorum, short, interrupted: its run ended without a result, or restored: only
    the sites still knew it. Uploads that were forgotten or lost since do not count."""
    opened: float | None = None
    ends: float | None = None
    min_clients: int | None = None
    answered: dict[str, str] = field(default_factory=dict)
    """Site -> outcome of its upload. A refused upload does not replace an earlier accepted one."""
    missing: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Sites that have answered, and wait for others of their secure sum."""
    declined: dict[str, str] = field(default_factory=dict)
    """Sites that reported that they send nothing, and why. Not signed."""
    failed: list[str] = field(default_factory=list)
    """Those of them that have rows but could not make an upload."""
    uploads: int = 0
    rows: int = 0
    payload: int = 0
    """Bytes of the envelopes that arrived for this task."""
    received: int = 0
    """Bytes at the transport in its runs; 0 if not measured."""
    sent: int = 0
    accuracy: float | None = None

    @property
    def accepted(self) -> int:
        """Number of sites of which an upload was accepted."""
        return sum(outcome in ACCEPTED for outcome in self.answered.values())

    @property
    def asked(self) -> int:
        """Number of sites that were asked for an upload."""
        return sum(map(len, (self.answered, self.declined, self.missing, self.waiting)))


@dataclass
class SiteStatus:
    """One site."""

    client: str
    in_roster: bool = False
    key: str = ""
    """Fingerprint of its public key; empty if it is not known."""
    mark: str = ""
    """At a site: NEW, CHANGED or REMOVED, where the server's roster differs from the pinned one."""
    last_seen: float | None = None
    """When it last sent something new under its own key, or its node was found connected."""
    connected: bool | None = None
    """None: unknown, because Flower's state is missing or old."""
    uploads: int = 0
    bytes: int | None = None
    """None: the server knows bytes and rows of its secure sums only."""
    rows: int | None = None
    classes: list[tuple[str | int, int]] = field(default_factory=list)
    """Labels with their numbers of rows, most frequent first."""
    newest_task: str = ""
    """The task that was opened last of those in its accepted uploads."""
    agreement: float | None = None
    """Share of its rows that the points of all other sites label alike, where others have the class
    too; None if that is not known."""
    compared: list[tuple[str | int, int, int]] = field(default_factory=list)
    """The same per class: its label, the rows, and those that others label alike."""


@dataclass(frozen=True)
class Status:
    """The state of a server or of a site at one moment."""

    at: float
    federation: str
    client: str
    """Id of the site; empty for a server."""
    folder: str
    running: bool
    """Whether a process works in this folder. On a full disk none can."""
    findings: list[Finding]
    """What could not be read, is inconsistent, or needs a person."""
    sites: list[SiteStatus]
    disk_bytes: int
    """Of the state."""
    disk_free: int
    certificate_expires: float | None
    """When the certificate of the server, or ``ca.crt``, expires; None without one."""
    checked: float | None = None
    """When the server last recorded which nodes are connected, or the site its connection."""
    connection: str = ""
    """Of a site, as it noted it last."""
    nodes: int | None = None
    """Connected nodes; None: unknown."""
    records: int | None = None
    """Accepted uploads; None if the database cannot be read."""
    payload: int = 0
    """Bytes of all signed envelopes that arrived."""
    transport: int = 0
    """Bytes at the transport in all known runs, in both directions; 0 if not measured."""
    head: SolvedHead | None = None
    left_out: float | None = None
    """Share of the points in the head that all other points label right (leave-one-out)."""
    single_rows: bool = False
    """Whether these points are single rows, so that the share is an accuracy."""
    history: list[SolvedHead] = field(default_factory=list)
    """The heads so far, oldest first, at most 200."""
    tasks: list[TaskStatus] = field(default_factory=list)
    """Newest first."""
    uploads: list[Outcome] = field(default_factory=list)
    """Of a site: its own uploads and sums, oldest first."""
    set_aside: list[Outcome] = field(default_factory=list)
    """Sites, and classes of sites, that are not in the newest classifier, and why."""
    problems: list[Outcome] = field(default_factory=list)
    """Uploads that were not accepted, and sites that sent none; newest first, at most 200."""
    roster: str = ""
    """With secure sums: the fingerprint of the roster, which sites compare."""
    cohorts: list[Outcome] = field(default_factory=list)
    """Secure sums that the server has, oldest first."""
    sums: list[Outcome] = field(default_factory=list)
    """Secure sums that are under way or wait for sites; ``members`` have answered this stage."""
    budget: str = ""
    """What differential privacy has spent, in sentences; empty where there is none."""

    @property
    def open_tasks(self) -> list[TaskStatus]:
        """Tasks that wait for uploads now."""
        return [t for t in self.tasks if t.state == "open"]

    def to_json(self) -> str:
        """All fields as JSON."""
        return json.dumps(vars(self), default=vars)
