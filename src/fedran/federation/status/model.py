"""What a status contains: one tree, for a server and for a site."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from fedran.federation.server.store.schema import SolvedHead

ACCEPTED = ("accepted", "duplicate")
"""Outcomes of an upload that counts."""
MISSING, WAITING = "missing", "waiting for others"
FAILED, NOTHING_TO_SEND = "failed", "nothing to send"


@dataclass(frozen=True)
class Finding:
    """One thing that was examined."""

    level: Literal["ok", "warning", "problem"]
    text: str
    remedy: str = ""
    """What to do about it."""


@dataclass
class Outcome:
    """What became of an upload, or why a site does not count."""

    at: float | None
    client: str
    """Empty for what a site says about itself."""
    task: str
    """Empty where all tasks are meant."""
    state: str
    """set aside, waits, refused, failed, pending, or the code of a receipt."""
    reason: str = ""
    verified: bool = True
    """Whether the named client signed it. If not, anyone may have written it."""
    times: int = 1
    commands: list[str] = field(default_factory=list)
    """Where a person decides: the commands for that."""


@dataclass
class TaskStatus:
    """One task."""

    task: str
    state: str = "unknown"
    """open, complete, quorum, short, interrupted: its run ended without a result, or restored: only
    the sites still knew it. Uploads that were forgotten or lost since do not count."""
    opened: float | None = None
    ends: float | None = None
    min_clients: int = 0
    answers: dict[str, str] = field(default_factory=dict)
    """Site -> the outcome of its upload, or ``missing`` if it was asked and has not answered,
    ``nothing to send`` or ``failed`` as it said itself, or ``waiting for others`` of its secure
    sum. A refused upload does not replace an earlier accepted one."""
    rows: int = 0
    payload: int = 0
    """Bytes of its accepted uploads."""
    transport: int = 0
    """Bytes at the transport in its runs, in both directions; 0 if not measured."""
    accuracy: float | None = None

    @property
    def accepted(self) -> int:
        """Number of sites of which an upload was accepted."""
        return sum(outcome in ACCEPTED for outcome in self.answers.values())

    @property
    def missing(self) -> int:
        """Number of sites without an answer, or that wait for others."""
        return sum(outcome in (MISSING, WAITING) for outcome in self.answers.values())


@dataclass
class SiteStatus:
    """One site, or the sums of a cohort of sites."""

    client: str
    key: str = ""
    """Fingerprint of its public key; empty if it is not in the roster."""
    mark: str = ""
    """What is unusual: cohort, or not in roster. At a site NEW, CHANGED or REMOVED, where the
    server's roster differs from the pinned one."""
    last_seen: float | None = None
    """When it last answered, or its node was found connected."""
    connected: bool | None = None
    """Whether it was seen lately; None: unknown, because the server does not run."""
    uploads: int = 0
    """Its accepted ones, and the secure sums with its rows."""
    bytes: int | None = None
    """None: the server has nothing of this site alone."""
    rows: int | None = None
    classes: list[tuple[str | int, int]] = field(default_factory=list)
    """Labels with their numbers of rows, most frequent first."""
    agreement: float | None = None
    """Share of its rows that the points of all other sites label alike, where others have the class
    too; None if that is not known."""


@dataclass
class Status:
    """The state of a server or of a site at one moment."""

    federation: str
    client: str
    """Id of the site; empty for a server."""
    folder: str
    at: float
    running: bool
    """Whether a process works in this folder. On a full disk none can."""
    findings: list[Finding]
    """What could not be read, is inconsistent, or needs a person."""
    disk_bytes: int
    """Of the state."""
    disk_free: int
    certificate_expires: float | None
    """When the certificate of the server, or ``ca.crt``, expires; None without one."""
    checked: float | None = None
    """When a site last tried its connection."""
    connection: str = ""
    """Of a site, as it noted it last."""
    records: int | None = None
    """Accepted uploads; None if the database cannot be read."""
    transport: int = 0
    """Bytes at the transport in all known runs, in both directions; 0 if not measured."""
    head: SolvedHead | None = None
    left_out: float | None = None
    """Share of the points in the head that all other points label right (leave-one-out)."""
    history: list[SolvedHead] = field(default_factory=list)
    """The heads so far, oldest first, at most 200."""
    tasks: list[TaskStatus] = field(default_factory=list)
    """Newest first."""
    sites: list[SiteStatus] = field(default_factory=list)
    uploads: list[Outcome] = field(default_factory=list)
    """Of a site: its own uploads and sums, oldest first."""
    set_aside: list[Outcome] = field(default_factory=list)
    """Sites, and classes of sites, that are not in the newest classifier, and why."""
    problems: list[Outcome] = field(default_factory=list)
    """Uploads that were not accepted, and sites that sent none; newest first, at most 200."""
    roster: str = ""
    """With secure sums: the fingerprint of the roster, which sites compare."""
    sums: list[str] = field(default_factory=list)
    """Secure sums, one sentence each: those under way, then those that the server has."""
    budget: str = ""
    """What differential privacy has spent, in sentences; empty where there is none."""

    @property
    def open_tasks(self) -> list[TaskStatus]:
        """Tasks that wait for uploads now."""
        return [t for t in self.tasks if t.state == "open"]

    @property
    def payload(self) -> int:
        """Bytes of all accepted uploads."""
        return sum(task.payload for task in self.tasks)

    @property
    def connected(self) -> int | None:
        """Number of connected sites; None: unknown."""
        known = [site.connected for site in self.sites if site.connected is not None]
        return sum(known) if known else None

    def to_json(self) -> str:
        """All fields as JSON."""
        return json.dumps(vars(self), default=vars)
